"""Keeps a trial to itself: what a forward would print, write or start is stopped before it happens."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from ..frames import outside_stdlib, package_of
from .watch import is_torch

_STARTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty")
_CHANGES = (
    "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod",
    "shutil.copyfile", "shutil.move", "shutil.rmtree", "socket.connect", "socket.sendto",
)  # fmt: skip
_SETTINGS = ("os.putenv", "os.unsetenv")
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_HARMLESS = ("/dev/", "/proc/")
_COMPILERS = ("triton",)  # they write caches and start compilers while a kernel is called first


class Effect(BaseException):
    """Raised inside a forward in place of its effect; no `except Exception` of the script's stops it."""


@dataclass(slots=True)
class Effects:
    """What a contained forward tried to do to the world; None: nothing."""

    what: str | None = None

    def stop(self, what: str) -> None:
        """Remember `what` and raise `Effect`."""
        self.what = self.what or what
        raise Effect(what)


class _Contained(threading.local):
    effects: Effects | None = None


_contained = _Contained()
_write = os.write
_hooked = False


@contextmanager
def contained() -> Generator[Effects]:
    """Run code of this thread without effects outside of its memory; ends `Effect` quietly.

    Warnings are dropped: they come again, and are shown, when the forward runs in earnest.
    """
    _hook()
    effects = Effects()
    before, _contained.effects = _contained.effects, effects
    try:
        with warnings.catch_warnings(), _silent():
            warnings.simplefilter("ignore")
            yield effects
    except Effect:
        pass
    finally:
        _contained.effects = before


class _Watched:
    """Stands for a text stream: a write by a contained forward is an effect, all else passes through."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._write = stream, stream.write

    def write(self, text: str) -> int:
        if _contained.effects is not None and not _is_none_of_the_model():
            _contained.effects.stop("prints something")
        return self._write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def _silent() -> Generator[None]:
    """Watch the standard streams; their objects too, as far as that goes, since loggers hold these."""
    shown = sys.stdout, sys.stderr
    undo: list[Callable[[], None]] = []
    for stream in {id(s): s for s in (*shown, sys.__stdout__, sys.__stderr__) if s is not None}.values():
        own: object = getattr(stream, "__dict__", {}).get("write")
        try:
            stream.write = _Watched(stream).write
        except AttributeError:
            continue
        undo.append(
            partial(delattr, stream, "write") if own is None else partial(setattr, stream, "write", own)
        )
    sys.stdout, sys.stderr = (s if s is None else cast("Any", _Watched(s)) for s in shown)
    write, os.write = os.write, _descriptor_write  # no audit event tells of it
    try:
        yield
    finally:
        os.write = write
        sys.stdout, sys.stderr = shown
        for action in undo:
            action()


def _descriptor_write(descriptor: int, data: bytes) -> int:
    if _contained.effects is not None and not _is_none_of_the_model():
        _contained.effects.stop("writes to a descriptor")
    return _write(descriptor, data)


def _hook() -> None:
    global _hooked
    if not _hooked:
        _hooked = True
        contained, judge = _contained, _on_event  # the hook outlives the globals of this module

        def hook(event: str, args: tuple[Any, ...]) -> None:
            if contained.effects is not None:
                judge(contained.effects, event, args)

        sys.addaudithook(hook)  # for the life of the process; idle unless a trial is running


def _on_event(effects: Effects, event: str, args: tuple[Any, ...]) -> None:
    what = None
    if event == "open":
        what = f"writes the file {args[0]}" if _writes(*args) else None
    elif event in _STARTS:
        what = "starts another program or process"
    elif event in _SETTINGS:
        what = "changes the environment"
    elif event in _CHANGES:
        what = f"does {event}"
    if what is not None and not _is_none_of_the_model():
        effects.stop(what)


def _writes(path: object, mode: object, flags: object) -> bool:
    text = os.fsdecode(cast("str", path)) if isinstance(path, str | bytes | os.PathLike) else ""
    if text.startswith(_HARMLESS) or "__pycache__" in text:
        return False
    if isinstance(mode, str):
        return any(letter in mode for letter in "wxa+")
    return isinstance(flags, int) and bool(flags & _WRITE_FLAGS)


def _is_none_of_the_model() -> bool:
    """Whether torch or a compiler does it, or what somebody has put into torch to watch it.

    The nearest frame outside the standard library tells. A function called by one of torch's, other than as
    the forward of a module of the script's, stands for a function of torch: it watches, and computes nothing
    of the model.
    """
    frame = outside_stdlib(sys._getframe(2), "xl")  # pyright: ignore[reportPrivateUsage]
    if frame is None or package_of(frame) in (*_COMPILERS, "torch"):
        return frame is not None
    caller = frame.f_back
    if caller is None or package_of(caller) != "torch":
        return False
    module = caller.f_locals.get("self")
    return "_call_impl" not in caller.f_code.co_name or is_torch(type(module).__module__)
