"""Running the user's program as `python` itself would: the real `__main__`, path, arguments, tracebacks."""

from __future__ import annotations

import io
import os
import runpy
import sys
from pathlib import Path
from types import ModuleType, TracebackType

from ..configs.worker import Target


def run_target(target: Target) -> None:
    """Run `target` to its end in this process; whatever it raises comes out."""
    main = ModuleType("__main__")
    sys.modules["__main__"] = main
    if target.module:
        # `python -m` puts the working directory first; runpy puts the module's path into argv[0].
        sys.path.insert(0, os.getcwd())
        sys.argv = ["-m", *target.args]
        _run_as_main(target.name)
    elif os.path.isdir(target.name) or _is_zip(target.name):
        sys.path.insert(0, target.name)
        sys.argv = [target.name, *target.args]
        _run_as_main("__main__", alter_argv=False)
    else:
        sys.path.insert(0, os.path.dirname(os.path.realpath(target.name)))
        sys.argv = [target.name, *target.args]
        _run_file(target.name, main)


def _run_as_main(module: str, *, alter_argv: bool = True) -> None:
    # What `python -m` itself calls; the public run_module puts a temporary module into the place of __main__.
    runpy._run_module_as_main(module, alter_argv)  # pyright: ignore


def _is_zip(name: str) -> bool:
    with open(name, "rb") as file:
        return file.read(4) == b"PK\x03\x04"


def _run_file(name: str, main: ModuleType) -> None:
    main.__dict__.update(
        __file__=name,
        __builtins__=sys.modules["builtins"],
        __spec__=None,
        __cached__=None,
        __annotations__={},
    )
    with io.open_code(os.path.abspath(name)) as file:
        code = compile(file.read(), name, "exec", dont_inherit=True)
    exec(code, main.__dict__)


def user_traceback(error: BaseException) -> TracebackType | None:
    """Return the error's traceback without the frames of xl and of runpy.

    Where the innermost frame is ours (a fault of xl and no user's mistake) all frames stay.
    """
    frames: list[TracebackType] = []
    trace = error.__traceback__
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    users = [frame for frame in _after_our_start(frames) if not _is_ours(frame)]
    # An error while the program is looked for or compiled has no frame of the user's, and needs none.
    if not users and not isinstance(error, (SyntaxError, ImportError, OSError)):
        return error.__traceback__
    kept: TracebackType | None = None
    for frame in reversed(users):
        kept = TracebackType(kept, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return kept


def _after_our_start(frames: list[TracebackType]) -> list[TracebackType]:
    """Drop the outermost frames, down to the user's first."""
    for position, frame in enumerate(frames):
        if not _is_ours(frame) and frame.tb_frame.f_code.co_filename not in _STARTERS:
            return frames[position:]
    return []


def _is_ours(trace: TracebackType) -> bool:
    return trace.tb_frame.f_code.co_filename.startswith(_OUR_FOLDERS)


_PACKAGE = Path(__file__).resolve().parents[1]
_OUR_FOLDERS = tuple(f"{_PACKAGE / folder}{os.sep}" for folder in ("runtime", "configs"))
_STARTERS = {runpy.__file__, "<frozen runpy>", "<string>"}
