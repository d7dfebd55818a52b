"""Disk facts: how much room the folders have that a training run writes to."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Disk:
    """Room in one folder.

    Args:
        purpose: what the folder is for.
        path: the folder that was asked for.
        total_bytes: size of its file system.
        free_bytes: room for this user; both None where no part of the path exists.
        writable: whether this user may create files in it, or in its nearest parent that exists.
    """

    purpose: str
    path: str
    total_bytes: int | None
    free_bytes: int | None
    writable: bool


def read_disk(purpose: str, path: Path) -> Disk:
    """Room in the folder, or in its nearest parent that exists."""
    for folder in (path, *path.parents):
        if folder.is_dir():
            try:
                usage = shutil.disk_usage(folder)
            except OSError:
                break
            return Disk(purpose, str(path), usage.total, usage.free, os.access(folder, os.W_OK | os.X_OK))
    return Disk(purpose, str(path), None, None, False)


def temporary_folder(environment: Mapping[str, str]) -> Path:
    """The folder for temporary files, as the variables name it, whether or not it exists."""
    for name in ("TMPDIR", "TEMP", "TMP"):
        if environment.get(name):
            return Path(environment[name])
    return Path("/tmp")
