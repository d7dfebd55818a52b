"""What a module remembers outside its parameters: attributes and buffers, taken, compared, put back."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false
# (torch annotates parts of itself incompletely, and not all that a shim needs is public)

from __future__ import annotations

import types
from collections import deque
from collections.abc import Iterator, Sequence
from typing import cast

from torch import Tensor, nn

from .contents import GONE, Content, same
from .kinds import ATOMS, is_closed, is_installed_module, is_library_object
from .surroundings import Variable

_REGISTRIES = {"_parameters", "_buffers", "_modules"}
_SKIPPED = (*ATOMS, types.BuiltinFunctionType, types.ModuleType)
_MAX_DEPTH = 6
_MAX_ITEMS = 1000  # of one container that are followed; the container itself is compared in any case
_MAX_VALUES = 50_000


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
        self.obstacle: str | None = None  # why a change could stay unseen, or could not be put back
        self.outside: list[tuple[str, Tensor]] = []  # parameters and buffers of modules that are not its own
        self._contents: list[Content] = []
        self._buffers = [(child, dict(child._buffers)) for child in module.modules()]
        self._seen: dict[int, object] = {id(child): child for child in module.modules()}
        self._seen |= {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
        for name, child, attributes in self._owners:
            ours = not is_installed_module(type(child).__module__)
            for key, value in attributes.items():
                if key not in _REGISTRIES:
                    self._keep(f"{name}.{key}" if name else key, value, 0, ours=ours)
        self._variables = [(variable, variable.get()) for variable in variables]
        for variable, value in self._variables:
            self._keep(variable.name, value, 0, ours=variable.ours)

    def changed(self) -> list[str]:
        """Names of the attributes that differ now."""
        found = [
            f"{name}.{key}" if name else key
            for name, child, before in self._owners
            for key in {**before, **child.__dict__}
            if key not in _REGISTRIES and not same(before.get(key, GONE), child.__dict__.get(key, GONE))
        ]
        found += [content.name for content in self._contents if content.differs()]
        found += [variable.name for variable, before in self._variables if not same(before, variable.get())]
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
        for content in self._contents:
            content.restore()
        for variable, value in self._variables:
            if variable.get() is not value:
                variable.set(value)

    def _keep(self, name: str, value: object, depth: int, *, ours: bool) -> None:
        """Take the content of `value`, and of what it holds; `ours`: it is the script's, and no library's."""
        if id(value) in self._seen or _never_changes(value):
            return
        if len(self._seen) >= _MAX_VALUES:
            self.obstacle = "it holds too many objects to tell whether forward() changes one"
            return
        self._seen[id(value)] = value  # the reference keeps the id taken
        if isinstance(value, nn.Module):
            # Not copied here: whoever watches the forward copies what it is about to write.
            held = [
                tensor
                for tensor in (*value._parameters.values(), *value._buffers.values())
                if tensor is not None
            ]
            self._seen |= {id(tensor): tensor for tensor in held}
            self.outside += [(name, tensor) for tensor in held]
        if is_closed(value):
            if ours:
                kind = type(value).__name__
                self.obstacle = f"{name} is a {kind}, whose state a trial could not put back"
            return
        content = Content(name, value)
        if not content.exists:
            return
        self._contents.append(content)
        inside = content.values()
        ours = ours and not is_installed_module(type(value).__module__)
        if depth < _MAX_DEPTH and len(inside) <= _MAX_ITEMS:
            for item in inside:
                self._keep(
                    name, item, depth + 1, ours=ours and not is_installed_module(type(value).__module__)
                )


def _never_changes(value: object) -> bool:
    if isinstance(value, _SKIPPED) or value is GONE:
        return True
    if type(value).__module__.partition(".")[0] == "logging":
        return True  # what is logged is stopped before it is written
    return is_library_object(value) and not hasattr(value, "__dict__")


def _tensors_in(name: str, value: object, depth: int) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    elif depth < _MAX_DEPTH and isinstance(value, dict | list | tuple | deque | set):
        items = cast("dict[object, object]", value).values() if isinstance(value, dict) else value
        for item in cast("list[object]", items):
            yield from _tensors_in(name, item, depth + 1)
