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
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor
from torch.utils.data import DataLoader

from .trees import flatten

if TYPE_CHECKING:
    from .session import Session


class Pass:
    """One pass over a loader: the script's iterator, and a `LoaderPosition` for the session."""

    def __init__(self, inner: Iterator[object], session: Session) -> None:
        self._inner, self._session = inner, session
        try:
            self._length: int | None = len(cast("Any", inner))
        except TypeError:
            self._length = None  # an iterable data set of unknown length
        self.batch_size, self.batches, self.rows = 1, 0, 0
        self.running = True
        session.loaders.append(self)

    @property
    def is_last(self) -> bool:
        """The batch handed out last is the final one of this pass; False where the length is unknown."""
        return self._length is not None and self.batches >= self._length

    def __iter__(self) -> Pass:
        return self

    def __len__(self) -> int:
        return len(cast("Any", self._inner))

    def __next__(self) -> object:
        try:
            batch = next(self._inner)
        except BaseException:
            self.running = False
            if self in self._session.loaders:
                self._session.loaders.remove(self)
            raise
        self.batch_size = _rows(batch)
        self.batches += 1
        self.rows += self.batch_size
        return batch

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
