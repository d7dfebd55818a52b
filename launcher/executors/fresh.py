"""Starts each worker as a plain subprocess, on systems without subreapers and parent-death signals."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace

import psutil

from ...configs.engine_messages import Exited, Started
from ...configs.env import WORKER_VARIABLE
from ..output import WorkerFds
from ..plan import LaunchPlan, WorkerStart
from .base import Happenings


class SubprocessStarter:
    """A `Starter` for every platform: one interpreter and one waiting thread for each worker.

    Args:
        listener: the store's socket. Where descriptors are inherited (not on Windows) rank 0 serves on it; on
            Windows it is closed at the first start, and rank 0 binds the port itself.
    """

    def __init__(self, plan: LaunchPlan, listener: socket.socket, happenings: Happenings) -> None:
        self._plan, self._listener, self._happenings = plan, listener, happenings
        self._workers: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, start: WorkerStart, fds: WorkerFds) -> None:
        settings, inherited = start.settings, ()
        if settings.rank == 0:
            if sys.platform == "win32":
                self._listener.close()
            else:
                settings = replace(settings, store_fd=self._listener.fileno())
                inherited = (self._listener.fileno(),)
        environ = {n: v for n, v in self._plan.job_environment().items() if n not in start.unset}
        worker = subprocess.Popen(
            self._plan.command(),
            env={**environ, **start.env, WORKER_VARIABLE: settings.to_json()},
            stdin=fds.stdin,
            stdout=fds.stdout,
            stderr=fds.stderr,
            pass_fds=inherited,
            start_new_session=sys.platform != "win32",
        )
        self._workers[settings.rank] = worker
        self._happenings.put(Started(settings.rank, worker.pid))
        threading.Thread(target=self._wait, args=(settings.rank, worker), daemon=True).start()

    def _wait(self, rank: int, worker: subprocess.Popen[bytes]) -> None:
        returncode = worker.wait()
        self._happenings.put(Exited(rank, worker.pid, returncode, time.time()))

    def signal(self, signum: int, *, group: bool = False) -> None:
        for worker in self._workers.values():
            if worker.poll() is not None:
                continue
            with contextlib.suppress(OSError, ValueError):  # it has just ended; Windows knows few signals
                if group and sys.platform != "win32":
                    os.killpg(worker.pid, signum)
                else:
                    worker.send_signal(signum)

    def sweep(self) -> None:
        below = psutil.Process().children(recursive=True)
        for process in below:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        for worker in self._workers.values():
            worker.wait()
        self._workers.clear()

    def close(self) -> None:
        self.sweep()
