"""The variables outside of a module that its forward uses: globals, class attributes, closures.

They are found in the compiled code of `forward`, of the script's functions that it names, and of the objects
that it holds. A value among them that changes is another setting of the module; one that a trial changes
shows a side effect.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import functools
import os
import types
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from . import bytecode
from .contents import GONE, attributes_of
from .kinds import ATOMS, is_cached, is_installed_module, is_library, is_library_object

_MAX_FUNCTIONS = 300
_MAX_DEPTH = 3
_MAX_ITEMS = 64
_METHODS = (types.FunctionType, types.MethodType, staticmethod, classmethod, property)


@dataclass(frozen=True, slots=True, eq=False)
class Variable:
    """A name and where it is kept.

    Args:
        owner: a namespace of globals, a class, or a closure's cell.
        name: as the code writes it.
        ours: it is the script's, and no installed library's.
    """

    owner: dict[str, object] | type | types.CellType
    name: str
    ours: bool = True

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
        obstacle: why that is not all that they use, or None.
    """

    variables: tuple[Variable, ...]
    sees_sizes: bool
    obstacle: str | None = None


NOTHING = Found((), sees_sizes=False)
"""What is found where nobody looks: in a world of one."""


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
            found = self._known[module] = search.run()
        return found

    def of(self, module: nn.Module) -> tuple[Variable, ...]:
        """Return the variables that the forwards of `module` and its submodules use."""
        return self.find(module).variables


@contextmanager
def uncached(variables: Sequence[Variable]) -> Generator[None]:
    """Let functions that keep their results compute for a while, and keep nothing."""
    cached = [(variable, value) for variable in variables if is_cached(value := variable.get())]
    for variable, value in cached:
        variable.set(cast("Any", value).__wrapped__)
    try:
        yield
    finally:
        for variable, value in cached:
            variable.set(value)


class _Search:
    def __init__(self) -> None:
        self._variables: dict[tuple[int, str], Variable] = {}
        self._sees_sizes = False
        self._obstacle: str | None = None
        self._waiting: list[types.FunctionType] = []
        self._seen: dict[int, object] = {}  # the reference keeps the id taken
        self._functions = 0
        self._classes: dict[type, None] = {}
        self._attributes: set[str] = set()

    def run(self) -> Found:
        """Follow every function that was entered, and those that it names."""
        before = -1
        while before != len(self._seen) + len(self._variables):
            before = len(self._seen) + len(self._variables)
            while self._waiting and self._functions < _MAX_FUNCTIONS:
                self._read(self._waiting.pop())
            for kind in tuple(self._classes):
                ours = not is_installed_module(kind.__module__)
                for name in self._attributes & vars(kind).keys():
                    self._take(Variable(kind, name, ours))
        sees_sizes = self._sees_sizes or bool(self._waiting)
        return Found(tuple(self._variables.values()), sees_sizes, self._obstacle)

    def enter_module(self, module: nn.Module) -> None:
        """Read the class and the attributes of one module; its children are others."""
        self._seen[id(module)] = module
        kind = type(module)
        if not is_library(kind.__module__):
            self._enter_class(kind)
            self._enter(getattr(kind, "forward", None))
        for name, value in module.__dict__.items():
            if name not in ("_parameters", "_buffers", "_modules"):
                self._explore(value)

    def _explore(self, value: object, depth: int = 0) -> None:
        """Enter the functions, modules and objects that `value` is or holds."""
        if isinstance(value, (*ATOMS, Tensor, types.ModuleType)) or id(value) in self._seen:
            return
        if isinstance(value, _METHODS):
            self._enter(value)
            return
        self._seen[id(value)] = value
        if isinstance(value, nn.Module):
            for child in value.modules():
                self.enter_module(child)
        elif isinstance(value, functools.partial):
            part = cast("functools.partial[object]", value)
            self._explore_all((part.func, *part.args, *part.keywords.values()), depth)
        elif isinstance(value, dict):
            self._explore_all(cast("dict[object, object]", value).values(), depth)
        elif isinstance(value, list | tuple | set | frozenset | deque):
            self._explore_all(cast("list[object]", value), depth)
        elif not is_library(type(value).__module__):
            self._enter_class(type(value))
            self._explore_all((attributes_of(value) or {}).values(), depth)

    def _explore_all(self, values: Iterable[object], depth: int) -> None:
        held = list(values)
        if depth < _MAX_DEPTH and len(held) <= _MAX_ITEMS:
            for value in held:
                self._explore(value, depth + 1)

    def _enter(self, value: object) -> None:
        if isinstance(value, types.MethodType):
            self._explore(value.__self__, _MAX_DEPTH - 1)
        if isinstance(value, types.MethodType | staticmethod | classmethod) or is_cached(value):
            value = getattr(value, "__func__", None) or cast("Any", value).__wrapped__
        if isinstance(value, property):
            value = value.fget
        if not isinstance(value, types.FunctionType) or id(value) in self._seen:
            return
        if not is_library(str(value.__module__)):
            self._seen[id(value)] = value
            self._functions += 1
            self._waiting.append(value)

    def _enter_class(self, kind: type) -> None:
        for base in kind.__mro__:
            if is_library(base.__module__) or base in self._classes or base.__module__ == "builtins":
                continue
            self._classes[base] = None
            for name, value in vars(base).items():
                # Called without being named; a constructor is named by its class.
                if name.startswith("__") and name not in ("__init__", "__new__"):
                    self._enter(value)

    def _read(self, function: types.FunctionType) -> None:
        ours = not is_installed_module(str(function.__module__))
        self._take_held_by(function, ours)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
            self._take(Variable(cell, name, ours))
        names = bytecode.read(function.__code__)
        self._sees_sizes = self._sees_sizes or names.sees_sizes
        if names.by_name is not None:
            self._obstacle = f"it reaches variables by {names.by_name}()"
        self._attributes |= names.attributes
        for name in names.globals:
            if name in function.__globals__:
                self._take(Variable(function.__globals__, name, ours), names.attributes)

    def _take_held_by(self, function: types.FunctionType, ours: bool) -> None:
        """What a function keeps itself: attributes, and the defaults of its arguments."""
        defaults: dict[str, object] = {"default": function.__defaults__} if function.__defaults__ else {}
        for name in function.__dict__.keys() - {"__wrapped__"}:
            self._take(Variable(function.__dict__, name, ours))
        for owner in (function.__kwdefaults__ or {}, defaults):
            for name, value in owner.items():
                if not isinstance(value, (*ATOMS, types.FunctionType)):
                    self._take(Variable(owner, name, ours))

    def _take(self, variable: Variable, attributes: frozenset[str] = frozenset()) -> None:
        key = (id(variable.owner), variable.name)
        if key in self._variables:
            return
        value = variable.get()
        if isinstance(value, types.ModuleType):
            self._take_from(value, attributes)
        elif isinstance(value, type):
            if not is_library(value.__module__):
                self._enter_class(value)
        elif is_cached(value):
            self._variables[key] = variable
            self._enter(value)
        elif isinstance(value, _METHODS):
            self._enter(value)
        elif isinstance(value, nn.Module) or not (
            isinstance(value, types.BuiltinFunctionType) or is_library_object(value)
        ):
            self._variables[key] = variable
            self._explore(value)

    def _take_from(self, module: types.ModuleType, attributes: frozenset[str]) -> None:
        if module is os and "environ" in attributes | self._attributes:
            self._variables[id(os), "environ"] = Variable(os.__dict__, "environ")
        if not is_library(module.__name__):
            ours = not is_installed_module(module.__name__)
            for name in attributes & vars(module).keys():
                self._take(Variable(vars(module), name, ours))
