"""Ends a forked worker as the interpreter would, without touching the memory that it shares with the others.

Taking the interpreter down clears every module, torch's thousand included: it writes to each of their
objects, and the kernel then copies nearly all that the fork had shared. With 8 workers that is most of a
launch's CPU time. So a forked worker does what a script can notice of it (threads, exit handlers, destructors
of its own objects, flushed files) and leaves the modules alone that were there before the fork.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Collection
from contextlib import suppress
from io import BufferedWriter, TextIOWrapper
from types import ModuleType
from typing import NoReturn

_FLUSH_FAILED = 120
"""Python's own exit code for standard output that could not be written at the end."""


def run_and_leave(run: Callable[[], None]) -> NoReturn:
    """Call `run` and end this process as Python ends after a main program that did the same."""
    kept = frozenset(sys.modules) - {"__main__"}
    os._exit(_end(_outcome(run), kept))


def _outcome(run: Callable[[], None]) -> int:
    try:
        run()
    except SystemExit as ending:
        if ending.code is None or isinstance(ending.code, int):
            return (ending.code or 0) & 0xFF
        print(ending.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return -signal.SIGINT
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0


def _end(code: int, kept: Collection[str]) -> int:
    # As multiprocessing does at the end of its forked children; there is no public name for either.
    threading._shutdown()  # pyright: ignore
    atexit._run_exitfuncs()  # pyright: ignore
    code = _flush(code)
    _flush_open_files()
    _drop_modules(kept)
    code = _flush(code)
    ctypes.CDLL(None).fflush(None)  # what compiled code printed
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def _flush(code: int) -> int:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except ValueError:  # closed by the script
            continue
        except OSError as error:
            if stream is sys.stdout and code == 0:
                print(f"Exception ignored in: {stream!r}\n{type(error).__name__}: {error}", file=sys.stderr)
                code = _FLUSH_FAILED
    return code


def _flush_open_files() -> None:
    """Write what is buffered in files that the script left open.

    The garbage collector may close a text file's buffer before the file; what the file held is then lost.
    """
    files = [found for found in gc.get_objects() if issubclass(type(found), (TextIOWrapper, BufferedWriter))]
    for file in sorted(files, key=lambda file: isinstance(file, BufferedWriter)):
        with suppress(OSError, ValueError):  # closed, or its disk is full: Python ignores that here as well
            file.flush()


def _drop_modules(kept: Collection[str]) -> None:
    """Let go of the script and of all that it imported, so that destructors run."""
    # In the order of the imports, the script itself first.
    names = ["__main__", *(name for name in sys.modules if name not in kept and name != "__main__")]
    alive = [weakref.ref(module) for module in map(_remove, names) if module is not None]
    gc.collect()
    # A function that somebody still holds keeps its module's names alive; running threads may need them.
    if threading.active_count() == 1:
        for reference in reversed(alive):
            module = reference()
            if module is not None:
                module.__dict__.clear()
        gc.collect()


def _remove(name: str) -> ModuleType | None:
    return sys.modules.pop(name, None)
