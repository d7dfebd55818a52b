"""Watches the workers of one launch: passes signals on, ends all when one fails, restarts, reports."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Generator
from contextlib import contextmanager
from queue import Empty
from types import FrameType

from ..configs.engine_messages import Exited, Started
from ..configs.processes import handles_sigterm
from .executors.base import Happening, Happenings, SignalReceived, Starter, StarterLost
from .output import Output, Terminal
from .plan import LaunchPlan, WorkerStart
from .report import Failure, describe_failure, failure_report, first_failure, say, signal_name

INTERRUPT_PATIENCE_S = 1.0
"""How long workers have to end by Ctrl-C's KeyboardInterrupt, which one in a collective never sees."""

FAILURE_PATIENCE_S = 1.0
"""How long the others have to end by themselves once one has failed: an error of all comes to them at about
the same time, and ending those that are a moment late would leave the report to chance."""

_MOST_AHEAD = 8
"""Workers that are ordered and not yet started; a signal has to wait for no more than these."""

_STOP = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
_PASS_ON = tuple(getattr(signal, name) for name in ("SIGUSR1", "SIGUSR2") if hasattr(signal, name))
_RESIZE = getattr(signal, "SIGWINCH", None)
_SUSPEND = getattr(signal, "SIGTSTP", None)


