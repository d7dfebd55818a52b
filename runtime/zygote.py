"""The process that starts the workers: it imports torch once and forks them, or starts new interpreters.

The launcher starts it with one end of a local socket. It obeys `StartWorker`, `SignalWorkers` and `Sweep`,
and reports `Started`, `Exited` and `Swept`. When the launcher goes away, it kills all below it and ends.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from io import TextIOWrapper
from types import FrameType
from typing import BinaryIO, NoReturn, cast

from ..configs.commands import Program, bootstrap_argv
from ..configs.engine_messages import (
    Command,
    Event,
    Exited,
    SignalWorkers,
    Started,
    StartWorker,
    Sweep,
    Swept,
    receive,
    send,
)
from ..configs.env import WORKER_VARIABLE, change_environment, read_environ
from ..configs.errors import XlError
from ..configs.processes import become_subreaper, set_parent_death_signal, sweep
from ..configs.worker import WorkerSettings
from .bootstrap import run_worker
from .leaving import run_and_leave

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> None:
    """Serve the launcher; what follows `serve` happens in forked workers only."""
    fd, launcher, mode, *argv = sys.argv[1:]
    # Until it listens, this process cannot see its launcher go, and the kernel must end it; afterwards it
    # must outlive the launcher.
    set_parent_death_signal(signal.SIGKILL)
    become_subreaper()
    link = socket.socket(fileno=int(fd))
    link.set_inheritable(False)
    ready = _import_torch() if mode == "fork" else _Import(None)
    set_parent_death_signal(0)
    if os.getppid() != int(launcher):
        sys.exit(1)
    program = Program.from_argv(argv)
    try:
        order = Zygote(link, program, ready, fork=mode == "fork").serve()
    except XlError as error:
        sys.stderr.write(f"{error}\n")
        sweep()
        os._exit(error.exit_code)
    run_and_leave(lambda: run_worker(order.settings, program))


@dataclass(frozen=True, slots=True)
class _Import:
    """What came of importing torch: why nothing can be forked, if so, and the threads that fork safely."""

    failure: str | None
    num_threads: int = 1


def _import_torch() -> _Import:
    with suppress(ImportError):
        import_module("numpy")
    # The threads of numpy's BLAS end before a fork and start again when they are needed.
    num_threads = _num_threads()
    try:
        for name in ("torch", "torch.distributed", "torch.utils.data"):
            import_module(name)
        gc.freeze()  # a collection in a worker would write to, and so copy, what it shares with the others
    except Exception as error:  # the script's own import shall report it in full
        return _Import(f"torch cannot be imported: {type(error).__name__}: {error}")
    return _Import(None, num_threads)


def _import_compiler() -> None:
    """Import what torch's first optimizer imports in any case; it takes as long as torch itself."""
    if "torch._dynamo" not in sys.modules:
        with suppress(ImportError):
            import_module("torch._dynamo")
        gc.freeze()


def _num_threads() -> int:
    return len(os.listdir("/proc/self/task"))


