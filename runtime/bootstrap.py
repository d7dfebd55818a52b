"""A worker's first lines: takes its settings, prepares the process, runs the user's program as `__main__`.

XL_WORKER='{…}' python -c '… from xl.runtime.bootstrap import main; main()' … script train.py
"""

from __future__ import annotations

import json
import signal
import sys
import time
import traceback
from types import TracebackType
from typing import Protocol

from ..configs.commands import Program
from ..configs.env import WORKER_VARIABLE, take_variable
from ..configs.errors import XlError
from ..configs.processes import set_parent_death_signal
from ..configs.worker import WorkerSettings
from .facts import tell
from .finish import Ending
from .imports import when_imported
from .script import run_target, user_traceback
from .seeding import seed_worker


def main() -> None:
    """Run a worker in an interpreter of its own."""
    text = take_variable(WORKER_VARIABLE)
    assert text is not None, f"{WORKER_VARIABLE} is not set"
    settings = WorkerSettings.from_json(text)
    if settings.error_file is not None:  # a launcher watches: this process must not outlive it
        set_parent_death_signal(signal.SIGKILL)
    run_worker(settings, Program.from_argv(sys.argv[1:]))


def run_worker(settings: WorkerSettings, program: Program) -> None:
    """Run the user's program under `settings`; returns or raises exactly as the program did."""
    worker = _Worker(settings)
    try:
        worker.prepare(program)
        try:
            run_target(program.target)
        except SystemExit as ending:
            if ending.code not in (None, 0):
                raise
            worker.finish()
            raise
        worker.finish()
    except SystemExit as ending:
        worker.ended_itself(ending)
        raise
    except XlError as error:
        worker.failed(error, error.exit_code)
        raise SystemExit(error.exit_code) from None
    except BaseException as error:
        worker.failed(error, 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1)
        raise


class ShimSession(Protocol):
    """What the shim leaves: `finish` for the script's normal end, `close` for the interpreter's end."""

    def finish(self) -> None: ...

    def close(self) -> None: ...


class _Worker:
    """What is done to this process before the script starts and after it has ended."""

    def __init__(self, settings: WorkerSettings) -> None:
        self.settings = settings
        self.ending = Ending()
        self.session: ShimSession | None = None

    def prepare(self, program: Program) -> None:
        settings = self.settings
        tell(settings)
        seed_worker(settings)
        if settings.kind != "plain":
            if settings.rank == 0 and settings.store_fd is not None:
                when_imported("torch", self._serve_store)
        elif _needs_shim(settings):
            if program.after_torch:
                when_imported("torch", self._install_shim)
            else:
                self._install_shim()

    def _install_shim(self) -> None:
        from .shim.install import install

        self.session = install(self.settings)
        self.ending.add(self.session.close)

    def _serve_store(self) -> None:
        """Serve the store whose clients all ranks of the script's own process group are."""
        from .rendezvous import connect_store

        store = connect_store(self.settings)
        # The store is served for as long as somebody refers to it.
        self.ending.add(lambda: _forget(store))

    def finish(self) -> None:
        """The script has come to its normal end."""
        if self.session is not None:
            self.session.finish()

    def ended_itself(self, ending: SystemExit) -> None:
        """The script called `sys.exit`, on which Python acts as always."""
        if ending.code in (None, 0):
            return
        code = ending.code if isinstance(ending.code, int) else 1
        self.ending.failed_with = code & 0xFF
        self._describe(ending, f"the script ended itself: sys.exit({ending.code!r})", "", code & 0xFF)

    def failed(self, error: BaseException, exit_code: int) -> None:
        """Show an uncaught error as Python does, without xl's frames, and describe it to the launcher."""
        self.ending.failed_with = exit_code
        shown = user_traceback(error)
        if isinstance(error, XlError):
            text = f"{error}\n" + "".join(f"at:    {f.filename}:{f.lineno}\n" for f in _last_frame(shown))
            sys.stderr.write(text)
        else:
            text = "".join(traceback.format_exception(type(error), error.with_traceback(shown), shown))
            sys.excepthook(type(error), error, shown)
        self._describe(error, str(error), text, exit_code)
        # Already shown. The interpreter still does all the rest of an ending by an error: exit handlers, exit
        # code 1, or death by SIGINT for KeyboardInterrupt.
        sys.excepthook = _say_nothing

    def _describe(self, error: BaseException, message: str, text: str, exit_code: int) -> None:
        if self.settings.error_file is None:
            return
        description = {
            "rank": self.settings.rank,
            "time": time.time(),
            "type": type(error).__name__,
            "message": message,
            "traceback": text,
            "exit_code": exit_code,
        }
        try:
            with open(self.settings.error_file, "w") as file:
                json.dump(description, file)
        except OSError as failure:  # a full disk must not hide the error itself
            print(f"xl: cannot write {self.settings.error_file}: {failure}", file=sys.stderr)


def _needs_shim(settings: WorkerSettings) -> bool:
    return (
        settings.world_size > 1
        or settings.mixed_precision != "no"
        or settings.gradient_accumulation_steps > 1
    )


def _last_frame(trace: TracebackType | None) -> list[traceback.FrameSummary]:
    return traceback.extract_tb(trace)[-1:]


def _forget(_store: object) -> None:
    """Does nothing: being an argument of an exit handler is what keeps the store."""


def _say_nothing(*_: object) -> None:
    """Stands in for `sys.excepthook` once the error has been shown."""
