"""Replaces Python's ways to files by functions that decide where a path leads, and then call the real one."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportPrivateUsage=false

from __future__ import annotations

import builtins
import bz2
import functools
import io
import os
import pathlib
import tarfile
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch

if TYPE_CHECKING:
    from .session import Session

Function = Callable[..., Any]

WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

_PATH = (str, bytes, os.PathLike)
_CAPABILITIES = ("supports_dir_fd", "supports_fd", "supports_follow_symlinks")
_PATHS_AT = {"rename": (0, 1), "replace": (0, 1), "link": (0, 1), "symlink": (0, 1)}


def writes(mode: str | int) -> bool:
    """Whether a file opened with this mode, or these flags of `os.open`, can be written."""
    return bool(mode & WRITE_FLAGS) if isinstance(mode, int) else any(letter in mode for letter in "wxa+")


class _Raw(threading.local):
    on = False


class FilePatches:
    """The patched functions of one session; what they call themselves reaches the real files.

    Args:
        session: patches go when it ends, and pass through once it stepped aside.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._raw = _Raw()
        self._opened: dict[int, tuple[tuple[int, int], str]] = {}  # by descriptor

    def opened(self, descriptor: int, folder: str) -> None:
        """Know a folder by its descriptor: the system would name it as rank 0 has renamed it since."""
        self._opened[descriptor] = _identity(descriptor), folder

    def replace(self, actions: Mapping[str, Function], opened: Function, saved: Function) -> None:
        """Replace functions of `os` by name, `open`, and `torch.save`."""
        for name, action in actions.items():
            if hasattr(os, name):
                self.patch(os, name, action, at=_PATHS_AT.get(name, (0,)))
        patched = self.patch(builtins, "open", opened)
        for owner, name in ((io, "open"), (bz2, "_builtin_open"), (tarfile, "bltn_open")):
            if hasattr(owner, name):  # they took `open` when they were imported
                self._session.patch(owner, name, patched)
        self.patch(torch, "save", saved, at=(1,))

    def patch(self, owner: object, name: str, action: Function, *, at: tuple[int, ...] = (0,)) -> Function:
        """Replace a function by `action(real, path, ...)`; its paths are the arguments `at`."""
        real = cast("Function", getattr(owner, name))

        @functools.wraps(real)
        def patched(*args: Any, **kwargs: Any) -> Any:
            if self.passing or kwargs.get("opener") is not None:  # an opener comes by here again
                return real(*args, **kwargs)
            args = _by_position(args, kwargs)
            if len(args) <= at[-1] or not all(isinstance(args[index], _PATH) for index in at):
                return real(*args, **kwargs)
            with self.real_files(), _naming([args[index] for index in at], name):
                return action(real, *self._from_folders(args, kwargs, at), **kwargs)

        return self._install(owner, name, patched)

    def patch_listing(self, name: str, action: Function) -> None:
        """Replace a function of `os` that lists a folder, given by its path, its descriptor or not at all."""
        real = cast("Function", getattr(os, name))

        @functools.wraps(real)
        def patched(path: Any = None) -> Any:
            if self.passing or not isinstance(path, (int, type(None), *_PATH)):
                return real(path)
            with self.real_files(), _naming(["." if path is None else path], name):
                if not isinstance(path, int):
                    return action(real, "." if path is None else path)
                return action(real, self._folder_of(path), by_descriptor=True)

        self._install(os, name, patched)

    def _from_folders(self, args: tuple[Any, ...], kwargs: dict[str, Any], at: tuple[int, ...]) -> list[Any]:
        """Put the folders that are given as descriptors before the paths."""
        moved = list(args)
        for name, index in (("dir_fd", at[-1]), ("src_dir_fd", 0), ("dst_dir_fd", 1)):
            folder = kwargs.pop(name, None)
            if folder is not None:
                moved[index] = os.path.join(self._folder_of(folder), os.fsdecode(moved[index]))
        return moved

    def _folder_of(self, descriptor: int) -> str:
        identity = _identity(descriptor)
        known = self._opened.get(descriptor)
        if known is not None and known[0] == identity:
            return known[1]
        return os.readlink(f"/proc/self/fd/{descriptor}")

    def _install(self, owner: object, name: str, patched: Function) -> Function:
        for capability in _CAPABILITIES:  # `shutil` looks functions up there
            if getattr(owner, name) in getattr(os, capability):
                self._session.patch(os, capability, {*getattr(os, capability), patched})
        self._session.patch(owner, name, patched)
        accessor = getattr(pathlib, "_NormalAccessor", None)  # Python 3.10 binds the functions of `os` early
        if accessor is not None and owner in (os, io) and hasattr(accessor, name):
            self._session.patch(accessor, name, cast("Any", staticmethod(patched)))
        return patched

    @property
    def passing(self) -> bool:
        """Whether calls reach the real functions now."""
        return self._raw.on or self._session.aside is not None

    @contextmanager
    def real_files(self) -> Generator[None]:
        """Let this thread's calls reach the real functions."""
        self._raw.on = True
        try:
            yield
        finally:
            self._raw.on = False


@contextmanager
def _naming(paths: Sequence[Any], function: str) -> Generator[None]:
    """Name files in the system's errors as the script did."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            names = [path if isinstance(path, int) else os.fspath(path) for path in paths]
            error.filename = None if function == "utime" else names[0]
            if len(names) > 1:
                error.filename2 = names[1]
        raise


def _by_position(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Take the paths out of the arguments given by name."""
    for names in (("file", "path", "src", "obj", "f"), ("dst", "f"))[len(args) :]:
        found = next((name for name in names if name in kwargs), None)
        if found is None:
            break
        args = (*args, kwargs.pop(found))
    return args


def _identity(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino
