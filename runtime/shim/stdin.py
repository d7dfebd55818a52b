"""Standard input under several processes: only rank 0 has it, so a plain script that reads it is refused."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING, NoReturn

from ...configs.errors import XlError

if TYPE_CHECKING:
    from .session import Session


class NoInput(io.TextIOBase):
    """Stands for `sys.stdin` on ranks above 0: they would read an end of file where rank 0 reads a line."""

    @property
    def buffer(self) -> NoReturn:
        """Refused, as every read."""
        self._refuse()

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> NoReturn:
        self._refuse()

    def readline(self, size: int = -1, /) -> NoReturn:  # pyright: ignore[reportIncompatibleMethodOverride]
        self._refuse()

    def __next__(self) -> NoReturn:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise XlError(
            "the script reads standard input, and it runs on several processes",
            "only rank 0 has the input; the other processes would go on with something else",
            "give the value as an argument or in a file, or pass --num-processes 1",
        )


def install(session: Session) -> None:
    """Replace `sys.stdin` on ranks above 0."""
    if session.rank > 0:
        session.patch(sys, "stdin", NoInput())
