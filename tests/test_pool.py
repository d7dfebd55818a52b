"""The pool of warm ranks must be fast, and must not let one test disturb the next."""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import NoReturn, cast

import pytest
import torch
import torch.distributed as dist

from xl.configs.errors import XlError
from xl.runtime.collectives import Communicator

from .pool import Pool, PoolError, Ranks

HashStore = dist.HashStore  # pyright: ignore[reportPrivateImportUsage]


class Custom:
    """A type that only this test module knows."""

    def __init__(self, value: int) -> None:
        self.value = value


def total(comm: Communicator, mine: int) -> tuple[int, float]:
    return comm.rank, comm.all_reduce(torch.tensor(float(mine + comm.rank))).item()


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_ranks_reduce(ranks: Ranks, size: int) -> None:
    expected = float(sum(10 + rank for rank in range(size)))
    assert ranks(size, total, 10) == [(rank, expected) for rank in range(size)]


def test_functions_and_values_travel_by_value(ranks: Ranks) -> None:
    offset = 5

    def double(comm: Communicator, custom: Custom) -> Custom:
        return Custom(2 * custom.value + offset + comm.rank)

    assert [result.value for result in ranks(2, double, Custom(1))] == [7, 8]


def test_an_exception_is_raised_with_the_traceback_of_its_rank(ranks: Ranks) -> None:
    def refuse(comm: Communicator) -> None:
        if comm.rank == 1:
            raise XlError("what", "why", "fix")
        comm.barrier()  # fails at once because rank 1 is gone

    with pytest.raises(XlError, match="what") as caught:
        ranks(2, refuse)
    assert "on rank 1 of 2" in str(caught.value.__cause__)
    assert "in refuse" in str(caught.value.__cause__)
    assert ranks(2, total, 0) == [(0, 1.0), (1, 1.0)]


def test_an_exception_that_cannot_be_pickled_is_shown(ranks: Ranks) -> None:
    def fail(comm: Communicator) -> NoReturn:
        class Odd(Exception):
            def __init__(self, a: int, b: int) -> None:
                super().__init__(f"odd {a} {b}")

        raise Odd(1, 2)

    with pytest.raises(PoolError) as caught:
        ranks(1, fail)
    assert "odd 1 2" in str(caught.value.__cause__)


def test_a_hang_shows_both_stacks_and_renews_the_pool(ranks: Ranks) -> None:
    def hang(comm: Communicator) -> None:
        if comm.rank == 0:
            wait_for_rank_one(comm)
        else:
            time.sleep(60)

    def wait_for_rank_one(comm: Communicator) -> None:
        comm.barrier()

    with pytest.raises(PoolError, match="did not finish within 1 s") as caught:
        ranks(2, hang, timeout_s=1.0)
    assert "in wait_for_rank_one" in str(caught.value) or "in hang" in str(caught.value)
    assert str(caught.value).count("in hang") == 2
    assert ranks(2, total, 0) == [(0, 1.0), (1, 1.0)]


def test_a_death_is_told_and_renews_the_pool(ranks: Ranks) -> None:
    def die(comm: Communicator) -> None:
        print("last words", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(PoolError, match="exit status -9\nlast words"):
        ranks(1, die)
    assert ranks(2, total, 0) == [(0, 1.0), (1, 1.0)]


def test_quiet_state_is_put_back(ranks: Ranks) -> None:
    def disturb(comm: Communicator) -> None:
        torch.set_default_dtype(torch.float64)
        torch.manual_seed(99)
        random.seed(99)
        torch.use_deterministic_algorithms(True)

    def look(comm: Communicator) -> tuple[object, ...]:
        seeds = torch.initial_seed(), random.getstate()
        return torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled(), seeds

    before = ranks(2, look)
    ranks(2, disturb)
    assert ranks(2, look) == before
    assert before[0][0] == torch.float32


def leave_variable(comm: Communicator) -> None:
    os.environ["XL_LEFT_BEHIND"] = "1"


def leave_thread(comm: Communicator) -> None:
    threading.Thread(target=time.sleep, args=(60,), name="forgotten", daemon=True).start()


def leave_patch(comm: Communicator) -> None:
    original = cast("FunctionType", torch.nn.Module.__call__)
    torch.nn.Module.__call__ = lambda *args, **kwargs: original(*args, **kwargs)  # type: ignore[method-assign]


def leave_child(comm: Communicator) -> None:
    subprocess.Popen(["sleep", "60"])


def leave_group(comm: Communicator) -> None:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (leave_variable, "XL_LEFT_BEHIND"),
        (leave_thread, "forgotten"),
        (leave_patch, "Module.__call__ is patched"),
        (leave_child, "a child process is running"),
        (leave_group, "default process group"),
    ],
)
def test_loud_state_fails_the_test_that_left_it(
    ranks: Ranks, function: Callable[[Communicator], None], message: str
) -> None:
    with pytest.raises(PoolError, match=message):
        ranks(1, function)
    assert ranks(1, total, 0) == [(0, 0.0)]


def test_a_round_trip_is_short(ranks: Ranks) -> None:
    ranks(4, total, 0)
    shortest = min(timed(ranks) for _ in range(5))
    assert shortest < 0.5, "far above the 0.05 s that it takes: something slow is done per call"


def timed(ranks: Ranks) -> float:
    start = time.perf_counter()
    ranks(2, total, 0)
    return time.perf_counter() - start


def test_the_pool_dies_with_the_tests(tmp_path: Path) -> None:
    folder = Path(__file__).parent
    program = (
        f"import sys, time, os; sys.path.insert(0, {str(folder.parent)!r})\n"
        "from tests.pool import Pool\n"
        "pool = Pool(os.environ)\n"
        "pool.run(2, lambda comm: None)\n"
        "print(*pool.pids, flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        process.kill()
    assert len(pids) == 3
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_odd_paths(odd_path: Path) -> None:
    (odd_path / "file").write_text("x")


def test_close_ends_every_process() -> None:
    pool = Pool(os.environ)
    pool.run(2, lambda comm: comm.rank)
    pids = pool.pids
    pool.close()
    assert len(pids) == 3
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
