"""Ranks above 0 never touch the user's files: what they write, rename and remove is in a private overlay.

Covered is what goes through Python's `open`, `os`, `shutil` and `torch.save`/`load`, and so `pathlib`, numpy
and most libraries. Not covered are libraries that open files in C (sqlite, HDF5) and other programs.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportPrivateUsage=false
# (torch annotates parts of itself incompletely, and not all that a shim needs is public)

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from .file_patches import FilePatches, Function, writes
from .originals import Originals
from .overlay import Overlay
from .recorder import Recorder

if TYPE_CHECKING:
    from .session import Session

_LOOKING = ("stat", "lstat", "access", "readlink", "chdir", "statvfs", "getxattr", "listxattr")
_NAMELESS = getattr(os, "O_TMPFILE", -1)
_MARKING = ("chmod", "chown", "utime", "lchown", "setxattr", "removexattr")


def install(session: Session, root: str) -> None:
    """Patch this process's ways to files; `root` is this rank's folder, its parent that of all ranks."""
    originals = Originals(os.path.join(os.path.dirname(os.path.abspath(root)), "before"))
    own = [path for path in (session.settings.error_file, session.settings.report_file) if path is not None]
    if session.rank == 0:
        Recorder(session, originals, [os.path.dirname(originals.folder), *own]).install()
        return
    overlay = Overlay(root, originals)
    for path in own:
        overlay.made_by_us(path)
    _Files(session, overlay).install()


class _Files:
    """The patched functions of a rank above 0; each decides where a path leads and calls the real one."""

    def __init__(self, session: Session, overlay: Overlay) -> None:
        self._session, self._overlay = session, overlay
        self._patches = FilePatches(session, overlay.logical)

    def install(self) -> None:
        """Patch everything."""
        actions: dict[str, Function] = {
            "open": self._os_open, "mkdir": self._mkdir, "rmdir": self._rmdir, "unlink": self._unlink,
            "remove": self._unlink, "rename": self._rename, "replace": self._rename, "link": self._link,
            "symlink": self._symlink, "truncate": self._truncate, "listdir": self._listdir,
            "scandir": self._scandir,
        }  # fmt: skip
        actions.update(dict.fromkeys(_LOOKING, self._look))
        actions.update(dict.fromkeys(_MARKING, self._mark))
        self._patches.replace(actions, self._open, self._save)
        self._patches.patch(shutil, "rmtree", self._rmtree)
        self._patches.patch(torch, "load", self._load)
        self._session.patch(os, "getcwd", self._getcwd(os.getcwd))

    def _read(self, real: Function, path: Any, *args: Any, **kwargs: Any) -> Any:
        """Look at a path, and look again if rank 0 touched it in the meantime."""
        full = self._overlay.logical(path)  # before `real` may change the working directory
        while True:
            place = self._overlay.view(full)
            try:
                found = real(place, *args, **kwargs)
            except OSError:
                if self._overlay.view(full) == place:
                    raise
                continue
            if self._overlay.view(full) == place:
                return found
            if hasattr(found, "close"):
                found.close()

    def _look(self, real: Function, path: Any, *args: Any, **kwargs: Any) -> Any:
        if self._overlay.exempt(path):
            return real(path, *args, **kwargs)
        return self._read(real, path, *args, **kwargs)

    def _mark(self, real: Function, path: Any, *args: Any, **kwargs: Any) -> Any:
        if self._overlay.exempt(path):
            return real(path, *args, **kwargs)
        place = self._overlay.view(path)
        if self._overlay.has_private(path) or not os.path.lexists(place):
            return real(place, *args, **kwargs)  # of a missing file it fails as the script expects
        return None

    def _open(self, real: Function, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if self._overlay.exempt(file):
            return real(file, mode, *args, **kwargs)
        if not writes(mode):
            return self._read(real, file, mode, *args, **kwargs)
        if "x" in mode and self._overlay.exists(file):
            raise FileExistsError(17, "File exists", os.fspath(file))
        return real(
            self._overlay.prepare(file, keep="w" not in mode and "x" not in mode), mode, *args, **kwargs
        )

    def _os_open(self, real: Function, path: Any, flags: int, *args: Any, **kwargs: Any) -> Any:
        if _called_by_tempfile():
            self._overlay.made_by_us(path)
        if self._overlay.exempt(path) or flags & _NAMELESS == _NAMELESS:
            return real(path, flags, *args, **kwargs)
        if not writes(flags):
            return real(self._overlay.view(path), flags, *args, **kwargs)
        if flags & os.O_EXCL and self._overlay.exists(path):
            raise FileExistsError(17, "File exists", os.fspath(path))
        keep = not flags & (os.O_TRUNC | os.O_EXCL)
        return real(self._overlay.prepare(path, keep=keep), flags, *args, **kwargs)

    def _mkdir(self, real: Function, path: Any, *args: Any, **kwargs: Any) -> None:
        if _called_by_tempfile():
            self._overlay.made_by_us(path)
        if self._overlay.exempt(path):
            return real(path, *args, **kwargs)
        if self._overlay.exists(path):
            raise FileExistsError(17, "File exists", os.fspath(path))
        self._overlay.revive(path)
        return real(self._overlay.prepare(path, keep=False), *args, **kwargs)

    def _unlink(self, real: Function, path: Any, *args: Any, **kwargs: Any) -> None:
        if self._overlay.exempt(path):
            return real(path, *args, **kwargs)
        seen = self._overlay.view(path)
        if os.path.isdir(seen) and not os.path.islink(seen):
            raise IsADirectoryError(21, "Is a directory", os.fspath(path))
        if not os.path.lexists(seen):
            return real(seen, *args, **kwargs)  # fails as the script expects
        return self._overlay.remove(path)

    def _rmdir(self, real: Function, path: Any, *args: Any, **kwargs: Any) -> None:
        if self._overlay.exempt(path):
            return real(path, *args, **kwargs)
        if self._overlay.names_left(path):
            raise OSError(39, "Directory not empty", os.fspath(path))
        return self._overlay.remove(path)

    def _rename(self, real: Function, source: Any, target: Any, *args: Any, **kwargs: Any) -> None:
        if self._overlay.exempt(source) and self._overlay.exempt(target):
            return real(source, target, *args, **kwargs)
        origin = source if self._overlay.exempt(source) else self._overlay.prepare(source, keep=True)
        place = target if self._overlay.exempt(target) else self._overlay.prepare(target, keep=False)
        real(origin, place, *args, **kwargs)
        if not self._overlay.exempt(source):
            self._overlay.remove(source)
        return None

    def _link(self, real: Function, source: Any, target: Any, *args: Any, **kwargs: Any) -> None:
        if self._overlay.exempt(target):
            return real(source, target, *args, **kwargs)
        self._refuse_existing(target)
        # A hard link to the real file would let a later write reach it.
        origin = source if self._overlay.exempt(source) else self._overlay.prepare(source, keep=True)
        return real(origin, self._overlay.prepare(target, keep=False), *args, **kwargs)

    def _symlink(self, real: Function, source: Any, target: Any, *args: Any, **kwargs: Any) -> None:
        if self._overlay.exempt(target):
            return real(source, target, *args, **kwargs)
        self._refuse_existing(target)
        place = self._overlay.prepare(target, keep=False)
        absolute = os.path.isabs(source) and not self._overlay.exempt(source)
        return real(self._overlay.view(source) if absolute else source, place, *args, **kwargs)

    def _refuse_existing(self, path: Any) -> None:
        if self._overlay.exists(path):
            raise FileExistsError(17, "File exists", os.fspath(path))

    def _truncate(self, real: Function, path: Any, length: int) -> None:
        real(path if self._overlay.exempt(path) else self._overlay.prepare(path, keep=True), length)

    def _listdir(self, real: Function, path: Any = ".") -> Any:
        if self._overlay.exempt(path) or not self._overlay.touched(path):
            return real(path)
        names = [name for _, found in self._overlay.names(path) for name in found]
        return [os.fsencode(name) for name in names] if isinstance(path, bytes) else names

    def _scandir(self, real: Function, path: Any = ".") -> Any:
        if self._overlay.exempt(path) or not self._overlay.touched(path):
            return real(path)
        entries: list[Any] = []
        for folder, names in self._overlay.names(path):
            if names:
                with real(folder) as found:
                    entries += [entry for entry in found if entry.name in set(names)]
        return _Entries(entries)

    def _rmtree(self, real: Function, path: Any, *args: Any, **kwargs: Any) -> None:
        if self._overlay.exempt(path):
            return real(path, *args, **kwargs)
        if not self._overlay.exists(path):
            return real(self._overlay.private(path), *args, **kwargs)  # fails as the script expects
        return self._overlay.remove(path)

    def _save(self, real: Function, obj: object, f: Any, *args: Any, **kwargs: Any) -> Any:
        # torch writes archives in C++, which no patch of `open` sees.
        path = f if self._overlay.exempt(f) else self._overlay.prepare(f, keep=False)
        return real(obj, path, *args, **kwargs)

    def _load(self, real: Function, f: Any, *args: Any, **kwargs: Any) -> Any:
        if self._overlay.exempt(f):
            return real(f, *args, **kwargs)
        return self._read(real, f, *args, **kwargs)

    def _getcwd(self, real: Callable[[], str]) -> Callable[[], str]:
        def getcwd() -> str:
            if self._patches.passing:
                return real()
            with self._patches.real_files():
                return self._overlay.logical(real())

        return getcwd


class _Entries:
    """What `os.scandir` returns, over a list."""

    def __init__(self, entries: list[Any]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[Any]:
        return self._entries

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())


def _called_by_tempfile() -> bool:
    """Temporary names are unique and other programs may be given them: such files stay real."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") in (__name__, FilePatches.__module__):
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__") == "tempfile"
