"""A plain script on several processes that reads standard input is refused, by whichever way it reads."""

from collections.abc import Callable

import pytest

from xl.configs.errors import XlError
from xl.runtime.shim.stdin import NoInput

READS: list[Callable[[NoInput], object]] = [
    lambda stdin: stdin.read(),
    lambda stdin: stdin.readline(),
    lambda stdin: list(stdin),
    lambda stdin: stdin.readlines(),
    lambda stdin: stdin.buffer,
]


@pytest.mark.parametrize("read", READS)
def test_every_read_is_refused(read: Callable[[NoInput], object]) -> None:
    with pytest.raises(XlError, match="reads standard input"):
        read(NoInput())


def test_input_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", NoInput())
    with pytest.raises(XlError, match="only rank 0 has the input"):
        input()
