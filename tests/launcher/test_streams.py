"""What --show-ranks and --tee mean."""

from __future__ import annotations

import pytest

from xl.configs.errors import XlError
from xl.launcher.streams import Streams, shown_streams

NONE, OUT, ERR, BOTH = Streams(), Streams(out=True), Streams(err=True), Streams(True, True)


@pytest.mark.parametrize(
    ("show_ranks", "tee", "expected"),
    [
        ("0", None, (BOTH, NONE, NONE)),
        ("all", None, (BOTH, BOTH, BOTH)),
        ("1-2", None, (NONE, BOTH, BOTH)),
        ("0,2", None, (BOTH, NONE, BOTH)),
        ("0", "0", (BOTH, NONE, NONE)),
        ("0", "1", (BOTH, OUT, OUT)),
        ("0", "2:2, 1:1", (BOTH, OUT, ERR)),
        ("1", "3", (BOTH, BOTH, BOTH)),
    ],
)
def test_shown_streams(show_ranks: str, tee: str | None, expected: tuple[Streams, ...]) -> None:
    assert shown_streams(show_ranks, tee, 3) == expected


@pytest.mark.parametrize(
    ("show_ranks", "tee"),
    [
        ("0-999999999999", None),
        ("3", None),
        ("x", None),
        ("0-", None),
        ("0", "4"),
        ("0", "3:3"),
        ("0", "0:9"),
        ("0", "a:1"),
    ],
)
def test_what_cannot_be_read(show_ranks: str, tee: str | None) -> None:
    with pytest.raises(XlError):
        shown_streams(show_ranks, tee, 3)
