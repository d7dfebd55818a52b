"""What the compiled code of a function shows: the names it uses, and whether it asks for sizes."""

from __future__ import annotations

import dis
import types
from collections.abc import Iterator
from dataclasses import dataclass

_GLOBALS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL"})
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR"})
# By these a forward learns how many samples there are, or picks some by their place.
_SIZES = frozenset(
    {"shape", "size", "numel", "nelement", "chunk", "split", "tensor_split", "unfold", "narrow", "stride"}
)
_SLICES = frozenset({"BUILD_SLICE", "BINARY_SLICE", "STORE_SLICE"})
_BY_NAME = ("globals", "exec", "eval")


@dataclass(frozen=True, slots=True)
class Names:
    """What one function, and what is defined in it, names.

    Args:
        globals: names of globals, read or written.
        attributes: names of attributes, whatever they belong to.
        sees_sizes: it asks for a size, or slices.
        by_name: the builtin by which it reaches variables that its code does not name, or None.
    """

    globals: frozenset[str]
    attributes: frozenset[str]
    sees_sizes: bool
    by_name: str | None


def read(code: types.CodeType) -> Names:
    """Read the code of one function."""
    globals_: set[str] = set()
    attributes: set[str] = set()
    slices = False
    for inner in _codes(code):
        for instruction in dis.get_instructions(inner):
            if instruction.opname in _GLOBALS:
                globals_.add(str(instruction.argval))
            elif instruction.opname in _ATTRIBUTES:
                attributes.add(str(instruction.argval))
            slices = slices or instruction.opname in _SLICES
    sees_sizes = slices or "len" in globals_ or bool(attributes & _SIZES)
    by_name = next((name for name in _BY_NAME if name in globals_), None)
    return Names(frozenset(globals_), frozenset(attributes), sees_sizes, by_name)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)
