"""Puts the shim into a worker before the script starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..collectives import Communicator
from ..rendezvous import connect_store
from . import aside, files, loaders, losses, norms, programs, region, stdin
from .gradients import GradientSide
from .modules import ModuleCalls
from .report import Report
from .session import Session

if TYPE_CHECKING:
    import torch.distributed as dist

    from ...configs.worker import WorkerSettings


def install(settings: WorkerSettings, store: dist.Store | None = None) -> Session:  # pyright: ignore[reportPrivateImportUsage]
    """Patch torch for a plain script and return the session; `session.finish()` and `.close()` end it.

    Nothing is connected before the script's first module call. A world of one is changed only as far as
    precision and accumulation need it.

    Args:
        settings: what the launcher said.
        store: a store that the ranks share; None: made from the settings when it is needed.
    """

    def connect(device: torch.device) -> Communicator:
        shared = store if store is not None else connect_store(settings)
        local = settings.num_nodes == 1
        return Communicator(shared, settings.rank, settings.world_size, device, local=local)

    session = Session(settings, connect, Report(settings.world_size))
    assemble(session, GradientSide(session))
    return session


def assemble(session: Session, gradients: GradientSide) -> None:
    """Install every patch of `session`."""
    settings = session.settings
    several = session.size > 1
    if not several and settings.mixed_precision == "no" and settings.gradient_accumulation_steps == 1:
        return
    gradients.install()
    ModuleCalls(session, gradients).install()
    if settings.gradient_accumulation_steps > 1:
        loaders.install(session)
    if several:
        losses.install(session)
        norms.install(session)
        region.install(session)
        stdin.install(session)
        programs.install(session)
        aside.StepAside(session, lambda: aside.show_job(session)).install()
        if settings.overlay is not None:
            files.install(session, settings.overlay)
