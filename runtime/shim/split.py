"""Differentiable exchange between "outside" (the same on all ranks) and "inside" (this rank's rows).

Outside a split call values and gradients are equal on all ranks. Inside, values are this rank's rows and
gradients are N times the true gradient of those rows, so that *averaging* parameter gradients over the N
ranks is exact for what was computed inside and outside alike. Every function's backward is written with the
other ones, so gradients of gradients are exact too.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportPrivateUsage=false
# (torch annotates parts of itself incompletely, and not all that a shim needs is public)

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.autograd import Function

if TYPE_CHECKING:
    from ..collectives import Communicator
    from .report import Report


@dataclass(frozen=True, slots=True)
class Part:
    """How the rows of one call lie on the ranks.

    Args:
        comm: the ranks.
        rows: how many rows each rank has, in rank order.
        report: counts what is exchanged.
    """

    comm: Communicator
    rows: tuple[int, ...]
    report: Report

    @property
    def here(self) -> int:
        """Rows of this rank."""
        return self.rows[self.comm.rank]

    @property
    def before(self) -> int:
        """Rows of the ranks before this one."""
        return sum(self.rows[: self.comm.rank])

    @property
    def total(self) -> int:
        return sum(self.rows)

    @property
    def fraction(self) -> float:
        return self.here / self.total


def scatter(value: Tensor, dim: int, part: Part) -> Tensor:
    """Outside to inside: this rank's rows of `value` along `dim`."""
    return cast("Tensor", _Scatter.apply(value, dim, part))


def gather(value: Tensor, dim: int, part: Part) -> Tensor:
    """Inside to outside: the rows of all ranks along `dim`; a row may be several entries of that dim."""
    return cast("Tensor", _Gather.apply(value, dim, part))


def spread(value: Tensor, part: Part) -> Tensor:
    """Outside to inside for what every row shares: the value, and its gradient summed over the rows."""
    return cast("Tensor", _Spread.apply(value, part))


def combine(value: Tensor, weight: float, part: Part) -> Tensor:
    """Inside to outside: the sum over ranks of `weight * value`; a mean with the rows' fraction as weight."""
    return average(value * (weight * part.comm.size), part)


def average(value: Tensor, part: Part) -> Tensor:
    """Inside to outside: the mean over ranks."""
    return cast("Tensor", _Average.apply(value, part))


def total(value: Tensor, part: Part) -> Tensor:
    """Inside to inside: the sum over ranks, known to every rank (batch statistics)."""
    return cast("Tensor", _Total.apply(value, part))


def exchange_rows(value: Tensor, dim: int, part: Part) -> Tensor:
    """Concatenate the rows of all ranks along `dim`; any type, not differentiable, contiguous."""
    local = value.detach().movedim(dim, 0).contiguous()
    entries, rest = local.shape[0], local.shape[1:]
    per_row, remainder = divmod(entries, part.here)
    if remainder:
        raise AssertionError(f"{entries} entries along dim {dim} do not divide into {part.here} rows")
    row_bytes = per_row * rest.numel() * local.element_size()
    # Bytes, because transports know neither every type (bool, complex, float8) nor ragged sizes.
    data = torch.zeros(max(part.rows) * row_bytes, dtype=torch.uint8, device=part.comm.device)
    data[: part.here * row_bytes] = local.reshape(-1).view(torch.uint8)
    part.report.gathered_bytes += row_bytes * part.total
    part.report.collectives["gather"] += 1
    parts = part.comm.all_gather(data)
    pieces = [
        piece[: rows * row_bytes].view(local.dtype).view(rows * per_row, *rest)
        for piece, rows in zip(parts, part.rows, strict=True)
    ]
    return torch.cat(pieces).to(value.device).movedim(0, dim).contiguous()


def take_rows(value: Tensor, dim: int, part: Part) -> Tensor:
    """Return this rank's rows of `value` along `dim`, as a view."""
    per_row, remainder = divmod(value.shape[dim], part.total)
    if remainder:
        raise AssertionError(
            f"{value.shape[dim]} entries along dim {dim} do not divide into {part.total} rows"
        )
    return value.narrow(dim, part.before * per_row, part.here * per_row)


def _sum_over_ranks(value: Tensor, part: Part) -> Tensor:
    part.report.collectives["sum"] += 1
    result = value.detach().to(part.comm.device).clone(memory_format=torch.contiguous_format)
    flat = torch.view_as_real(result) if result.is_complex() else result
    part.comm.all_reduce(flat)
    return result.to(value.device)


class _Scatter(Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, dim: int, part: Part) -> Tensor:
        ctx.dim, ctx.part = dim, part
        return take_rows(value, dim, part).clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return gather(grads[0], ctx.dim, ctx.part) / ctx.part.comm.size, None, None


class _Gather(Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, dim: int, part: Part) -> Tensor:
        ctx.dim, ctx.part = dim, part
        return exchange_rows(value, dim, part)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return scatter(grads[0], ctx.dim, ctx.part) * ctx.part.comm.size, None, None


class _Spread(Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, part: Part) -> Tensor:
        ctx.part = part
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return average(grads[0], ctx.part), None


class _Average(Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, part: Part) -> Tensor:
        ctx.part = part
        return _sum_over_ranks(value, part) / part.comm.size

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return spread(grads[0], ctx.part), None


class _Total(Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, part: Part) -> Tensor:
        ctx.part = part
        return _sum_over_ranks(value, part)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return total(grads[0], ctx.part), None
