"""What is known about a kind of call: how it is split, or why it is not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ..randomness import Draw


@dataclass(frozen=True, slots=True)
class Output:
    """How the parts of one output are put together.

    Args:
        how: rows: concatenated along `dim`; mean, sum: over the samples; same: equal on every rank; argument:
        one of the arguments itself.
        dim: under `rows`, the dim of the samples; under `argument`, the number of its leaf.
    """

    how: Literal["rows", "mean", "sum", "same", "argument"]
    dim: int = 0


@dataclass(frozen=True, slots=True)
class Split:
    """A call that may be split.

    Args:
        dims: for each leaf of the arguments the dim of the samples, None where every sample sees all of it.
        outputs: for each leaf of the output how its parts are put together.
        draws: the random operators of the forward.
        operations: the names of the operators that saw the batch.
    """

    dims: tuple[int | None, ...]
    outputs: tuple[Output, ...]
    draws: tuple[Draw, ...] = ()
    operations: tuple[str, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Full:
    """A call that every rank runs in full.

    Args:
        reason: why, for the report.
        lasting: it holds for this module in this mode, whatever the arguments.
        undecided: other values of the same arguments may show more.
    """

    reason: str
    lasting: bool = False
    undecided: bool = False
