"""What a module's result depends on beside its arguments, parameters and buffers, read before every call."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false
# (torch annotates parts of itself incompletely)

from __future__ import annotations

import array
import contextvars
import enum
import functools
import hashlib
import os
import types
from collections import deque
from collections.abc import Collection, Hashable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedTensorMixin  # pyright: ignore

from .contents import attributes_of
from .kinds import is_array, is_library_object
from .surroundings import Found, Variable

SHAPELESS = "its parameters take their shape in this call"
COMPUTED = "its parameters are computed by the script (functional_call)"


def obstacle_of(module: nn.Module, found: Found) -> str | None:
    """Return what forbids to split any call of `module` now, or None.

    Args:
        module: the module to be called.
        found: what the code of its forwards shows.
    """
    obstacle = found.obstacle
    if torch.autograd.forward_ad._current_level >= 0:
        obstacle = "forward-mode differentiation is active"
    if _user_hooks(*(getattr(nn.modules.module, name) for name in _GLOBAL_HOOKS)):
        obstacle = "a hook on all modules must see the whole batch"
    for child in module.modules():
        here = _obstacle_here(child)
        if here == SHAPELESS:
            return SHAPELESS
        obstacle = here or obstacle
    return obstacle


def settings_of(module: nn.Module, variables: Sequence[Variable] = ()) -> Hashable:
    """Return the settings that the result of a call of `module` depends on now, to be compared.

    Args:
        module: the module to be called.
        variables: what its forward uses outside of it, see `surroundings`.
    """
    settings: list[Hashable] = [torch.is_grad_enabled(), torch.get_default_dtype()]
    for device in ("cpu", "cuda"):
        settings.append(torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device))
    children = list(module.modules())
    seen: dict[int, object] = {id(child): child for child in children}
    for child in children:
        _add_settings(child, settings, seen)
    settings += [_nested(variable.get(), 0, seen) for variable in variables]
    return tuple(settings)


def _add_settings(module: nn.Module, settings: list[Hashable], seen: dict[int, object]) -> None:
    settings.append(type(module))
    settings += [p is not None and p.requires_grad for p in module._parameters.values()]
    for key, value in module.__dict__.items():  # before every call: the usual kinds first
        if type(value) in _PLAIN:
            settings.append(cast("Hashable", value))
        elif key not in _OWN_ATTRIBUTES:
            settings.append(_nested(value, 0, seen))


def _obstacle_here(module: nn.Module) -> str | None:
    """What forbids to split a call that runs this module, its children aside."""
    attributes, obstacle = module.__dict__, None
    for name in _HOOKS:
        if attributes[name] and _user_hooks(attributes[name]):
            obstacle = f"a hook on {type(module).__name__} must see the whole batch"
    for parameter in module._parameters.values():
        if parameter is None:
            continue
        if type(parameter) is not nn.Parameter and isinstance(parameter, UninitializedTensorMixin):
            return SHAPELESS
        if not parameter.is_leaf:
            obstacle = COMPUTED
    return obstacle


_PLAIN = frozenset({bool, int, float, str, type(None)})
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)
_OWN_ATTRIBUTES = frozenset(nn.Module().__dict__)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS = tuple(f"_global{name}" for name in _HOOKS)
_MAX_DEPTH = 4
_MAX_ITEMS = 64  # a longer container holds data and no settings; its length counts
_MAX_BYTES = 2**20


def _nested(value: object, depth: int, seen: dict[int, object]) -> Hashable:
    """What can be compared of a value: numbers, texts, functions, and containers and objects of such."""
    kind = type(value)
    if kind in _PLAIN or kind in _FUNCTIONS or isinstance(value, enum.Enum):
        return value
    if kind is types.MethodType:
        method = cast("types.MethodType", value)
        return (method.__func__, _nested(method.__self__, depth + 1, seen))
    if isinstance(value, nn.Module):
        return _outside(value, seen)
    if isinstance(value, Tensor | type) or depth > _MAX_DEPTH:
        return kind
    if isinstance(value, dict | list | tuple | set | frozenset | deque):
        return _container(cast("Collection[object]", value), depth, seen)
    if isinstance(value, bytearray | array.array) or is_array(value):
        return (kind, *_numbers(value))
    held = _held(value)
    if held is None or id(value) in seen:  # one configuration is shared by many layers
        return kind if held is None else None
    seen[id(value)] = value
    return (kind, _nested(held, depth + 1, seen))


def _outside(module: nn.Module, seen: dict[int, object]) -> Hashable:
    """The settings of a module that is used, and is no child."""
    settings: list[Hashable] = []
    for child in module.modules():
        if id(child) not in seen:
            seen[id(child)] = child
            _add_settings(child, settings, seen)
    return tuple(settings)


def _held(value: object) -> object | None:
    """The values that an object holds."""
    if isinstance(value, os._Environ):
        return tuple(cast("os._Environ[str]", value).items())
    if isinstance(value, contextvars.ContextVar):
        return (cast("contextvars.ContextVar[object]", value).get(None),)
    if isinstance(value, functools.partial):
        part = cast("functools.partial[object]", value)
        return (part.func, part.args, part.keywords)
    return None if is_library_object(value) else attributes_of(value)


def _numbers(value: object) -> tuple[Hashable, ...]:
    """The values of an array, or their digest; a large one holds data, and its size counts."""
    view = memoryview(value) if isinstance(value, bytearray | array.array) else None
    content = cast("Any", value)
    size: int = content.nbytes if view is None else view.nbytes
    shape: Hashable = (content.shape, str(content.dtype)) if view is None else size
    if size > _MAX_BYTES:
        return (shape,)
    return shape, hashlib.blake2b(content.tobytes() if view is None else view, digest_size=16).digest()


def _container(values: Collection[object], depth: int, seen: dict[int, object]) -> Hashable:
    if len(values) > _MAX_ITEMS:
        return len(values)
    if isinstance(values, dict):
        return tuple(
            (key if type(key) in _PLAIN else None, _nested(item, depth + 1, seen))
            for key, item in cast("dict[object, object]", values).items()
        )
    return (type(values), *(_nested(item, depth + 1, seen) for item in values))


def _user_hooks(*registries: dict[int, object]) -> bool:
    """Whether there are hooks of the user; torch's own (weight norm, pruning) only look at parameters."""
    return any(
        not str(getattr(type(hook), "__module__", "")).startswith("torch.nn.utils")
        for registry in registries
        if registry
        for hook in registry.values()
    )
