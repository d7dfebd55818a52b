"""The gradient of several batches, gathered aside until an optimizer may use it."""

# pyright: reportUnknownMemberType=false, reportPrivateUsage=false, reportPrivateImportUsage=false
from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

if TYPE_CHECKING:
    from collections.abc import MutableMapping


class GradientAccumulator:
    """The weighted mean of gradients, for the parameters of one optimizer.

    With the rows of each batch as weights it is the gradient of a mean loss over all of those rows.
    """

    def __init__(self) -> None:
        self.weight = 0.0
        self._sums = cast("MutableMapping[Tensor, Tensor]", WeakTensorKeyDictionary())

    @torch.no_grad()
    def add(self, parameters: Iterable[Tensor], weight: float) -> None:
        """Add `weight` times what is in `.grad`; `.grad` itself is left as it is."""
        self.weight += weight
        sums: list[Tensor] = []
        gradients: list[Tensor] = []
        for parameter in parameters:
            gradient = parameter.grad
            if gradient is None:
                continue
            present = self._sums.get(parameter)
            if present is None:
                self._sums[parameter] = gradient.detach() * weight
            elif present.layout == torch.strided == gradient.layout:
                sums.append(present)
                gradients.append(gradient.detach())
            else:
                addend = gradient.detach() * weight
                # torch adds sparse to dense, not dense to sparse.
                dense_first = addend.layout == torch.strided
                self._sums[parameter] = addend + present if dense_first else present + addend
        if sums:
            torch._foreach_add_(sums, gradients, alpha=weight)

    @torch.no_grad()
    def fold(self) -> None:
        """Write the mean to `.grad` and forget it; a parameter without any gradient is left alone."""
        for parameter, total in list(self._sums.items()):
            parameter.grad = total.div_(self.weight)
        self.clear()

    def clear(self) -> None:
        """Drop what was gathered."""
        self._sums.clear()
        self.weight = 0.0
