"""Replaces Python's ways to files by functions that decide where a path leads, and then call the real one."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportPrivateUsage=false

from __future__ import annotations

import builtins
import functools
import io
import os
import pathlib
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch

if TYPE_CHECKING:
    from .session import Session

Function = Callable[..., Any]

WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def writes(mode: str | int) -> bool:
    """Whether a file opened with this mode, or these flags of `os.open`, can be written."""
    return bool(mode & WRITE_FLAGS) if isinstance(mode, int) else any(letter in mode for letter in "wxa+")


class _Raw(threading.local):
    on = False


class FilePatches:
    """The patched functions of one session; what they call themselves reaches the real files.

    Args:
        session: patches go when it ends, and pass through once it stepped aside.
        shown: gives the path as the script wrote it, for the errors of the system.
    """

    def __init__(self, session: Session, shown: Callable[[str], str] = str) -> None:
        self._session, self._shown = session, shown
        self._raw = _Raw()

    def replace(self, actions: Mapping[str, Function], opened: Function, saved: Function) -> None:
        """Replace functions of `os` by name, `open`, and `torch.save`."""
        for name, action in actions.items():
            if hasattr(os, name):
                self.patch(os, name, action)
        self._session.patch(io, "open", self.patch(builtins, "open", opened))
        self.patch(torch, "save", saved)

    def patch(self, owner: object, name: str, action: Callable[..., Any]) -> Function:
        """Replace a function by `action(real, path, ...)`."""
        real = cast("Function", getattr(owner, name))

        @functools.wraps(real)
        def patched(*args: Any, **kwargs: Any) -> Any:
            if self.passing or any(key.endswith("dir_fd") for key in kwargs):
                return real(*args, **kwargs)
            if kwargs.get("opener") is not None:  # it opens something by itself, and comes by here again
                return real(*args, **kwargs)
            args = _by_position(args, kwargs)
            with self.real_files():
                try:
                    return action(real, *args, **kwargs)
                except OSError as error:  # name the file as the script did
                    if isinstance(error.filename, str):
                        error.filename = self._shown(error.filename)
                    raise

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


def _by_position(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Take the paths out of the arguments given by name."""
    for names in (("file", "path", "src", "obj", "f"), ("dst", "f"))[len(args) :]:
        found = next((name for name in names if name in kwargs), None)
        if found is None:
            break
        args = (*args, kwargs.pop(found))
    return args
