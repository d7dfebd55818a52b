"""Which streams of which ranks reach the terminal, as `--show-ranks` and torchrun's `--tee` say it."""

from __future__ import annotations

from dataclasses import dataclass

from ..configs.errors import XlError


@dataclass(frozen=True, slots=True)
class Streams:
    """The streams of one worker that are shown."""

    out: bool = False
    err: bool = False

    @property
    def any(self) -> bool:
        return self.out or self.err


_BY_NUMBER = {"0": Streams(), "1": Streams(out=True), "2": Streams(err=True), "3": Streams(True, True)}


def shown_streams(show_ranks: str, tee: str | None, num_workers: int) -> tuple[Streams, ...]:
    """Return the shown streams of each worker.

    Args:
        show_ranks: ranks shown whole: `0`, `0,2,4-7` or `all`.
        tee: torchrun's words, shown as well: one of 0 (none), 1 (out), 2 (err), 3 (both) for every rank, or
            `rank:number` pairs with commas.

    Raises:
        XlError: one of the two cannot be read, or names a rank that there is not.
    """
    ranks = _ranks(show_ranks, num_workers)
    teed = _tee(tee, num_workers)
    return tuple(
        Streams(rank in ranks or teed[rank].out, rank in ranks or teed[rank].err)
        for rank in range(num_workers)
    )


def _ranks(text: str, num_workers: int) -> set[int]:
    if text == "all":
        return set(range(num_workers))
    found: set[int] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise _unreadable("show_ranks", text, part, "ranks as 0,2,4-7, or all")
        if max(int(first), int(last or first)) >= num_workers:
            raise _unreadable("show_ranks", text, part, f"ranks from 0 to {num_workers - 1}")
        found.update(range(int(first), int(last or first) + 1))
    return found


def _tee(text: str | None, num_workers: int) -> list[Streams]:
    found = [Streams()] * num_workers
    if text is None:
        return found
    if text in _BY_NUMBER:
        return [_BY_NUMBER[text]] * num_workers
    for part in text.split(","):
        rank, colon, number = part.strip().partition(":")
        if not colon or not rank.isdigit() or number not in _BY_NUMBER:
            raise _unreadable("tee", text, part, "0, 1, 2, 3, or rank:number pairs such as 0:3,1:2")
        if int(rank) >= num_workers:
            raise _unreadable("tee", text, part, f"ranks from 0 to {num_workers - 1}")
        found[int(rank)] = _BY_NUMBER[number]
    return found


def _unreadable(name: str, text: str, part: str, allowed: str) -> XlError:
    return XlError(f"{name}={text} cannot be used", f"{part!r} is not understood here", f"give {allowed}")
