"""Where the script is in its data loaders: accumulation weighs batches and ends a window with the pass.

The loader is never rebuilt and nothing is fetched ahead: its random numbers are drawn when the script asks.
Every rank reads the same batches; a loader that is not seeded is found by the checksum of the next module
call.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportPrivateUsage=false
# (torch annotates parts of itself incompletely, and not all that a shim needs is public)

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor
from torch.utils.data import DataLoader

from .trees import flatten

if TYPE_CHECKING:
    from .session import Session


@dataclass(eq=False)
class Position:
    """Where the script is in one pass, see `session.LoaderPosition`; does not keep the pass alive.

    Args:
        length: batches of the pass; None for an iterable data set of unknown length.
    """

    length: int | None
    batch_size: int = 1
    batches: int = 0
    rows: int = 0
    running: bool = True

    @property
    def is_last(self) -> bool:
        """The batch handed out last is the final one of this pass; False where the length is unknown."""
        return self.length is not None and self.batches >= self.length


class Pass:
    """The script's iterator over a loader. The pass ends with the data, or when the script drops it."""

    def __init__(self, inner: Iterator[object], session: Session) -> None:
        self._inner, self._positions = inner, session.loaders
        try:
            length: int | None = len(cast("Any", inner))
        except TypeError:
            length = None
        self._position = Position(length)
        self._positions.append(self._position)

    def __iter__(self) -> Pass:
        return self

    def __len__(self) -> int:
        return len(cast("Any", self._inner))

    def __next__(self) -> object:
        try:
            batch = next(self._inner)
        except BaseException:
            self._end()
            raise
        position = self._position
        position.batch_size = _rows(batch)
        position.batches += 1
        position.rows += position.batch_size
        if position.running and position is not self._positions[-1]:
            self._positions.remove(position)
            self._positions.append(position)
        return batch

    def _end(self) -> None:
        if self._position.running:
            self._position.running = False
            self._positions.remove(self._position)

    def __del__(self) -> None:
        if "_position" in self.__dict__:
            self._end()

    def __getattr__(self, name: str) -> object:
        return getattr(self.__dict__["_inner"], name)


def install(session: Session) -> None:
    """Patch `DataLoader.__iter__`."""
    inner = cast("Callable[[object], Iterator[object]]", DataLoader.__iter__)
    process = os.getpid()

    def start(loader: object) -> Iterator[object]:
        iterator = inner(loader)
        if session.aside is not None or os.getpid() != process:
            return iterator
        return Pass(iterator, session)

    session.patch(DataLoader, "__iter__", start)


def _rows(batch: object) -> int:
    leaves, _ = flatten(batch)
    sizes = [leaf.shape[0] for leaf in leaves if isinstance(leaf, Tensor) and leaf.ndim]
    return max(1, sizes[0]) if sizes else 1
