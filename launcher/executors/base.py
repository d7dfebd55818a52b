"""What an executor is, and what the supervisor asks of those who start its workers."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Protocol

from ...configs.engine_messages import Exited, Started
from ..output import WorkerFds
from ..plan import LaunchPlan, WorkerStart


class Run(Protocol):
    """An executor: the function `run` of a module in this folder."""

    def __call__(self, plan: LaunchPlan, listener: socket.socket) -> int:
        """Run the plan to its end and return the exit code; may not return at all (`exec`)."""
        ...


@dataclass(frozen=True, slots=True)
class StarterLost:
    """The process that starts the workers has ended unasked; `returncode` is negative for a signal."""

    returncode: int


@dataclass(frozen=True, slots=True)
class SignalReceived:
    """The launcher got a signal."""

    signum: int


Happening = Started | Exited | StarterLost | SignalReceived
Happenings = SimpleQueue[Happening]


class Starter(Protocol):
    """Starts the workers of a launch; tells what becomes of them through the queue it was made with."""

    def start(self, start: WorkerStart, fds: WorkerFds) -> None:
        """Order a worker; does not wait for it. `Started` follows, or `StarterLost`."""
        ...

    def signal(self, signum: int, *, group: bool = False) -> None:
        """Send a signal to all living workers (`group`: to their process groups); ignores dead ones."""
        ...

    def sweep(self) -> None:
        """Kill whatever the job has started and is left of it; returns when nothing is. Idempotent."""
        ...

    def close(self) -> None:
        """End the starter itself, after a last sweep. Idempotent."""
        ...
