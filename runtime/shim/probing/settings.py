"""What a module's result depends on beside its arguments, parameters and buffers, read before every call."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false
# (torch annotates parts of itself incompletely)

from __future__ import annotations

import enum
import types
from collections.abc import Hashable, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedTensorMixin  # pyright: ignore

from .surroundings import Variable, is_library_object

SHAPELESS = "its parameters take their shape in this call"
COMPUTED = "its parameters are computed by the script (functional_call)"


def inspect(module: nn.Module, variables: Sequence[Variable] = ()) -> tuple[str | None, Hashable]:
    """Return what forbids to split any call of `module` now, and the settings that its result depends on.

    Args:
        module: the module to be called.
        variables: what its forward uses outside of it, see `surroundings`.
    """
    obstacle = (
        "forward-mode differentiation is active" if torch.autograd.forward_ad._current_level >= 0 else None
    )
    settings: list[Hashable] = [torch.is_grad_enabled()]
    for device in ("cpu", "cuda"):
        settings.append(torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device))
    if _user_hooks(*(getattr(nn.modules.module, name) for name in _GLOBAL_HOOKS)):
        obstacle = "a hook on all modules must see the whole batch"
    seen: dict[int, object] = {}
    for child in module.modules():
        _add_settings(child, settings, seen)
        found = _obstacle_of(child)
        if found == SHAPELESS:
            return SHAPELESS, None
        obstacle = found or obstacle
    settings += [_nested(variable.get(), 0, seen) for variable in variables]
    return obstacle, tuple(settings)


def _add_settings(module: nn.Module, settings: list[Hashable], seen: dict[int, object]) -> None:
    settings.append(type(module))
    for key, value in module.__dict__.items():  # before every call: the usual kinds first
        if type(value) in _PLAIN:
            settings.append(cast("Hashable", value))
        elif key not in _OWN_ATTRIBUTES:
            settings.append(_nested(value, 0, seen))


def _obstacle_of(module: nn.Module) -> str | None:
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


def _nested(value: object, depth: int, seen: dict[int, object]) -> Hashable:
    """What can be compared of a value: numbers, texts, functions, and containers and objects of such."""
    kind = type(value)
    if kind in _PLAIN or kind in _FUNCTIONS or isinstance(value, enum.Enum):
        return value
    if kind is types.MethodType:
        return cast("types.MethodType", value).__func__
    if isinstance(value, Tensor | nn.Module | type) or depth > _MAX_DEPTH:
        return kind
    if isinstance(value, dict | list | tuple | set | frozenset):
        return _container(cast("dict[object, object] | list[object]", value), depth, seen)
    attributes = getattr(value, "__dict__", None)
    if not isinstance(attributes, dict) or is_library_object(value):
        return kind
    if id(value) in seen:  # one configuration is shared by many layers
        return None
    seen[id(value)] = value
    return (kind, _nested(cast("dict[str, object]", attributes), depth + 1, seen))


def _container(values: dict[object, object] | list[object], depth: int, seen: dict[int, object]) -> Hashable:
    if len(values) > _MAX_ITEMS:
        return len(values)
    if isinstance(values, dict):
        return tuple(
            (key if type(key) in _PLAIN else None, _nested(item, depth + 1, seen))
            for key, item in values.items()
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
