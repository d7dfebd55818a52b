"""Batch norm inside a split call: statistics of the whole batch, on any device and with any rows."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportPrivateUsage=false
# (torch annotates parts of itself incompletely, and not all that a shim needs is public)

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from .region import current

if TYPE_CHECKING:
    from collections.abc import Callable

    from .session import Session


def install(session: Session) -> None:
    """Patch `batch_norm`; outside a split call it is as before."""
    session.patch(nn.functional, "batch_norm", _with_whole_statistics(nn.functional.batch_norm))


def _with_whole_statistics(inner: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(inner)
    def batch_norm(
        input: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        region = None if torch.compiler.is_compiling() else current()
        if region is None or not training:
            return inner(input, running_mean, running_var, weight, bias, training, momentum, eps)
        # Half types are summed in float32, as the fused kernels do.
        values = input if input.dtype == torch.float64 else input.float()
        mean, variance, count = region.moments(values, [dim for dim in range(input.ndim) if dim != 1])
        if region.updates_buffers:
            _update(running_mean, mean, momentum)
            _update(running_var, variance * (count / (count - 1)), momentum)
        shape = [1, -1] + [1] * (input.ndim - 2)
        normal = (values - mean.view(shape)) * torch.rsqrt(variance + eps).view(shape)
        if weight is not None:
            normal = normal * weight.view(shape)
        if bias is not None:
            normal = normal + bias.view(shape)
        return normal.to(input.dtype)

    return cast("Callable[..., Tensor]", batch_norm)


def _update(running: Tensor | None, value: Tensor, momentum: float) -> None:
    if running is not None:
        with torch.no_grad():
            # The fused kernel's formula, so that rounding is the same.
            running.mul_(1 - momentum).add_(value.detach().to(running.dtype), alpha=momentum)
