"""Plain scripts that train, run under the whole shim on a rank of the test pool or alone."""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Literal, cast

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils.data import DataLoader, TensorDataset

from xl.configs.worker import WorkerSettings
from xl.runtime.collectives import Communicator
from xl.runtime.shim.gradients import GradientSide
from xl.runtime.shim.install import assemble
from xl.runtime.shim.report import Report
from xl.runtime.shim.session import Session

from ...pool import Ranks


@contextmanager
def shim(
    comm: Communicator, *, precision: Literal["no", "fp16", "bf16"] = "no", accumulation: int = 1
) -> Generator[GradientSide]:
    """Put the shim into this rank for the time of the context."""
    settings = WorkerSettings(
        "test",
        "plain",
        rank=comm.rank,
        world_size=comm.size,
        mixed_precision=precision,
        gradient_accumulation_steps=accumulation,
    )
    session = Session(settings, lambda _: comm, Report(comm.size))
    side = GradientSide(session)
    assemble(session, side)
    try:
        yield side
    finally:
        session.comm = None  # the pool's, which closes it
        session.close()


def network(width: int = 6, outputs: int = 3) -> nn.Sequential:
    """A small network in the default type, the same on every call."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(width, 8), nn.Tanh(), nn.Linear(8, outputs))


def data(rows: int = 22, width: int = 6) -> tuple[Tensor, Tensor]:
    """Inputs and classes, the same on every call."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(rows, width, generator=generator, dtype=torch.float64).to(torch.get_default_dtype())
    return x, torch.randint(0, 3, (rows,), generator=generator)


def values(module: nn.Module) -> list[float]:
    """Every parameter, as numbers."""
    return cast(
        "list[float]", torch.cat([p.detach().double().flatten() for p in module.parameters()]).tolist()
    )


Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
Schedule = Callable[[torch.optim.Optimizer], LRScheduler]


def loader(batch: int, rows: int = 22) -> DataLoader[tuple[Tensor, ...]]:
    return DataLoader(TensorDataset(*data(rows)), batch_size=batch)


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.3, momentum=0.9, weight_decay=1e-2)


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.05)


class Renamed(torch.optim.SGD):
    """A script's own optimizer, with a step of its own that calls its parent's."""

    def step(self, closure: object = None) -> None:
        super().step()
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.mul_(0.99)


def own(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return Renamed(parameters, lr=0.3)


def train(
    batch: int,
    make: Make = sgd,
    clip: str = "",
    per_batch: Schedule | None = None,
    per_epoch: Schedule | None = None,
    set_to_none: bool = True,
) -> list[float]:
    """A plain script."""
    torch.set_default_dtype(torch.float64)
    model = network()
    optimizer = make(list(model.parameters()))
    schedulers = [maker(optimizer) if maker else None for maker in (per_batch, per_epoch)]
    rates: list[float] = []
    for _ in range(3):
        for x, y in loader(batch):
            optimizer.zero_grad(set_to_none=set_to_none)
            nn.functional.cross_entropy(model(x), y).backward()
            if clip == "norm":
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            if clip == "value":
                torch.nn.utils.clip_grad.clip_grad_value_(model.parameters(), 0.02)
            optimizer.step()
            if schedulers[0] is not None:
                schedulers[0].step()
        if isinstance(schedulers[1], ReduceLROnPlateau):
            schedulers[1].step(1.0)
        elif schedulers[1] is not None:
            schedulers[1].step()
        rates.append(cast("float", optimizer.param_groups[0]["lr"]))
    return values(model) + rates


def accumulated(
    comm: Communicator, script: Callable[[int], object], every: int, batch: int
) -> tuple[object, int]:
    with shim(comm, accumulation=every) as side:
        result = script(batch)
        return result, 0 if side.reducer is None else side.reducer.traffic.exchanges


def compare(
    ranks: Ranks, size: int, script: Callable[[int], list[float]], every: int = 3, batch: int = 4
) -> list[int]:
    """Return how often each rank exchanged gradients."""

    def alone(comm: Communicator) -> list[float]:
        return script(batch * every)

    [expected] = ranks(1, alone)
    found = ranks(size, accumulated, script, every, batch)
    for result, _ in found:
        assert cast("list[float]", result) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    return [exchanges for _, exchanges in found]
