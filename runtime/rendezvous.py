"""How the workers of one job find each other: a store that rank 0 serves and everybody connects to."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist

from ..configs.worker import WorkerSettings


def connect_store(settings: WorkerSettings, *, timeout_s: float = 300.0) -> dist.Store:  # pyright: ignore[reportPrivateImportUsage]
    """Return the job's store: served by rank 0 (on the launcher's socket if it passed one), joined by others.

    Does not wait for the other ranks to connect; the first collective does. Keys are shared by all who
    connect, so users prefix theirs (`Communicator` does); a restarted attempt gets names of its own.
    """
    is_master = settings.rank == 0
    store = dist.TCPStore(  # pyright: ignore[reportPrivateImportUsage]
        settings.master_addr,
        settings.master_port,
        settings.world_size,
        is_master=is_master,
        timeout=timedelta(seconds=timeout_s),
        wait_for_workers=False,
        master_listen_fd=settings.store_fd if is_master else None,
    )
    prefix = f"attempt{settings.attempt}"
    return dist.PrefixStore(prefix, store)  # pyright: ignore[reportPrivateImportUsage]
