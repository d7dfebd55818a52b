"""A worker's first lines: takes its settings, prepares the process, and runs the user's program as `__main__`.

XL_WORKER='{"run_id": …}' python -c '… from xl.runtime.bootstrap import main; main()' … script train.py --epochs 3
"""

from __future__ import annotations

import json
import signal
import sys
import time
import traceback

from ..configs.commands import Program
from ..configs.env import WORKER_VARIABLE, take_variable
from ..configs.errors import XlError
from ..configs.processes import set_parent_death_signal
from ..configs.worker import WorkerSettings
from .finish import close_at_exit, close_process_groups, leave_soon
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
    try:
        close_at_exit(close_process_groups)
        seed_worker(settings)
        preparation = _prepare(settings, program.after_torch)
        run_target(program.target)
        preparation.finish()
    except SystemExit as ending:
        if ending.code not in (None, 0):
            code = ending.code if isinstance(ending.code, int) else 1
            _describe(settings, ending, f"the script ended itself: sys.exit({ending.code!r})", "")
            leave_soon(code)
        raise
    except BaseException as error:
        _report(settings, error)
        raise


class _Preparation:
    """What was done to this process for the script, so that its end can be made orderly."""

    def __init__(self, settings: WorkerSettings) -> None:
        self.settings = settings
        self.session: object | None = None

    def install_shim(self) -> None:
        from .shim.install import install

        session = install(self.settings)
        close_at_exit(session.close)
        self.session = session

    def serve_store(self) -> None:
        """Serve the store whose clients all ranks of the script's own process group are."""
        from .rendezvous import connect_store

        store = connect_store(self.settings)
        close_at_exit(lambda: _forget(store))

    def finish(self) -> None:
        if self.session is not None:
            self.session.finish()


def _forget(_store: object) -> None:
    """Holding the store as an argument of an exit handler is what keeps it served until then."""


def _prepare(settings: WorkerSettings, after_torch: bool) -> _Preparation:
    preparation = _Preparation(settings)
    if settings.kind != "plain":
        if settings.rank == 0 and settings.store_fd is not None:
            when_imported("torch", preparation.serve_store)
    elif _needs_shim(settings):
        if after_torch:
            when_imported("torch", preparation.install_shim)
        else:
            preparation.install_shim()
    return preparation


def _needs_shim(settings: WorkerSettings) -> bool:
    return (
        settings.world_size > 1
        or settings.mixed_precision != "no"
        or settings.gradient_accumulation_steps > 1
    )


def _report(settings: WorkerSettings, error: BaseException) -> None:
    """Show an uncaught error as Python does, without xl's frames, and describe it to the launcher."""
    shown = user_traceback(error)
    if isinstance(error, XlError):
        where = traceback.extract_tb(shown)
        text = f"{error}\n" + (f"at:    {where[-1].filename}:{where[-1].lineno}\n" if where else "")
        sys.stderr.write(text)
    else:
        text = "".join(traceback.format_exception(type(error), error.with_traceback(shown), shown))
        sys.excepthook(type(error), error, shown)
    _describe(settings, error, str(error), text)
    # Already shown. The interpreter still does all the rest of an ending by an error: exit handlers, exit code 1,
    # or death by SIGINT for KeyboardInterrupt.
    sys.excepthook = _say_nothing
    leave_soon(1)


def _say_nothing(*_: object) -> None:
    pass


def _describe(settings: WorkerSettings, error: BaseException, message: str, text: str) -> None:
    if settings.error_file is None:
        return
    description = {
        "rank": settings.rank,
        "time": time.time(),
        "type": type(error).__name__,
        "message": message,
        "traceback": text,
    }
    try:
        with open(settings.error_file, "w") as file:
            json.dump(description, file)
    except OSError as failure:  # a full disk must not hide the error itself
        print(f"xl: cannot write {settings.error_file}: {failure}", file=sys.stderr)
