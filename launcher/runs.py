"""The folder of one run: its log files, error descriptions and overlays; old ones are pruned."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from ..configs.errors import XlError

KEPT_RUNS = 20
_LOCK = ".running"


def make_run_folder(path: str) -> None:
    """Make the folder of a run, and find out before anything is said that it can be made.

    Raises:
        XlError: it cannot.
    """
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise XlError(
            f"the log folder {path} cannot be made",
            error.strerror or str(error),
            "pass --log-dir with a folder that you may write to",
        ) from None


class RunFolder:
    """The folder of a run, made and marked as in use for as long as this object lives.

    Args:
        path: the folder; its parent holds the other runs.
        prune: keep only the newest `KEPT_RUNS` of the parent's folders; those in use stay whatever their age.

    Raises:
        XlError: the folder cannot be made.
    """

    def __init__(self, path: str, *, prune: bool) -> None:
        self.path = Path(path)
        make_run_folder(path)
        self._lock = open(self.path / _LOCK, "w")  # noqa: SIM115  # held while the run lasts
        _try_lock(self._lock.fileno())
        if prune:
            _prune(self.path.parent)

    def close(self) -> None:
        """Mark the folder as no longer in use; it stays."""
        self._lock.close()
        (self.path / _LOCK).unlink(missing_ok=True)


def _try_lock(fd: int) -> bool:
    if sys.platform == "win32":
        return True
    import fcntl

    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _prune(parent: Path) -> None:
    runs = sorted((entry for entry in parent.iterdir() if entry.is_dir()), key=_age)
    for run in runs[:-KEPT_RUNS]:
        if not _in_use(run):
            shutil.rmtree(run, ignore_errors=True)


def _age(run: Path) -> float:
    try:
        return run.stat().st_mtime
    except OSError:  # another launch has pruned it
        return 0.0


def _in_use(run: Path) -> bool:
    try:
        fd = os.open(run / _LOCK, os.O_WRONLY)
    except OSError:
        return False
    try:
        return not _try_lock(fd)
    finally:
        os.close(fd)
