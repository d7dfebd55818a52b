"""Whole training loops on several ranks: the numbers of one process, and the work really divided."""

from __future__ import annotations

import math

import pytest

from ...pool import Ranks
from .harness import plain
from .loops import LOOPS

ALONE: dict[str, list[float]] = {}


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", sorted(LOOPS))
def test_numbers_of_one_process(ranks: Ranks, name: str, size: int) -> None:
    loop = LOOPS[name]
    if name not in ALONE:
        ALONE[name] = ranks(1, plain, loop.run)[0].value
    for seen in ranks(size, plain, loop.run):
        assert seen.value == pytest.approx(ALONE[name], rel=1e-9, abs=1e-12)
        assert seen.report.share == pytest.approx(loop.expected_share(size)), seen.report.full_calls
        if loop.batch is not None:
            assert seen.rows <= math.ceil(loop.batch / size)
        assert seen.reduced > 0
