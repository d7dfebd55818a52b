"""What a module remembers outside its parameters: attributes and buffers, taken, compared, put back."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportPrivateUsage=false
# (torch annotates parts of itself incompletely, and not all that a shim needs is public)

from __future__ import annotations

import types
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from .surroundings import Variable

_REGISTRIES = {"_parameters", "_buffers", "_modules"}
_ATOMS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, type, range, slice)
_CODE = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.ModuleType, torch.Generator)
_MAX_DEPTH = 6
_MAX_ITEMS = 1000  # of one container that are followed; the container itself is compared in any case
_MAX_VALUES = 50_000

Attribute = tuple[str, object]


class Snapshot:
    """The attributes and the buffers of a module and its submodules, and variables around it, at one moment.

    Containers are followed, and objects with attributes of their own; a value that is changed in place is
    found.

    Args:
        module: the module.
        variables: what its forward uses outside of it; taken, compared and put back as well.
    """

    def __init__(self, module: nn.Module, variables: Sequence[Variable] = ()) -> None:
        self._owners = [(name, child, dict(child.__dict__)) for name, child in module.named_modules()]
        self.complete = True  # False: it holds too many objects to tell
        self._seen: dict[int, object] = {}
        self._copies: list[_Copy] = []
        self._buffers = [(child, dict(child._buffers)) for child in module.modules()]
        for name, _, attributes in self._owners:
            for key, value in attributes.items():
                if key not in _REGISTRIES:
                    self._keep(f"{name}.{key}" if name else key, value, 0)
        self._variables = [(variable, variable.get()) for variable in variables]
        for variable, value in self._variables:
            self._keep(variable.name, value, 0)

    def changed(self) -> list[str]:
        """Names of the attributes that differ now."""
        found = [
            f"{name}.{key}" if name else key
            for name, child, before in self._owners
            for key in {**before, **child.__dict__}
            if key not in _REGISTRIES and not _same(before.get(key, _GONE), child.__dict__.get(key, _GONE))
        ]
        found += [copy.name for copy in self._copies if copy.differs()]
        found += [variable.name for variable, before in self._variables if not _same(before, variable.get())]
        return list(dict.fromkeys(found))

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Tensors held by attributes now (not buffers): whatever a forward has kept."""
        for name, child, _ in self._owners:
            for key, value in child.__dict__.items():
                if key not in _REGISTRIES:
                    yield from _tensors_in(f"{name}.{key}" if name else key, value, 0)
        for variable, _ in self._variables:
            yield from _tensors_in(variable.name, variable.get(), 0)

    def replaced_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Buffers that are other tensors now than they were."""
        for child, before in self._buffers:
            for key, value in child._buffers.items():
                if value is not before.get(key) and value is not None:
                    yield key, value

    def restore(self) -> None:
        """Put every attribute, container and buffer entry back."""
        for _, child, before in self._owners:
            for key in [key for key in child.__dict__ if key not in before]:
                del child.__dict__[key]
            for key, value in before.items():
                if key not in _REGISTRIES:
                    child.__dict__[key] = value
        for child, buffers in self._buffers:
            child._buffers.clear()
            child._buffers.update(buffers)
        for copy in self._copies:
            copy.restore()
        for variable, value in self._variables:
            if variable.get() is not value:
                variable.set(value)

    def _keep(self, name: str, value: object, depth: int) -> None:
        if isinstance(value, (*_ATOMS, *_CODE, nn.Module)) or id(value) in self._seen:
            return
        if len(self._seen) >= _MAX_VALUES:
            self.complete = False
            return
        self._seen[id(value)] = value  # the reference keeps the id taken
        copy = _Copy(name, value)
        if copy.content is None:
            return
        self._copies.append(copy)
        items = copy.items()
        if depth < _MAX_DEPTH and len(items) <= _MAX_ITEMS:
            for item in items:
                self._keep(name, item, depth + 1)


class _Gone:
    pass


_GONE = _Gone()


class _Copy:
    """The content of one mutable value."""

    def __init__(self, name: str, value: object) -> None:
        self.name, self.value = name, value
        self.content = _content(value)

    def items(self) -> list[object]:
        if isinstance(self.content, dict):
            return list(cast("dict[object, object]", self.content).values())
        return (
            list(cast("list[object]", self.content)) if isinstance(self.content, list | tuple | set) else []
        )

    def differs(self) -> bool:
        return not _equal_content(self.content, _content(self.value, copy=False))

    def restore(self) -> None:
        if not self.differs():
            return
        value, content = cast("Any", self.value), cast("Any", self.content)
        if isinstance(value, Tensor):
            with torch.no_grad():
                value.copy_(content)
        elif isinstance(value, list):
            value[:] = content
        elif isinstance(value, dict | set):
            value.clear()
            value.update(content)
        elif isinstance(value, deque):
            value.clear()
            value.extend(content)
        elif hasattr(value, "dtype"):
            value[...] = content
        else:
            value.__dict__.clear()
            value.__dict__.update(content)


def _content(value: object, *, copy: bool = True) -> object | None:
    if isinstance(value, Tensor):
        detached = value.detach()
        return detached.clone() if copy else detached
    if isinstance(value, dict):
        return dict(cast("dict[object, object]", value)) if copy else value
    if isinstance(value, list | deque):
        return list(cast("list[object]", value))
    if isinstance(value, tuple):
        return cast("object", value)
    if isinstance(value, set):
        return set(cast("set[object]", value))
    if type(value).__module__ == "numpy" and hasattr(value, "dtype"):
        return cast("Any", value).copy() if copy else value
    attributes = getattr(value, "__dict__", None)
    return dict(cast("dict[object, object]", attributes)) if isinstance(attributes, dict) else None


def _equal_content(before: object, now: object) -> bool:
    if isinstance(before, Tensor) and isinstance(now, Tensor):
        return before.shape == now.shape and before.dtype == now.dtype and _same_bits(before, now)
    if isinstance(before, dict) and isinstance(now, dict):
        first, second = cast("dict[object, object]", before), cast("dict[object, object]", now)
        return list(first) == list(second) and all(map(_same, first.values(), second.values()))
    if isinstance(before, list | tuple) and isinstance(now, list | tuple):
        one, two = cast("list[object]", before), cast("list[object]", now)
        return len(one) == len(two) and all(map(_same, one, two))
    if isinstance(before, set):
        return before == now
    return bool(cast("Any", before).tobytes() == cast("Any", now).tobytes())


def _same_bits(first: Tensor, second: Tensor) -> bool:
    if first.layout is not torch.strided or first.device.type == "meta":
        return first is second
    return bool(torch.equal(first, second)) or bool(
        first.is_floating_point() and torch.equal(first.nan_to_num(), second.nan_to_num())
    )


def _same(before: object, now: object) -> bool:
    if before is now:
        return True
    return type(before) is type(now) and isinstance(before, _ATOMS) and (before == now or before != before)


def _tensors_in(name: str, value: object, depth: int) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    elif depth < _MAX_DEPTH and isinstance(value, dict | list | tuple | deque | set):
        items = cast("dict[object, object]", value).values() if isinstance(value, dict) else value
        for item in cast("list[object]", items):
            yield from _tensors_in(name, item, depth + 1)
