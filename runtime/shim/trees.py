"""Nested arguments and outputs as a list of leaves, and back: dicts, lists, tuples, dataclasses."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Hashable, Iterator
from typing import cast

import torch
from torch.nn.utils.rnn import PackedSequence

Structure = Hashable
"""The nesting without the leaves; equal for two trees whose leaves correspond one to one."""

LEAF: Structure = "leaf"


def flatten(tree: object) -> tuple[list[object], Structure]:
    """Return the leaves from left to right and the structure around them."""
    leaves: list[object] = []
    return leaves, _walk(tree, leaves)


def rebuild(tree: object, leaves: list[object]) -> object:
    """Return a copy of `tree` with its leaves replaced from left to right."""
    values = iter(leaves)
    return _replace(tree, lambda _: next(values))


def same_tree(tree: object, leaves: list[object], structure: Structure) -> bool:
    """Whether `tree` still has that structure and holds these very leaves."""
    found, now = flatten(tree)
    return now == structure and all(a is b for a, b in zip(found, leaves, strict=True))


def map_leaves(tree: object, function: Callable[[object], object]) -> object:
    """Return a copy of `tree` with `function` applied to every leaf."""
    return _replace(tree, function)


def _walk(node: object, leaves: list[object]) -> Structure:
    if isinstance(node, dict):
        items = cast("dict[Hashable, object]", node)
        return (type(items), tuple(items), tuple(_walk(value, leaves) for value in items.values()))
    if isinstance(node, list) or _is_tuple(node):
        values = cast("list[object]", node)
        return (type(values), tuple(_walk(value, leaves) for value in values))
    names = _field_names(node)
    if names is not None:
        return (type(node), names, tuple(_walk(getattr(node, name), leaves) for name in names))
    leaves.append(node)
    return LEAF


def _replace(node: object, function: Callable[[object], object]) -> object:
    if isinstance(node, dict):
        items = cast("dict[Hashable, object]", node)
        fresh = copy.copy(items)  # keeps subclasses, their default factory and attributes
        for key, value in items.items():
            fresh[key] = _replace(value, function)
        return fresh
    if isinstance(node, list) or _is_tuple(node):
        return _replace_sequence(cast("object", node), function)
    names = _field_names(node)
    if names is not None:
        changed = copy.copy(node)
        for name in names:
            object.__setattr__(changed, name, _replace(getattr(node, name), function))
        return changed
    return function(node)


def _replace_sequence(node: object, function: Callable[[object], object]) -> object:
    values: Iterator[object] = (_replace(value, function) for value in cast("list[object]", node))
    kind = cast("Callable[..., object]", type(node))
    if kind is list:
        return list(values)
    if isinstance(node, list):
        fresh = copy.copy(cast("list[object]", node))
        fresh[:] = values
        return fresh
    return kind(*values) if hasattr(node, "_fields") else kind(values)


def _is_tuple(node: object) -> bool:
    return isinstance(node, tuple) and not isinstance(node, torch.Size | PackedSequence)


def _field_names(node: object) -> tuple[str, ...] | None:
    if not dataclasses.is_dataclass(node) or isinstance(node, type):
        return None
    return tuple(field.name for field in dataclasses.fields(node))