@dataclass(slots=True)
class Zygote:
    """Starts workers and watches them, in one thread.

    Args:
        link: our end of the launcher's socket; each packet is one message.
        program: what workers run.
        ready: what came of importing torch.
        fork: fork workers where that is safe; else start an interpreter for each.
    """

    link: socket.socket
    program: Program
    ready: _Import
    fork: bool
    ranks: dict[int, int] = field(default_factory=lambda: {})  # of the living workers, by process id
    stopped_by: int | None = None
    handlers: dict[int, object] = field(default_factory=lambda: {})

    def serve(self) -> StartWorker:
        """Obey the launcher until it goes away, then end the process; returns in forked workers only."""
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        for signum in (*_STOP_SIGNALS, signal.SIGCHLD):
            self.handlers[signum] = signal.signal(signum, self._noted)
        while self.stopped_by is None:
            readable, _, _ = select.select([self.link, wake_read], [], [])
            if wake_read in readable:
                _drain(wake_read)
                self._reap()
            if self.link in readable:
                message, fds = receive(self.link)
                if message is None:
                    break
                order = self._obey(message, fds)
                if order is not None:
                    os.close(wake_read)
                    os.close(wake_write)
                    return order
        sweep()
        return self._leave()

    def _noted(self, signum: int, _frame: FrameType | None) -> None:
        if signum in _STOP_SIGNALS:
            self.stopped_by = signum

    def _leave(self) -> NoReturn:
        """End, by the signal that asked for it if one did, and without exit handlers of what was imported."""
        if self.stopped_by is not None:
            signal.signal(self.stopped_by, signal.SIG_DFL)
            os.kill(os.getpid(), self.stopped_by)
        os._exit(0)

    def _obey(self, message: Command | Event, fds: list[int]) -> StartWorker | None:
        """Do what the message says; returns the order in a forked worker."""
        if isinstance(message, StartWorker):
            return self._start(message, fds)
        if isinstance(message, SignalWorkers):
            self._signal(message)
        elif isinstance(message, Sweep):
            self._exited(sweep())
            send(self.link, Swept())
        return None

    def _start(self, order: StartWorker, fds: list[int]) -> StartWorker | None:
        if self.fork and order.settings.kind == "plain" and order.settings.world_size > 1:
            _import_compiler()
        obstacle = self._obstacle() if self.fork else None
        zygote = os.getpid()
        try:
            if self.fork and obstacle is None:
                signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
                pid = os.fork()
            else:
                pid = self._start_fresh(order, fds)
        except OSError as error:
            raise _not_started(order.settings.rank, error) from None
        if pid == 0:
            return self._become_worker(order, fds, zygote)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)
        for fd in fds:
            os.close(fd)
        self.ranks[pid] = order.settings.rank
        send(self.link, Started(order.settings.rank, pid, obstacle))
        return None

    def _obstacle(self) -> str | None:
        """Return why a fork of this process would not be as good as a new one."""
        if self.ready.failure is not None:
            return self.ready.failure
        if _num_threads() > self.ready.num_threads:
            return "importing torch started threads, which a fork would lose"
        if sys.modules["torch"].cuda.is_initialized():
            return "importing torch initialised CUDA, which does not survive a fork"
        return None

    def _become_worker(self, order: StartWorker, fds: list[int], zygote: int) -> StartWorker:
        """Turn this forked child into the worker that a fresh process would be."""
        set_parent_death_signal(signal.SIGKILL)
        if os.getppid() != zygote:
            os._exit(1)
        os.setsid()
        signal.set_wakeup_fd(-1)
        for signum, handler in self.handlers.items():
            signal.signal(signum, handler)  # pyright: ignore[reportArgumentType]
        self.link.close()
        for stream, fd in enumerate(fds[:3]):
            os.dup2(fd, stream)
            os.close(fd)
        cast("TextIOWrapper[BinaryIO]", sys.stdout).reconfigure(line_buffering=os.isatty(1))
        change_environment(order.env, order.unset)
        # Last, so that a signal sent meanwhile meets what the script would have met.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)
        return replace(order, settings=_with_store(order, fds))

    def _start_fresh(self, order: StartWorker, fds: list[int]) -> int:
        settings = _with_store(order, fds)
        environ = {name: value for name, value in read_environ().items() if name not in order.unset}
        process = subprocess.Popen(
            bootstrap_argv(sys.executable, self.program),
            stdin=fds[0],
            stdout=fds[1],
            stderr=fds[2],
            pass_fds=fds[3:],
            env={**environ, **order.env, WORKER_VARIABLE: settings.to_json()},
            start_new_session=True,
        )
        process.returncode = 0  # we reap it ourselves
        return process.pid

    def _signal(self, order: SignalWorkers) -> None:
        for pid in self.ranks:
            try:
                if order.group:
                    os.killpg(pid, order.signum)
                else:
                    os.kill(pid, order.signum)
            except (
                ProcessLookupError
            ):  # just forked, without a session of its own yet; or dead and not yet reaped
                os.kill(pid, order.signum)

    def _reap(self) -> None:
        statuses: dict[int, int] = {}
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if not pid:
                break
            statuses[pid] = status
        self._exited(statuses)

    def _exited(self, statuses: dict[int, int]) -> None:
        for pid, status in statuses.items():
            if pid in self.ranks:  # others are orphans that were handed to us
                rank = self.ranks.pop(pid)
                send(self.link, Exited(rank, pid, os.waitstatus_to_exitcode(status), time.time()))


def _not_started(rank: int, error: OSError) -> XlError:
    return XlError(
        f"the process of rank {rank} cannot be started",
        error.strerror or str(error),
        "pass a smaller --num-processes, or free what is short: processes (ulimit -u), memory",
        exit_code=1,
    )


def _with_store(order: StartWorker, fds: list[int]) -> WorkerSettings:
    return replace(order.settings, store_fd=fds[3] if len(fds) > 3 else None)


def _drain(fd: int) -> None:
    try:
        while os.read(fd, 4096):
            pass
    except BlockingIOError:
        return
