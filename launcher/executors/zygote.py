"""Starts workers through the zygote, a helper process that imports torch once and forks them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
from dataclasses import replace

from ...configs.commands import zygote_argv
from ...configs.engine_messages import (
    Exited,
    SignalWorkers,
    Started,
    StartWorker,
    Sweep,
    Swept,
    receive,
    send,
)
from ...configs.processes import descendants, sweep
from ..output import WorkerFds
from ..plan import LaunchPlan, WorkerStart
from .base import Happenings, StarterLost

_ANSWER_PATIENCE_S = 1.0
"""A zygote that does not answer in this time (stopped, or lost) is not waited for."""


class ZygoteStarter:
    """A `Starter`: keeps the zygote and a thread that listens to it.

    Args:
        plan: its executor says whether workers are forked or started anew; the zygote starts them either way,
            and sweeps up should the launcher be killed.
        listener: the store's socket; kept here for restarts, handed to every attempt's rank 0.
    """

    def __init__(self, plan: LaunchPlan, listener: socket.socket, happenings: Happenings) -> None:
        self._listener, self._happenings = listener, happenings
        self._link, far_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._swept = threading.Semaphore(0)
        self._closing = False
        self._num_started = 0
        # Whoever became xl by exec may have had children; they are none of ours.
        self._spared = descendants(os.getpid())
        with far_end:
            self._process = subprocess.Popen(
                zygote_argv(
                    plan.python, far_end.fileno(), os.getpid(), plan.executor == "zygote", plan.program
                ),
                env=plan.job_environment(),
                stdin=subprocess.DEVNULL,
                pass_fds=[far_end.fileno()],
                start_new_session=True,
            )
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()

    def _listen(self) -> None:
        while message := receive(self._link)[0]:
            if isinstance(message, Swept):
                self._swept.release()
            elif isinstance(message, Started):
                self._num_started += 1
                self._happenings.put(message)
            elif isinstance(message, Exited):
                self._happenings.put(message)
        returncode = self._process.wait()
        self._swept.release()
        if not self._closing:
            self._happenings.put(StarterLost(returncode))

    def start(self, start: WorkerStart, fds: WorkerFds) -> None:
        settings, passed = start.settings, [fds.stdin, fds.stdout, fds.stderr]
        if settings.rank == 0:
            settings = replace(settings, store_fd=self._listener.fileno())
            passed.append(self._listener.fileno())
        send(self._link, StartWorker(settings, start.env, start.unset), passed)

    def signal(self, signum: int, *, group: bool = False) -> None:
        send(self._link, SignalWorkers(signum, group))

    def sweep(self) -> None:
        if not self._num_started:  # still importing: it would not hear us, and nothing is below it
            self.close()
            return
        send(self._link, Sweep())
        self._swept.acquire(timeout=_ANSWER_PATIENCE_S)
        # Where the zygote was killed, its orphans came to us.
        sweep(spare=(*self._spared, self._process.pid))

    def close(self) -> None:
        self._closing = True
        with contextlib.suppress(OSError):
            self._link.shutdown(socket.SHUT_RDWR)
        if not self._num_started:
            self._process.send_signal(signal.SIGKILL)
        self._listening.join(_ANSWER_PATIENCE_S)
        if self._listening.is_alive():
            self._process.kill()
            self._listening.join()
        self._link.close()
        sweep(spare=self._spared)
