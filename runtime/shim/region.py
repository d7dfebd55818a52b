"""The part of the batch that a forward is working on, for code that must know the whole of it."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportPrivateUsage=false
# (torch annotates parts of itself incompletely, and not all that a shim needs is public)

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Protocol, cast

import torch
import torch.utils.checkpoint
from torch import Tensor

from .randomness import Draw, WholeBatchDraws
from .split import Part, total

if TYPE_CHECKING:
    from .session import Session


class Region(Protocol):
    """A forward on some rows of a batch: on one rank of a split call, or in one run of a probe."""

    @property
    def fraction(self) -> float:
        """The rows here divided by the rows of the whole batch."""
        ...

    @property
    def updates_buffers(self) -> bool:
        """False where the forward must leave no trace (a probe)."""
        ...

    @property
    def position(self) -> int:
        """How many random draws have been made so far."""
        ...

    def total(self, count: Tensor) -> Tensor:
        """Return the sum of `count` over all parts of the batch; not differentiable."""
        ...

    def moments(self, values: Tensor, dims: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Return mean, biased variance and number of values over `dims` and over all parts."""
        ...

    def running(self, position: int = 0) -> AbstractContextManager[None]:
        """Work in this region, the first draw being number `position`."""
        ...


class _Current(threading.local):
    region: Region | None = None


_current = _Current()


def current() -> Region | None:
    """The region that this thread works in, or None outside a split call."""
    return _current.region


@contextmanager
def entered(region: Region) -> Generator[None]:
    """Make `region` the current one of this thread."""
    before, _current.region = _current.region, region
    try:
        yield
    finally:
        _current.region = before


class SplitRegion:
    """This rank's rows of a split call.

    Args:
        part: how the rows lie on the ranks.
        draws: the random operators of the forward, see `randomness`.
    """

    updates_buffers = True

    def __init__(self, part: Part, draws: Sequence[Draw]) -> None:
        self._part, self._draws = part, draws
        self._mode: WholeBatchDraws | None = None

    @property
    def fraction(self) -> float:
        return self._part.fraction

    @property
    def position(self) -> int:
        return self._mode.position if self._mode is not None else 0

    def total(self, count: Tensor) -> Tensor:
        return total(count.detach(), self._part)

    def moments(self, values: Tensor, dims: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        return moments_of(values, dims, lambda part_sum: total(part_sum, self._part))

    @contextmanager
    def running(self, position: int = 0) -> Generator[None]:
        part = self._part
        mode = None
        if self._draws:
            mode = WholeBatchDraws(
                self._draws, position, (part.before, part.here, part.total), part.comm.rank
            )
        before, self._mode = self._mode, mode
        try:
            with entered(self), mode if mode is not None else nullcontext():
                yield
        finally:
            self._mode = before


def moments_of(
    values: Tensor, dims: list[int], whole: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, biased variance and count over `dims` of all parts; `whole` sums over the parts."""
    here = values.numel() // values.shape[1]
    count = torch.full((1,), here, dtype=values.dtype, device=values.device)
    sums = whole(torch.cat([values.sum(dims), count]))
    count = sums[-1].detach()
    if here <= 1 and float(count) <= 1:
        raise ValueError(
            f"Expected more than 1 value per channel when training, got input size {list(values.shape)}"
        )
    mean = sums[:-1] / count
    centred = values - mean.view([1, -1] + [1] * (values.ndim - 2))
    return mean, whole((centred * centred).sum(dims)) / count, count


def install(session: Session) -> None:
    """Patch activation checkpointing: what it recomputes in backward runs in its forward's region."""
    module = torch.utils.checkpoint
    inner = cast("Callable[..., object]", module.checkpoint)

    @functools.wraps(inner)
    def checkpoint(function: Callable[..., object], *args: object, **kwargs: object) -> object:
        region = None if torch.compiler.is_compiling() else current()
        return inner(function if region is None else _bound(function, region), *args, **kwargs)

    session.patch(module, "checkpoint", checkpoint)


def _bound(function: Callable[..., object], region: Region) -> Callable[..., object]:
    position = region.position

    def run(*args: object, **kwargs: object) -> object:
        if current() is region:
            return function(*args, **kwargs)
        with region.running(position):
            return function(*args, **kwargs)

    return run
