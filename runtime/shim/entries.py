"""What `os.scandir` gives for a folder of two layers: entries whose paths are those that the script knows."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import Generic, TypeVar

Name = TypeVar("Name", str, bytes)


class Entry(Generic[Name]):
    """An `os.DirEntry` of one layer, seen from the script.

    Args:
        inner: the entry where the file is.
        path: what the script shall see, as it named the folder.
        full: the same path, absolute.
    """

    def __init__(self, inner: os.DirEntry[Name], path: Name, full: Name) -> None:
        self._inner, self._full = inner, full
        self.name, self.path = inner.name, path
        self._stats: dict[bool, os.stat_result] = {}

    def __fspath__(self) -> Name:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def inode(self) -> int:
        return self._inner.inode()

    def is_symlink(self) -> bool:
        return self._inner.is_symlink()

    def is_junction(self) -> bool:
        return False

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        if follow_symlinks and self.is_symlink():
            return stat.S_ISDIR(self._target_mode())
        return self._inner.is_dir(follow_symlinks=False)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        if follow_symlinks and self.is_symlink():
            return stat.S_ISREG(self._target_mode())
        return self._inner.is_file(follow_symlinks=False)

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        follow = follow_symlinks and self.is_symlink()
        if follow not in self._stats:
            try:
                self._stats[follow] = os.stat(self._full, follow_symlinks=follow)
            except OSError as error:
                error.filename = self.path
                raise
        return self._stats[follow]

    def _target_mode(self) -> int:
        try:
            return self.stat().st_mode
        except FileNotFoundError:
            return 0


class Entries(Generic[Name]):
    """What `os.scandir` returns, over a list."""

    def __init__(self, entries: list[Entry[Name]]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[Entry[Name]]:
        return self._entries

    def __next__(self) -> Entry[Name]:
        return next(self._entries)

    def __enter__(self) -> Entries[Name]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())
