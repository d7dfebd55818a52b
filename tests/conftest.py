"""Fixtures for every test: warm ranks, awkward paths, and a check that a test leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from .pool import Pool, Ranks

# Variables that pytest, and torch when it compiles, set themselves.
OWN = {"PYTEST_CURRENT_TEST", "TORCHINDUCTOR_CACHE_DIR"}


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    """The warm workers of this test session; nothing is started before the first use."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    workers = Pool(environment)
    yield workers
    workers.close()


@pytest.fixture
def ranks(pool: Pool) -> Ranks:
    """Run a function on 1-4 ranks: `ranks(2, function, *args)`, see `pool.Ranks`."""
    return pool.run


@pytest.fixture(
    params=["with space", 'it\'s "quoted"', "new\nline", "-dash $HOME;&"],
    ids=["space", "quotes", "newline", "shell"],
)
def odd_path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """An empty folder whose name breaks careless quoting."""
    folder = tmp_path / request.param
    folder.mkdir()
    return folder


@pytest.fixture(autouse=True)
def _leaves_nothing_behind(pool: Pool) -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    """Fail a test that leaves a thread, a variable, a child process or a process group behind."""
    threads, environment, children = set(threading.enumerate()), dict(os.environ), child_processes()
    yield
    leaks = [f"thread {thread.name}" for thread in set(threading.enumerate()) - threads if outlives(thread)]
    leaks += [
        f"variable {key}"
        for key in sorted({key for key, _ in environment.items() ^ os.environ.items()} - OWN)
    ]
    for child in child_processes() - children:
        if child.pid not in pool.pids:
            leaks.append(f"process {child.pid}")
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
    if "torch.distributed" in sys.modules and sys.modules["torch.distributed"].is_initialized():
        leaks.append("the default process group")
    if leaks:
        pytest.fail("left behind: " + ", ".join(leaks), pytrace=False)


def outlives(thread: threading.Thread) -> bool:
    thread.join(1.0)  # one that is about to end may do so
    return thread.is_alive()


def child_processes() -> set[psutil.Process]:
    """Running descendants; one that ended and was not waited for yet is harmless."""
    found: set[psutil.Process] = set()
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.status() != psutil.STATUS_ZOMBIE:
                found.add(child)
    return found
