"""Runs a function as a plain script under the whole shim on a rank of the test pool."""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

from xl.configs.worker import WorkerSettings
from xl.runtime.collectives import Communicator
from xl.runtime.shim.gradients import GradientSide
from xl.runtime.shim.install import assemble
from xl.runtime.shim.report import Report
from xl.runtime.shim.session import Session


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
    return torch.cat([p.detach().double().flatten() for p in module.parameters()]).tolist()
