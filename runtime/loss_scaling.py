"""Dynamic loss scaling for float16, agreed by all ranks, with gradients that are never seen scaled."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm
from torch.utils.weak import WeakTensorKeyDictionary

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from .collectives import Communicator


class LossScaler:
    """Multiplies what a backward starts from, and divides each watched gradient before it reaches `.grad`.

    So `.grad` always holds the true gradient: several optimizers, clipping, accumulation by the program and
    a change of the scale in between need no care. Small gradients survive inside the graph, where the types
    are narrow. The numbers are those of `torch.amp.GradScaler`, which leaves scaled gradients in `.grad`
    until a step and lets each rank judge its own.

    Usage: run a backward of `scaled_roots(...)` inside `backward()`; `overflowed(comm)` then tells, the
    same on all ranks, whether a gradient is useless; skip the steps that would use it and call `update`.

    Args:
        scale: the first scale.
        growth_factor: the scale grows by this after `growth_interval` good steps in a row.
        backoff_factor: the scale shrinks by this after an overflow.
        enlarged: inside the graph gradients are so many times the true ones already, and are averaged later.
    """

    def __init__(
        self,
        scale: float = 65536.0,
        *,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enlarged: int = 1,
    ) -> None:
        self.scale = scale
        self._enlarged = enlarged
        self._growth_factor, self._backoff_factor = growth_factor, backoff_factor
        self._growth_interval = growth_interval
        self._good_steps = 0
        self._scaled = False  # only a backward of scaled roots may be divided again
        self._arrived: list[Tensor] = []
        self._watched = cast("MutableMapping[Tensor, bool]", WeakTensorKeyDictionary())

    @property
    def _factor(self) -> float:
        """What roots are multiplied by, so that inside the graph the scale holds."""
        return self.scale / self._enlarged

    def watch(self, tensors: Iterable[Tensor]) -> None:
        """Unscale the gradients of these leaf tensors from now on; frozen ones too, they may thaw."""
        for tensor in tensors:
            if tensor in self._watched:
                continue
            self._watched[tensor] = True
            frozen = not tensor.requires_grad
            tensor.requires_grad_(True)  # torch takes hooks only now, and keeps them
            tensor.register_hook(self._unscale)
            tensor.register_post_accumulate_grad_hook(self._note)
            if frozen:
                tensor.requires_grad_(False)

    def scaled_roots(
        self, roots: Sequence[Tensor], gradients: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        """Return the gradients to start a backward of `roots` from, scaled."""
        return [
            torch.full_like(root, self._factor)
            if gradient is None and root.numel() == 1
            else _times(gradient, self._factor)
            for root, gradient in zip(roots, gradients, strict=True)
        ]

    @contextmanager
    def backward(self) -> Generator[None]:
        """Mark a backward of scaled roots."""
        self._scaled = True
        self._arrived.clear()
        try:
            yield
        finally:
            self._scaled = False

    def overflowed(self, comm: Communicator | None) -> Tensor:
        """Return 1 if the last backward gave any rank a gradient that is not finite, else 0. Collective.

        A tensor, because reading it makes the host wait for the device.
        """
        gradients = [_values(tensor.grad) for tensor in self._arrived if tensor.grad is not None]
        self._arrived.clear()
        device = (
            comm.device if comm is not None else gradients[0].device if gradients else torch.device("cpu")
        )
        flag = torch.zeros((), device=device)
        if gradients:
            largest = get_total_norm(gradients, norm_type=float("inf"))
            flag = (~largest.isfinite()).to(device, torch.float32)
        return flag if comm is None else comm.all_reduce(flag, "max")

    def update(self, overflowed: bool) -> None:
        """Adapt the scale after a step that was taken, or skipped because of an overflow."""
        if overflowed:
            self.scale *= self._backoff_factor
            self._good_steps = 0
            return
        self._good_steps += 1
        if self._good_steps == self._growth_interval:
            self.scale *= self._growth_factor
            self._good_steps = 0

    def _unscale(self, gradient: Tensor) -> Tensor:
        return gradient / self._factor if self._scaled else gradient

    def _note(self, tensor: Tensor) -> None:
        if self._scaled:
            self._arrived.append(tensor)


def _times(gradient: Tensor | None, scale: float) -> Tensor | None:
    return None if gradient is None else gradient * scale


def _values(gradient: Tensor) -> Tensor:
    gradient = gradient.detach()
    return gradient if gradient.layout == torch.strided else gradient.coalesce().values()
