"""Mean losses with class weights or ignored targets in a split call: divided by the whole batch's count."""

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
    """Patch `cross_entropy` and `nll_loss`; outside a split call they are as before."""
    for name in ("cross_entropy", "nll_loss"):
        session.patch(nn.functional, name, _with_whole_count(getattr(nn.functional, name)))


def _with_whole_count(inner: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(inner)
    def loss(
        input: Tensor,
        target: Tensor,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
        **more: object,
    ) -> Tensor:
        region = None if torch.compiler.is_compiling() else current()
        legacy = size_average is not None or reduce is not None
        if region is None or reduction != "mean" or legacy or target.is_floating_point():
            return inner(
                input, target, weight, size_average, ignore_index, reduce, reduction, **more
            )  # targets given as probabilities are averaged over all samples, which needs no count
        valid = target != ignore_index
        counted = valid if weight is None else weight[torch.where(valid, target, 0)] * valid
        whole = region.total(counted.sum().to(torch.float64))
        summed = inner(input, target, weight=weight, ignore_index=ignore_index, reduction="sum", **more)
        # The parts are put together weighted by their fraction of the rows, so that is taken out here.
        return summed / (whole * region.fraction).to(summed.dtype)

    return cast("Callable[..., Tensor]", loss)
