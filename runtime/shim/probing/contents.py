"""What can be changed in place in a Python value: taken, compared, put back."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (torch annotates parts of itself incompletely)

from __future__ import annotations

import array
import contextvars
import functools
import types
from collections import deque
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from .kinds import ATOMS, is_array

GONE = object()
"""The value of a variable or an attribute that does not exist."""


class Content:
    """The content of one value at one moment: its items, and its attributes.

    Args:
        name: how the script calls the value.
        value: any Python object.
    """

    __slots__ = ("_attributes", "_items", "name", "value")

    def __init__(self, name: str, value: object) -> None:
        self.name, self.value = name, value
        self._items = _items(value)
        self._attributes = attributes_of(value)

    @property
    def exists(self) -> bool:
        """Whether there is anything that can be changed."""
        return self._items is not None or self._attributes is not None

    def values(self) -> list[object]:
        """The values inside, which may have a content of their own."""
        found: list[object] = list((self._attributes or {}).values())
        if isinstance(self._items, dict):
            found += cast("dict[object, object]", self._items).values()
        elif isinstance(self._items, list | tuple | set | frozenset):
            found += cast("list[object]", self._items)
        return found

    def differs(self) -> bool:
        return not (
            _equal(self._items, _items(self.value, copy=False))
            and _equal(self._attributes, attributes_of(self.value))
        )

    def restore(self) -> None:
        """Put items and attributes back."""
        if self.differs():
            if self._items is not None:
                _restore_items(self.value, self._items)
            if self._attributes is not None:
                _restore_attributes(self.value, self._attributes)


def attributes_of(value: object) -> dict[str, object] | None:
    """The attributes of an object, in its dictionary and in slots; None: it can have none."""
    if isinstance(value, (*ATOMS, Tensor, types.ModuleType)):
        return None
    own = getattr(value, "__dict__", None)
    slots = _slots(type(value))
    if not isinstance(own, dict) and "__slots__" not in vars(type(value)):
        return None
    found = dict(cast("dict[str, object]", own)) if isinstance(own, dict) else {}
    for slot in slots:
        try:
            found[slot.__name__] = slot.__get__(value)
        except AttributeError:
            continue
    return found


def _slots(kind: type) -> tuple[types.MemberDescriptorType, ...]:
    return tuple(
        member
        for base in kind.__mro__
        if "__slots__" in vars(base)
        for member in vars(base).values()
        if isinstance(member, types.MemberDescriptorType)
    )


def _items(value: object, *, copy: bool = True) -> object | None:
    if isinstance(value, Tensor):
        detached = value.detach()
        return detached.clone() if copy else detached
    if isinstance(value, dict | types.MappingProxyType):
        return dict(cast("dict[object, object]", value))
    if isinstance(value, list | deque):
        return list(cast("list[object]", value))
    if isinstance(value, tuple | frozenset):
        return cast("object", value)
    if isinstance(value, set):
        return set(cast("set[object]", value))
    if is_array(value):
        return cast("Any", value).copy() if copy else value
    if isinstance(value, bytearray | array.array):
        return bytes(cast("bytearray", value))
    return _named(value)


def _named(value: object) -> object | None:
    """The parts of values of the standard library that are no plain containers."""
    if isinstance(value, contextvars.ContextVar):
        return (cast("contextvars.ContextVar[object]", value).get(GONE),)
    if isinstance(value, functools.partial):
        part = cast("functools.partial[object]", value)
        return (part.func, *part.args, *part.keywords.values())
    if isinstance(value, types.MethodType):
        return (value.__self__,)
    if isinstance(value, types.FunctionType):
        return tuple(map(_cell, value.__closure__ or ()))
    return None


def _cell(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return GONE


def _restore_items(value: object, items: object) -> None:
    target, content = cast("Any", value), cast("Any", items)
    if isinstance(value, Tensor):
        with torch.no_grad():
            target.copy_(content)
    elif isinstance(value, list | bytearray):
        target[:] = content
    elif isinstance(value, array.array):
        del target[:]
        target.frombytes(content)
    elif isinstance(value, dict | set | deque):
        target.clear()
        (target.extend if isinstance(value, deque) else target.update)(content)
    elif is_array(value):
        target[...] = content
    else:
        _restore_named(value, content)


def _restore_named(value: object, content: Sequence[object]) -> None:
    if isinstance(value, contextvars.ContextVar) and content[0] is not GONE:
        cast("contextvars.ContextVar[object]", value).set(content[0])
    elif isinstance(value, types.FunctionType):
        for cell, before in zip(value.__closure__ or (), content, strict=True):
            if _cell(cell) is not before and before is not GONE:
                cell.cell_contents = before


def _restore_attributes(value: object, attributes: dict[str, object]) -> None:
    slots = _slots(type(value))
    for slot in slots:  # past any `__setattr__` of the class
        if slot.__name__ in attributes:
            slot.__set__(value, attributes[slot.__name__])
        elif hasattr(value, slot.__name__):
            slot.__delete__(value)
    own = getattr(value, "__dict__", None)
    if isinstance(own, dict):
        in_slots = {slot.__name__ for slot in slots}
        own.clear()
        own.update((name, held) for name, held in attributes.items() if name not in in_slots)


def _equal(before: object, now: object) -> bool:
    if before is None or now is None:
        return before is now
    if isinstance(before, Tensor) and isinstance(now, Tensor):
        return before.shape == now.shape and before.dtype == now.dtype and _same_bits(before, now)
    if isinstance(before, dict) and isinstance(now, dict):
        first, second = cast("dict[object, object]", before), cast("dict[object, object]", now)
        return list(first) == list(second) and all(map(same, first.values(), second.values()))
    if isinstance(before, list | tuple) and isinstance(now, list | tuple):
        one, two = cast("Sequence[object]", before), cast("Sequence[object]", now)
        return len(one) == len(two) and all(map(same, one, two))
    if is_array(before):
        return bool(cast("Any", before).tobytes() == cast("Any", now).tobytes())
    return bool(before == now)


def _same_bits(first: Tensor, second: Tensor) -> bool:
    if first.layout is not torch.strided or first.device.type == "meta":
        return first is second
    return bool(torch.equal(first, second)) or bool(
        first.is_floating_point() and torch.equal(first.nan_to_num(), second.nan_to_num())
    )


def same(before: object, now: object) -> bool:
    """Whether two values are one object, or equal numbers or texts."""
    if before is now:
        return True
    return type(before) is type(now) and isinstance(before, ATOMS) and (before == now or before != before)
