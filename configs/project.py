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
        why_not: why it must not be used; None: it may be.
        fix: what to type so that it may be used.
    """

    path: Path
    why_not: str | None = None
    fix: str = ""

    @property
    def refusal(self) -> str | None:
        """A warning for the user that the file is not used; None: it is."""
        return f"{self.path} is ignored: {self.why_not}; {self.fix} to use it" if self.why_not else None


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
            return _judged(path)
        if folder == root:
            return None
    return None


def _judged(path: Path) -> ProjectFile:
    if not hasattr(os, "geteuid"):
        return ProjectFile(path)
    status = path.stat()
    if status.st_uid not in (os.geteuid(), 0):
        return ProjectFile(path, f"it belongs to user {status.st_uid}", "chown it to yourself")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return ProjectFile(path, "others may write to it", f"chmod go-w {path}")
    return ProjectFile(path)
