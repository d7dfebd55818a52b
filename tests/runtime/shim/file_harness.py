"""Lets a test work on files as one rank of a plain script."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from xl.configs.worker import WorkerSettings
from xl.runtime.shim import files
from xl.runtime.shim.report import Report
from xl.runtime.shim.session import Session


@contextmanager
def as_rank(rank: int, folder: Path, *, error_file: str | None = None) -> Generator[None]:
    """Patch this process as `rank`; `folder` holds the overlays and the journal of all."""

    def connect(_: torch.device) -> Any:
        raise AssertionError

    settings = WorkerSettings("test", "plain", rank=rank, world_size=2, error_file=error_file)
    session = Session(settings, connect, Report(2))
    files.install(session, str(folder / "overlay" / f"rank{rank}"))
    try:
        yield
    finally:
        session.close()
