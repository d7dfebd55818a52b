"""A private layer over the file system: what this process writes is in a folder of its own, and read there.

Of a path three things may be known: its private copy, that this process removed it, or nothing (the real
file is seen). The real files are never written, renamed or removed. All methods need the real functions of
`os`: `files.py` calls them while its patches pass through.
"""

from __future__ import annotations

import os
import shutil
import stat
from typing import cast

from .originals import Originals

StrPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]

_SYSTEM = ("/proc/", "/dev/", "/sys/")
_TOOLS = ("torchinductor_", ".triton", "__pycache__")
"""Folders of compilers, which other programs read by their real path; their file names are unique."""


def is_outside(full: str) -> bool:
    """Whether an absolute path is a device, the system's, or a compiler's cache: left alone."""
    return full.startswith(_SYSTEM) or any(tool in full for tool in _TOOLS)


class Overlay:
    """Maps the paths that a script names to where this process finds or puts them.

    Args:
        root: the folder that holds the private files; created when first needed.
        originals: what rank 0 has changed.
    """

    def __init__(self, root: str, originals: Originals) -> None:
        self.root = os.path.abspath(root)
        self._originals = originals
        self._gone: set[str] = set()
        self._own: list[str] = []  # real files and folders with unique names that this process made

    def logical(self, path: StrPath) -> str:
        """Return the absolute path as the script sees it."""
        text = os.fsdecode(path)
        full = os.path.normpath(text if text.startswith("/") else f"{os.getcwd()}/{text}")
        return (
            full[len(self.root) :] or "/" if full == self.root or full.startswith(f"{self.root}/") else full
        )

    def exempt(self, path: object) -> bool:
        """Whether `path` is left alone: a descriptor, a device, a compiler's cache, our temporary file."""
        if not isinstance(path, str | bytes | os.PathLike):
            return True
        full = self.logical(cast("StrPath", path))
        if is_outside(full):
            return True
        return any(full == own or full.startswith(f"{own}/") for own in self._own)

    def private(self, path: StrPath) -> str:
        """Where this process's copy of `path` lies, whether or not there is one."""
        return self.root + self.logical(path)

    def has_private(self, path: StrPath) -> bool:
        return os.path.lexists(self.private(path))

    def view(self, path: StrPath) -> str:
        """Where to look for `path`: its private copy, the real file, or nowhere if it was removed."""
        full = self.logical(path)
        if os.path.lexists(self.root + full) or self._is_gone(full):
            return self.root + full
        return self._real(full)

    def _real(self, full: str) -> str:
        """Where the file is that the script would find without any changes of this run."""
        self._originals.refresh()
        return self._originals.place(full) or full

    def exists(self, path: StrPath) -> bool:
        return os.path.lexists(self.view(path))

    def made_by_us(self, path: StrPath) -> None:
        """Leave `path` and what is below it alone from now on."""
        self._own.append(self.logical(path))

    def prepare(self, path: StrPath, *, keep: bool) -> str:
        """Return the private path to write to, its folder made; with `keep` its content is there."""
        full = self.logical(path)
        target = self.root + full
        parent = os.path.dirname(full)
        if self.exists(parent):
            os.makedirs(os.path.dirname(target), exist_ok=True)
        if keep and not os.path.lexists(target) and not self._is_gone(full):
            source = self._real(full)
            if os.path.lexists(source):
                self._copy(source, target)
        self._gone.discard(full)
        return target

    def remove(self, path: StrPath) -> None:
        """Make `path` and what is below it vanish for this process only."""
        full = self.logical(path)
        target = self.root + full
        if os.path.lexists(target):
            if stat.S_ISDIR(os.lstat(target).st_mode):
                shutil.rmtree(target)
            else:
                os.unlink(target)
        self._gone.add(full)

    def revive(self, path: StrPath) -> None:
        """Forget that `path` was removed; what was below it stays removed."""
        full = self.logical(path)
        if full in self._gone:
            self._gone.discard(full)
            real = self._real(full)
            if os.path.isdir(real):
                self._gone.update(f"{full}/{name}" for _, names in self._untouched(full) for name in names)

    def touched(self, path: StrPath) -> bool:
        """Whether the folder `path` looks other than the real one."""
        self._originals.refresh()
        return bool(self._gone) or self._originals.touched or os.path.lexists(self.private(path))

    def names_left(self, path: StrPath) -> bool:
        """Whether `path` is a folder that is not empty for this process."""
        return os.path.isdir(self.view(path)) and any(names for _, names in self.names(path))

    def names(self, path: StrPath) -> list[tuple[str, list[str]]]:
        """The folders that make up the folder `path`, each with the names that it gives."""
        full = self.logical(path)
        target = self.root + full
        private = os.listdir(target) if os.path.isdir(target) else []
        found = [] if self._is_gone(full) else self._untouched(full)
        left = [
            (folder, [name for name in names if name not in private and not self._is_gone(f"{full}/{name}")])
            for folder, names in found
        ]
        return [*left, (target, private)]

    def _untouched(self, full: str) -> list[tuple[str, list[str]]]:
        """The folder as the script found it: real names that rank 0 left alone, and what it has replaced."""
        self._originals.refresh()
        real = os.listdir(full) if os.path.isdir(full) else []
        names, kept = self._originals.names(full, real)
        return [(full, names), (self._originals.where(full), kept)]

    def _is_gone(self, full: str) -> bool:
        if not self._gone:
            return False
        while full not in self._gone:
            if full in ("/", ""):
                return False
            full = os.path.dirname(full)
        return True

    def _copy(self, source: str, target: str) -> None:
        if os.path.isdir(source):
            shutil.copytree(source, target, symlinks=True)
        else:
            shutil.copy2(source, target)
