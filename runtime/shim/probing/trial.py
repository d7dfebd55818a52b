"""One forward of a trial: what it gave, the statistics it shares with the others, how it fails."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false
# (torch annotates parts of itself incompletely)

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from ..region import entered, moments_of
from ..trees import Structure
from .decision import Full
from .watch import Operation

_FAINT = 1e-3  # parameters below it would hide what they multiply in the tolerance of a comparison


class Unsplittable(Exception):
    """This way of splitting does not work."""

    def __init__(self, reason: str, *, lasting: bool = False, undecided: bool = False) -> None:
        super().__init__(reason)
        self.full = Full(reason, lasting=lasting, undecided=undecided)


def does_not_run(error: Exception) -> str:
    """Word an error of a forward that got a part of the batch."""
    text = str(error).strip().split("\n")[0][:120]
    return f"it does not run on a part of the batch ({type(error).__name__}: {text})"


@dataclass(slots=True)
class Run:
    """What one watched forward gave.

    Args:
        arguments: the call's leaves as the forward got them: a piece of each.
        outputs, structure: the flattened output.
        operations: the operators that saw the batch.
        depends: for each output whether its value comes from the batch.
        written: the buffers it wrote, with their values.
        region: where it ran; its backward needs it.
    """

    arguments: list[object]
    outputs: list[object]
    structure: Structure
    operations: list[Operation]
    depends: list[bool]
    written: dict[str, Tensor]
    region: TrialRegion


class TrialRegion:
    """One forward of a trial; what is counted over the batch comes from the run with all samples.

    Args:
        fraction: the rows of this run divided by those of all; 1 records, less replays.
        counted: what is counted over the batch, in order, shared by the runs of one trial.
        shared: tells whether a tensor is the same for every sample.
    """

    updates_buffers = False

    def __init__(
        self, fraction: float, counted: list[Any], shared: Callable[[Tensor], bool] = lambda _: False
    ) -> None:
        self.fraction = fraction
        self.position = 0
        self._counted, self._shared = counted, shared

    def total(self, count: Tensor) -> Tensor:
        with _disable_current_modes():
            return cast("Tensor", self._take(lambda: count.detach().clone()))

    def moments(self, values: Tensor, dims: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        if self.position == len(self._counted) and self._shared(values):
            # Every process would count it once more.
            raise Unsplittable("batch norm is applied to something that all samples share")
        with _disable_current_modes(), torch.no_grad():
            fresh = lambda: moments_of(values.detach(), dims, lambda part: part)  # noqa: E731
            return cast("tuple[Tensor, Tensor, Tensor]", self._take(fresh))

    @contextmanager
    def running(self, position: int = 0) -> Generator[None]:
        before, self.position = self.position, position
        try:
            with entered(self):
                yield
        finally:
            if position:  # a recomputation in backward
                self.position = before

    def check_ended(self) -> None:
        """Raise `Unsplittable` unless this run counted as often as the run with all samples."""
        if self.position != len(self._counted):
            raise Unsplittable("it counts over the batch a varying number of times")

    def _take(self, fresh: Callable[[], object]) -> object:
        if self.position < len(self._counted):
            self.position += 1
            return self._counted[self.position - 1]
        if self.fraction < 1:
            raise Unsplittable("it counts over the batch a varying number of times")
        self._counted.append(fresh())
        self.position += 1
        return self._counted[-1]


@contextmanager
def shown_zeros(module: nn.Module) -> Generator[None]:
    """Give parameters and buffers that are all zero, nearly, or one, other values for a while.

    They would hide what they multiply; a one hides what is multiplied by one minus it.
    """
    hidden: list[tuple[Tensor, Tensor]] = []
    parameters = {id(parameter) for parameter in module.parameters()}
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.is_floating_point() and tensor.numel() and tensor.layout is torch.strided:
            values = tensor.data
            if float(values.abs().max()) < _FAINT or (
                id(tensor) not in parameters and bool((values == 1).all())
            ):
                count = torch.arange(tensor.numel(), dtype=torch.float32, device=tensor.device)
                tensor.data = (0.1 + 0.05 * torch.cos(count)).to(tensor.dtype).view(tensor.shape)
                hidden.append((tensor, values))
    try:
        yield
    finally:
        for tensor, values in hidden:
            tensor.data = values
