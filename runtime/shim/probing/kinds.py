"""Kinds of Python values: those that never change, streams, objects of libraries, and closed ones."""

# pyright: reportUnknownMemberType=false
# (torch annotates parts of itself incompletely)

from __future__ import annotations

import functools
import io
import itertools
import random
import sys
import types
from collections.abc import Iterator

import torch
from torch import Tensor

from ..frames import is_installed

ATOMS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, type, range, slice)
CODE = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType, torch.Generator)

_LIBRARIES = frozenset({"torch", "numpy", "xl", "torchvision"})
# Modules of the standard library whose objects a forward may well change.
_HOLDING = frozenset(
    {
        "__main__", "_contextvars", "_io", "_queue", "_thread", "argparse", "array", "builtins",
        "collections", "contextvars", "dataclasses", "enum", "functools", "io", "os", "queue", "types",
    }
)  # fmt: skip
_STREAMS = (random.Random, itertools.count, torch.Generator)
_LOCKS = ("lock", "RLock")


def is_library(module: str) -> bool:
    """Whether this is a library whose variables no script of a user changes."""
    package = module.partition(".")[0]
    return package in _LIBRARIES or (package in sys.stdlib_module_names and package != "__main__")


@functools.cache
def is_installed_module(module: str) -> bool:
    """Whether this is an installed library, whose own state a trial does not look after."""
    return is_installed(getattr(sys.modules.get(module), "__file__", None) or "")


def is_library_object(value: object) -> bool:
    """Whether `value` is an object of a library, a logger say, that is no setting of a model."""
    kind = type(value)
    if isinstance(value, Tensor) or is_stream(value) or is_array(value) or kind.__name__ in _LOCKS:
        return kind.__name__ in _LOCKS
    return kind.__module__.partition(".")[0] not in _HOLDING and is_library(kind.__module__)


def is_stream(value: object) -> bool:
    """Whether `value` gives another number whenever it is asked, from a state that no trial puts back."""
    return isinstance(value, _STREAMS) or type(value).__module__.startswith("numpy.random")


def is_array(value: object) -> bool:
    """Whether `value` is an array, or a number, of numpy."""
    return type(value).__module__ == "numpy" and hasattr(value, "dtype")


def is_cached(value: object) -> bool:
    """Whether `value` is a function that keeps its results, by `functools.lru_cache` or `cache`."""
    return isinstance(value, functools._lru_cache_wrapper)  # pyright: ignore[reportPrivateUsage]


def is_closed(value: object) -> bool:
    """Whether `value` has a state that can neither be read nor put back: an iterator, a file."""
    if any(value is stream for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)):
        return False  # a trial stops what is written to them
    if isinstance(value, io.IOBase | memoryview):
        return True
    kind = type(value)
    readable = hasattr(value, "__dict__") or "__slots__" in vars(kind)
    return isinstance(value, Iterator) and not readable
