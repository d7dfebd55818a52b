"""Runs a function as a plain script under the shim on the pool's ranks, and says what the ranks did."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from xl.configs.worker import WorkerSettings
from xl.runtime.collectives import Communicator
from xl.runtime.shim.gradients import GradientSide
from xl.runtime.shim.install import assemble
from xl.runtime.shim.region import SplitRegion, current
from xl.runtime.shim.report import Report
from xl.runtime.shim.session import Session

T = TypeVar("T")


@dataclass
class Seen(Generic[T]):
    """What one rank did.

    Args:
        value: what the script returned.
        report: the shim's counts.
        rows: the most rows that a linear, convolution, embedding or recurrent layer was given.
        reduced: numbers that were summed over the ranks.
    """

    value: T
    report: Report
    rows: int
    reduced: int


def plain(comm: Communicator, script: Callable[[], T], overlay: str | None = None) -> Seen[T]:
    """Run `script` in float64 under the shim, or as it is in a world of one."""
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    settings = WorkerSettings("test", "plain", rank=comm.rank, world_size=comm.size, overlay=overlay)
    session = Session(settings, lambda _: comm, Report(comm.size))
    rows = _Rows(session)
    reduced = _count_reduced(session)
    assemble(session, GradientSide(session))
    try:
        value = script()
        return Seen(value, session.report, rows.most, reduced())
    finally:
        session.comm = None  # the pool's
        session.close()


class _Rows:
    """Watches the layers from inside, where a hook would keep the call from being split."""

    def __init__(self, session: Session) -> None:
        self.most = 0
        for kind in (nn.Linear, nn.Conv2d, nn.Embedding, nn.LSTM):
            session.patch(kind, "forward", self._watched(kind.forward))

    def _watched(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        def forward(module: nn.Module, x: Tensor, *args: Any) -> Any:
            if current() is None or isinstance(current(), SplitRegion):
                self.most = max(self.most, x.shape[0])
            return inner(module, x, *args)

        return forward


def _count_reduced(session: Session) -> Callable[[], int]:
    counts: list[int] = []
    inner = Communicator.start_all_reduce

    def start_all_reduce(comm: Communicator, tensor: Tensor, *args: Any) -> Any:
        counts.append(tensor.numel())
        return inner(comm, tensor, *args)

    session.patch(Communicator, "start_all_reduce", start_all_reduce)
    return lambda: sum(counts)
