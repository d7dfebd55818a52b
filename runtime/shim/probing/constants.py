"""Runs operators so that a trial can be undone and repeated: no chance, and writes are copied first."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false
# (torch annotates parts of itself incompletely)

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..randomness import constant_instead, is_random


class Constants(TorchDispatchMode):
    """While active, random operators are constant, and parameters and buffers can be put back.

    Args:
        state: parameters and buffers with their names; what is about to be written is copied first.
    """

    def __init__(self, state: Sequence[tuple[str, Tensor]]) -> None:
        super().__init__()
        self._state = {storage_key(tensor): (name, tensor) for name, tensor in state}
        self._saved: dict[int, tuple[Tensor, Tensor]] = {}

    def restore(self) -> None:
        """Put back every parameter and buffer that was written."""
        with torch.no_grad():
            for tensor, before in self._saved.values():
                # Not through the version counter: a backward of this forward may still come.
                tensor.data.copy_(before)

    def written(self) -> list[tuple[str, Tensor]]:
        """Parameters and buffers that were written, with their names."""
        return [self._state[key] for key in self._saved]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not hasattr(func, "_schema"):
            return func(*args, **kwargs)
        for tensor in written_by(func, args, kwargs):
            self.save(tensor)
        return (
            constant_instead(func, args, kwargs) if is_random(func, args, kwargs) else func(*args, **kwargs)
        )

    def save(self, tensor: Tensor) -> None:
        """Copy `tensor`, which is about to be written, if it is a parameter or a buffer."""
        key = storage_key(tensor)
        if key in self._state and key not in self._saved:
            original = self._state[key][1]
            self._saved[key] = (original, original.detach().clone())


def storage_key(tensor: Tensor) -> int:
    """The storage: views and in-place operators share it."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        return id(tensor)
    return tensor.untyped_storage()._cdata


def written_by(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """The arguments that an operator writes."""
    found: list[Tensor] = []
    for index, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[index] if index < len(args) else kwargs.get(argument.name)
            found += [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
    return found
