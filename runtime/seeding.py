"""The random state that a worker's script starts with."""

from __future__ import annotations

import random
import sys

from ..configs.worker import WorkerSettings
from .imports import when_imported

_NUMPY_SEEDS = 2**32


def seed_worker(settings: WorkerSettings) -> None:
    """Give a plain script the seed that all its ranks share, and any other what a fresh process would have.

    Both apply to the modules imported so far; the common seed also to those that the script imports later. A
    forked worker starts with the random state of the process it came from: left alone, all ranks of a script
    that distributes itself would draw the same "random" run name or data order.
    """
    if settings.kind == "plain":
        _seed_alike(settings.seed)
    else:
        _seed_apart()


def _seed_alike(seed: int) -> None:
    random.seed(seed)

    def seed_numpy() -> None:
        sys.modules["numpy.random"].seed(seed % _NUMPY_SEEDS)

    def seed_torch() -> None:
        sys.modules["torch"].manual_seed(seed)

    when_imported("numpy.random", seed_numpy)
    when_imported("torch", seed_torch)


def _seed_apart() -> None:
    random.seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "torch" in sys.modules:
        sys.modules["torch"].seed()
