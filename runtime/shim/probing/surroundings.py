"""The variables outside of a module that its forward uses: globals, class attributes, closures.

They are found in the compiled code of `forward` and of the script's functions that it names. A value among
them that changes is another setting of the module; one that a trial changes shows a side effect.
"""

from __future__ import annotations

import dis
import itertools
import random
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

_MAX_FUNCTIONS = 300
_GLOBALS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL"})
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR"})
_FOREIGN = frozenset({"torch", "numpy", "xl", "torchvision"})
# By these a forward learns how many samples there are, or picks some by their place.
_SIZES = frozenset(
    {"shape", "size", "numel", "nelement", "chunk", "split", "tensor_split", "unfold", "narrow", "stride"}
)
_SLICES = frozenset({"BUILD_SLICE", "BINARY_SLICE", "STORE_SLICE"})

GONE = object()
"""The value of a variable that does not exist."""


@dataclass(frozen=True, slots=True, eq=False)
class Variable:
    """A name and where it is kept.

    Args:
        owner: a namespace of globals, a class, or a closure's cell.
        name: as the code writes it.
    """

    owner: dict[str, object] | type | types.CellType
    name: str

    def get(self) -> object:
        if isinstance(self.owner, types.CellType):
            try:
                return self.owner.cell_contents
            except ValueError:
                return GONE
        return (self.owner if isinstance(self.owner, dict) else vars(self.owner)).get(self.name, GONE)

    def set(self, value: object) -> None:
        """Bind the name to `value` again, or unbind it."""
        if isinstance(self.owner, types.CellType):
            if value is GONE:
                del self.owner.cell_contents
            else:
                self.owner.cell_contents = value
        elif isinstance(self.owner, dict):
            if value is GONE:
                self.owner.pop(self.name, None)
            else:
                self.owner[self.name] = value
        elif value is GONE:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, value)


@dataclass(frozen=True, slots=True)
class Found:
    """What the code of a module's forwards shows.

    Args:
        variables: what they use outside of the module.
        sees_sizes: they ask for a size, or slice, so that the number of samples may decide something.
    """

    variables: tuple[Variable, ...]
    sees_sizes: bool


class Surroundings:
    """Reads the code of modules, once for each."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[nn.Module, Found] = WeakKeyDictionary()

    def find(self, module: nn.Module) -> Found:
        """Return what the code of the forwards of `module` and its submodules shows."""
        found = self._known.get(module)
        if found is None:
            search = _Search()
            for child in module.modules():
                search.enter_module(child)
            search.run()
            found = self._known[module] = Found(tuple(search.found.values()), search.sees_sizes)
        return found

    def of(self, module: nn.Module) -> tuple[Variable, ...]:
        """Return the variables that the forwards of `module` and its submodules use."""
        return self.find(module).variables


class _Search:
    def __init__(self) -> None:
        self.found: dict[tuple[int, str], Variable] = {}
        self.sees_sizes = False
        self._waiting: list[types.FunctionType] = []
        self._entered: dict[int, types.FunctionType] = {}  # the reference keeps the id taken
        self._classes: list[type] = []

    def run(self) -> None:
        """Follow every function that was entered, and those that it names."""
        while self._waiting and len(self._entered) < _MAX_FUNCTIONS:
            self._read(self._waiting.pop())
        self.sees_sizes = self.sees_sizes or bool(self._waiting)

    def enter_module(self, module: nn.Module) -> None:
        kind = type(module)
        if not _is_foreign(kind.__module__):
            self._enter_class(kind)
            self._enter(getattr(kind, "forward", None))
        for value in module.__dict__.values():
            if isinstance(value, types.FunctionType | types.MethodType):
                self._enter(value)

    def _enter(self, value: object) -> None:
        if isinstance(value, types.MethodType | staticmethod | classmethod):
            value = cast("Any", value).__func__
        if isinstance(value, property):
            value = value.fget
        if not isinstance(value, types.FunctionType) or id(value) in self._entered:
            return
        if not _is_foreign(str(value.__module__)):
            self._entered[id(value)] = value
            self._waiting.append(value)

    def _enter_class(self, kind: type) -> None:
        self._classes += [
            base for base in kind.__mro__ if not _is_foreign(base.__module__) and base not in self._classes
        ]

    def _read(self, function: types.FunctionType) -> None:
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
            self._take(Variable(cell, name))
        globals_, attributes = _names(function.__code__)
        sizes = attributes & _SIZES or "len" in globals_ or _slices(function.__code__)
        self.sees_sizes = self.sees_sizes or bool(sizes)
        for name in globals_:
            if name in function.__globals__:
                self._take(Variable(function.__globals__, name), attributes)
        for kind in self._classes:
            for name in attributes & vars(kind).keys():
                self._take(Variable(kind, name), attributes)

    def _take(self, variable: Variable, attributes: frozenset[str] = frozenset()) -> None:
        key = (id(variable.owner), variable.name)
        if key in self.found:
            return
        value = variable.get()
        if isinstance(value, types.ModuleType):
            if not _is_foreign(value.__name__):
                for name in attributes & vars(value).keys():
                    self._take(Variable(vars(value), name))
        elif isinstance(value, type):
            if not _is_foreign(value.__module__):
                self._enter_class(value)
        elif isinstance(value, types.FunctionType | types.MethodType | staticmethod | classmethod | property):
            self._enter(cast("object", value))
        elif not isinstance(value, types.BuiltinFunctionType | nn.Module) and not is_library_object(value):
            self.found[key] = variable


def _names(code: types.CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """The globals and the attributes that `code`, and what is defined in it, names."""
    globals_: set[str] = set()
    attributes: set[str] = set()
    for inner in _codes(code):
        for instruction in dis.get_instructions(inner):
            if instruction.opname in _GLOBALS:
                globals_.add(str(instruction.argval))
            elif instruction.opname in _ATTRIBUTES:
                attributes.add(str(instruction.argval))
    return frozenset(globals_), frozenset(attributes)


def _slices(code: types.CodeType) -> bool:
    return any(
        instruction.opname in _SLICES for inner in _codes(code) for instruction in dis.get_instructions(inner)
    )


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _is_foreign(module: str) -> bool:
    """Whether this is a library whose variables no script of a user changes."""
    package = module.partition(".")[0]
    return package in _FOREIGN or (package in sys.stdlib_module_names and package != "__main__")


def is_library_object(value: object) -> bool:
    """Whether `value` is an object of a library, a logger say, that is no setting of a model."""
    module = type(value).__module__
    if isinstance(value, Tensor) or is_stream(value) or (module == "numpy" and hasattr(value, "dtype")):
        return False
    return module not in ("builtins", "collections", "types", "argparse", "enum") and _is_foreign(module)


def is_stream(value: object) -> bool:
    """Whether `value` gives another number whenever it is asked, from a state that no trial puts back."""
    kinds = (random.Random, itertools.count, torch.Generator)
    return isinstance(value, kinds) or type(value).__module__.startswith("numpy.random")