class Supervisor:
    """Runs a plan's workers to their end.

    Args:
        starter: starts them; tells what happens through `happenings`, as our signal handlers do.
    """

    def __init__(self, plan: LaunchPlan, starter: Starter, happenings: Happenings) -> None:
        self._plan, self._starter, self._happenings = plan, starter, happenings
        self._terminal = Terminal()
        self._living: dict[int, WorkerStart] = {}  # by rank
        self._pids: dict[int, int] = {}
        self._failures: list[Failure] = []
        self._ended: list[Failure] = []  # by us, though with an error of their own to tell of
        self._stopped_by: int | None = None
        self._lost: int | None = None  # the return code of a starter that is gone
        self._ending_since: float | None = None
        self._failed_since = 0.0  # by the monotonic clock, where there are failures

    def run(self) -> int:
        """Return the launch's exit code: the first failing worker's, 128+n for a signal, else 0."""
        with self._signals():
            for attempt in range(self._plan.max_restarts + 1):
                self._attempt(attempt)
                if self._stopped_by is not None:
                    if self._failures:
                        self._report_failure()
                    return 128 + self._stopped_by
                if self._lost is not None:
                    return self._report_lost(self._lost)
                if not self._failures:
                    return 0
                left = self._plan.max_restarts - attempt
                if left:
                    failure = first_failure(self._failures)
                    say(
                        f"xl: rank {failure.start.settings.rank} failed ({failure.cause}); "
                        f"restart {attempt + 1} of {self._plan.max_restarts}"
                    )
            return self._report_failure()

    def _report_failure(self) -> int:
        failure = first_failure(self._failures)
        others = [other for other in self._failures if other is not failure]
        say(failure_report(failure, others, self._ended))
        return failure.exit_code

    def _attempt(self, attempt: int) -> None:
        """Start all workers, wait until all have ended or the first has failed, and leave nothing behind."""
        self._failures, self._ended, self._pids, self._ending_since = [], [], {}, None
        output = Output(self._terminal, self._plan.hostname, self._plan.shown)
        for local_rank in range(len(self._plan.workers)):
            if not self._may_start(local_rank):
                break
            start = self._plan.worker(local_rank, attempt)
            fds = output.open_worker(start)
            self._living[start.settings.rank] = start
            self._starter.start(start, fds)
            fds.close()
        while self._living and not self._failures and not self._is_stopped():
            self._take(self._happenings.get())
        self._let_others_fail()
        if self._living:
            self._end_workers()
        self._starter.sweep()
        self._take_all()
        self._living.clear()
        output.close(timeout_s=INTERRUPT_PATIENCE_S if self._stopped_by is not None else None)

    def _may_start(self, num_ordered: int) -> bool:
        """Take what happens until the next worker may be ordered; False once there is no use in it."""
        while True:
            self._take_all()
            if self._is_stopped() or (self._failures and self._patience_s() == 0.0):
                return False
            if num_ordered - len(self._pids) < _MOST_AHEAD:
                return True
            self._take(self._happenings.get())

    def _patience_s(self) -> float:
        """How long the others still have to end by themselves, a worker having failed."""
        if not any(failure.returncode >= 0 for failure in self._failures):
            return 0.0  # one that was killed says nothing of the others
        return max(0.0, self._failed_since + FAILURE_PATIENCE_S - time.monotonic())

    def _is_stopped(self) -> bool:
        return self._stopped_by is not None or self._lost is not None

    def _let_others_fail(self) -> None:
        while self._living and not self._is_stopped():
            try:
                self._take(self._happenings.get(timeout=self._patience_s()))
            except Empty:
                return

    def _take(self, happening: Happening) -> None:
        if isinstance(happening, Started):
            self._pids[happening.rank] = happening.pid
            if happening.fresh_because is not None and happening.rank == 0:
                say(f"xl: each process starts an interpreter of its own: {happening.fresh_because}")
        elif isinstance(happening, Exited):
            self._take_exit(happening)
        elif isinstance(happening, StarterLost):
            self._lost = happening.returncode
        else:
            self._take_signal(happening.signum)

    def _take_exit(self, exited: Exited) -> None:
        start = self._living.pop(exited.rank)
        if exited.returncode == 0:
            return
        failure = describe_failure(start, exited.returncode, exited.time)
        # Once we have begun to end the workers, an end is our doing, unless it tells of an error before that.
        if self._ending_since is None or (failure.error is not None and failure.time < self._ending_since):
            if not self._failures:
                self._failed_since = time.monotonic()
            self._failures.append(failure)
        elif failure.error is not None:
            self._ended.append(failure)

    def _take_signal(self, signum: int) -> None:
        if signum in _STOP:
            self._stopped_by = self._stopped_by or signum
        elif signum == _SUSPEND:
            # Ctrl-Z: the workers' sessions are not the terminal's, so they stop with us because we say so.
            self._starter.signal(signal.SIGSTOP, group=True)
            os.kill(os.getpid(), signal.SIGSTOP)
            self._starter.signal(signal.SIGCONT, group=True)
        elif signum == _RESIZE:
            if self._terminal.pty is not None:
                self._terminal.copy_size()
                self._starter.signal(signum)
        else:
            self._starter.signal(signum)

    def _end_workers(self) -> None:
        """Ask the living workers to end and give those time that want it; what is left is for the sweep."""
        self._ending_since = time.time()
        if self._stopped_by == signal.SIGINT:
            self._starter.signal(signal.SIGINT, group=True)
            if not self._wait(INTERRUPT_PATIENCE_S, set(self._living)):
                return
        patient = {rank for rank in self._living if handles_sigterm(self._pids.get(rank, 0))}
        self._starter.signal(signal.SIGTERM)
        self._wait(self._plan.grace_period_s, patient)

    def _wait(self, seconds: float, ranks: set[int]) -> bool:
        """Wait until none of `ranks` lives or the time is over; False if a second signal says: now."""
        end = time.monotonic() + seconds
        while ranks & self._living.keys():
            try:
                happening = self._happenings.get(timeout=max(0.0, end - time.monotonic()))
            except Empty:
                return True
            if isinstance(happening, SignalReceived) and happening.signum in _STOP and self._stopped_by:
                return False
            self._take(happening)
            if self._lost is not None:
                return False
        return True

    def _take_all(self) -> None:
        """Take what has happened up to now."""
        while not self._happenings.empty():
            self._take(self._happenings.get())

    def _report_lost(self, returncode: int) -> int:
        how = (
            f"died of {signal_name(-returncode)}" if returncode < 0 else f"ended with exit code {returncode}"
        )
        say(f"xl: the process that starts the workers {how}; all workers have been ended")
        return 128 - returncode if returncode < 0 else returncode or 1

    @contextmanager
    def _signals(self) -> Generator[None]:
        """Turn signals into happenings; one that was ignored when xl started (nohup) stays ignored."""
        before = {
            signum: signal.signal(signum, self._note_signal)
            for signum in (*_STOP, *_PASS_ON, _RESIZE, _SUSPEND)
            if signum is not None and signal.getsignal(signum) != signal.SIG_IGN
        }
        try:
            yield
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)

    def _note_signal(self, signum: int, _frame: FrameType | None) -> None:
        self._happenings.put(SignalReceived(signum))
