"""Ranks above 0 never touch the user's files: what they write, rename and remove is in a private overlay.

Covered is what goes through Python's `open`, `os`, `shutil` and `torch.save`/`load`, and so `pathlib`, numpy
and most libraries. Not covered are libraries that open files in C (sqlite, HDF5) and other programs.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportPrivateUsage=false
# (torch annotates parts of itself incompletely, and not all that a shim needs is public)

from __future__ import annotations

import builtins
import functools
import io
import os
import pathlib
import shutil
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch

from .overlay import Overlay

if TYPE_CHECKING:
    from .session import Session

Function = Callable[..., Any]

_LOOKING = ("stat", "lstat", "access", "readlink", "chdir", "statvfs", "getxattr", "listxattr")
_MARKING = ("chmod", "chown", "utime", "lchown", "setxattr", "removexattr")
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def install(session: Session, root: str) -> None:
    """Patch this process's ways to files; `root` is the overlay's folder."""
    overlay = Overlay(root)
    for path in (session.settings.error_file, session.settings.report_file):
        if path is not None:
            overlay.made_by_us(path)
    _Files(session, overlay).install()


class _Raw(threading.local):
    on = False


class _Files:
    """The patched functions; each decides where a path leads and then calls the real one."""

    def __init__(self, session: Session, overlay: Overlay) -> None:
        self._session, self._overlay = session, overlay
        self._raw = _Raw()

    def install(self) -> None:
        """Patch everything."""
        for name in _LOOKING:
            if hasattr(os, name):
                self._patch(os, name, self._look)
        for name in _MARKING:
            if hasattr(os, name):
                self._patch(os, name, self._mark)
        actions = {
            "open": self._os_open, "mkdir": self._mkdir, "rmdir": self._rmdir, "unlink": self._unlink,
            "remove": self._unlink, "rename": self._rename, "replace": self._rename, "link": self._link,
            "symlink": self._link, "truncate": self._truncate, "listdir": self._listdir,
            "scandir": self._scandir,
        }  # fmt: skip
        for name, action in actions.items():
            self._patch(os, name, action)
        opened = self._patch(builtins, "open", self._open)
        self._session.patch(io, "open", opened)
        self._patch(shutil, "rmtree", self._rmtree)
        self._patch(torch, "save", self._save)
        self._patch(torch, "load", self._load)
        self._session.patch(os, "getcwd", self._getcwd(os.getcwd))

    def _patch(self, owner: object, name: str, action: Callable[..., Any]) -> Function:
        """Replace a function by `action(real, path, ...)`, for paths that the overlay is for."""
        real = cast("Function", getattr(owner, name))

        @functools.wraps(real)
        def patched(*args: Any, **kwargs: Any) -> Any:
            if (
                self._raw.on
                or self._session.aside is not None
                or any(key.endswith("dir_fd") for key in kwargs)
            ):
                return real(*args, **kwargs)
            with self._passing():
                try:
                    return action(real, *args, **kwargs)
                except OSError as error:  # name the file as the script did
                    if isinstance(error.filename, str):
                        error.filename = self._overlay.logical(error.filename)
                    raise

        self._session.patch(owner, name, patched)
        accessor = getattr(pathlib, "_NormalAccessor", None)  # Python 3.10 binds the functions of `os` early
        if accessor is not None and owner in (os, io) and hasattr(accessor, name):
            self._session.patch(accessor, name, cast("Any", staticmethod(patched)))
        return patched

    @contextmanager
    def _passing(self) -> Generator[None]:
        self._raw.on = True
        try:
            yield
        finally:
            self._raw.on = False

    def _look(self, real: Function, path: Any, *args: Any, **kwargs: Any) -> Any:
        return real(path if self._overlay.exempt(path) else self._overlay.view(path), *args, **kwargs)

    def _mark(self, real: Function, path: Any, *args: Any, **kwargs: Any) -> Any:
        if self._overlay.exempt(path):
            return real(path, *args, **kwargs)
        return real(self._overlay.private(path), *args, **kwargs) if self._overlay.has_private(path) else None

    def _open(self, real: Function, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if self._overlay.exempt(file):
            return real(file, mode, *args, **kwargs)
        if not any(letter in mode for letter in "wxa+"):
            return real(self._overlay.view(file), mode, *args, **kwargs)
        if "x" in mode and self._overlay.existed_before(file):
            raise FileExistsError(17, "File exists", os.fspath(file))
        return real(
            self._overlay.prepare(file, keep="w" not in mode and "x" not in mode), mode, *args, **kwargs
        )

    def _os_open(self, real: Function, path: Any, flags: int, *args: Any, **kwargs: Any) -> Any:
        if _called_by_tempfile():
            self._overlay.made_by_us(path)
        if self._overlay.exempt(path):
            return real(path, flags, *args, **kwargs)
        if not flags & _WRITE_FLAGS:
            return real(self._overlay.view(path), flags, *args, **kwargs)
        if flags & os.O_EXCL and self._overlay.existed_before(path):
            raise FileExistsError(17, "File exists", os.fspath(path))
        keep = not flags & (os.O_TRUNC | os.O_EXCL)
        return real(self._overlay.prepare(path, keep=keep), flags, *args, **kwargs)

    def _mkdir(self, real: Function, path: Any, *args: Any, **kwargs: Any) -> None:
        if _called_by_tempfile():
            self._overlay.made_by_us(path)
        if self._overlay.exempt(path):
            return real(path, *args, **kwargs)
        if self._overlay.existed_before(path):
            raise FileExistsError(17, "File exists", os.fspath(path))
        self._overlay.revive(path)
        return real(self._overlay.prepare(path, keep=False), *args, **kwargs)

    def _unlink(self, real: Function, path: Any, *args: Any, **kwargs: Any) -> None:
        if self._overlay.exempt(path):
            return real(path, *args, **kwargs)
        seen = self._overlay.view(path)
        if os.path.isdir(seen) and not os.path.islink(seen):
            raise IsADirectoryError(21, "Is a directory", os.fspath(path))
        # A file that is missing may have been removed by rank 0 a moment ago.
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
        if self._overlay.existed_before(target):
            raise FileExistsError(17, "File exists", os.fspath(target))
        place = self._overlay.prepare(target, keep=False)
        absolute = os.path.isabs(source) and not self._overlay.exempt(source)
        return real(self._overlay.view(source) if absolute else source, place, *args, **kwargs)

    def _truncate(self, real: Function, path: Any, length: int) -> None:
        real(path if self._overlay.exempt(path) else self._overlay.prepare(path, keep=True), length)

    def _listdir(self, real: Function, path: Any = ".") -> Any:
        if self._overlay.exempt(path) or not self._overlay.touched(path):
            return real(path)
        names, private = self._overlay.names(path)
        return [os.fsencode(n) for n in names + private] if isinstance(path, bytes) else names + private

    def _scandir(self, real: Function, path: Any = ".") -> Any:
        if self._overlay.exempt(path) or not self._overlay.touched(path):
            return real(path)
        names, private = self._overlay.names(path)
        places = [(self._overlay.logical(path), set(names)), (self._overlay.private(path), set(private))]
        entries: list[Any] = []
        for folder, wanted in places:
            if wanted:
                with real(folder) as found:
                    entries += [entry for entry in found if entry.name in wanted]
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
        return real(f if self._overlay.exempt(f) else self._overlay.view(f), *args, **kwargs)

    def _getcwd(self, real: Callable[[], str]) -> Callable[[], str]:
        def getcwd() -> str:
            if self._raw.on or self._session.aside is not None:
                return real()
            with self._passing():
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
    while frame is not None and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__") == "tempfile"
