"""The project's settings file `xl.yaml`: where it is, and whether it may be used."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

NAME = "xl.yaml"


@dataclass(frozen=True, slots=True)
class ProjectFile:
    """A project file that was found.

    Args:
        refusal: why it must not be used, as a warning for the user; None: it may be.
    """

    path: Path
    refusal: str | None = None


def find_project_file(cwd: Path) -> ProjectFile | None:
    """The nearest `xl.yaml` from the working directory up to the repository's root.

    Outside a repository only the working directory is looked at, so that a file which somebody left in
    `/tmp` or in a home folder does not reach into every folder below it.
    """
    cwd = cwd.resolve()
    root = next((folder for folder in (cwd, *cwd.parents) if os.path.exists(folder / ".git")), cwd)
    for folder in (cwd, *cwd.parents):
        path = folder / NAME
        if os.path.isfile(path):
            return ProjectFile(path, _refusal(path))
        if folder == root:
            return None
    return None


def _refusal(path: Path) -> str | None:
    if not hasattr(os, "geteuid"):
        return None
    status = path.stat()
    if status.st_uid not in (os.geteuid(), 0):
        return f"{path} is ignored: it belongs to user {status.st_uid}; chown it to yourself to use it"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"{path} is ignored: others may write to it; chmod go-w {path} to use it"
    return None
