"""Warm worker processes for tests: run one function on 1-4 ranks in milliseconds, survive what it does."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, Protocol, TypeVar, cast

import cloudpickle  # pyright: ignore[reportMissingTypeStubs]
from typing_extensions import TypeVarTuple, Unpack

if TYPE_CHECKING:
    from xl.runtime.collectives import Communicator

T = TypeVar("T")
Args = TypeVarTuple("Args")

MAX_RANKS: Final = 4


class Ranks(Protocol):
    """The type of the fixture `ranks`."""

    def __call__(
        self,
        size: int,
        function: Callable[[Communicator, Unpack[Args]], T],
        *args: Unpack[Args],
        timeout_s: float = 30.0,
    ) -> list[T]:
        """Run `function(communicator, *args)` on `size` ranks and return their results in rank order.

        The function is shipped by value, so it may be local to the test. The earliest exception of all ranks
        is raised here, with that rank's traceback as its cause.
        """
        ...


class RemoteTraceback(Exception):
    """The traceback of a rank, as text; the cause of an exception that a rank raised."""


class PoolError(Exception):
    """A rank died, hung, or left something behind."""


@dataclass
class Outcome:
    """What one rank answered: its result, or its exception with the time and the text of the traceback."""

    value: object
    moment: float = 0.0
    text: str = ""
    leaks: list[str] = field(default_factory=list[str])


class Worker:
    """One warm worker as seen from the tests.

    Args:
        nursery: a socket to the process that forks workers.
        rank: the rank that it always plays.
    """

    def __init__(self, nursery: socket.socket, rank: int) -> None:
        self._nursery = nursery
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed by kill)
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(nursery, [f"fork {rank}".encode()], [theirs.fileno(), self._output.fileno()])
            self.pid = int(nursery.recv(64))
        self.connection: Connection[object, object] = Connection(ours.detach())

    def output(self) -> str:
        """What the worker wrote to its standard streams since `clear`, stack dumps included."""
        size = os.fstat(self._output.fileno()).st_size
        return os.pread(self._output.fileno(), size, 0).decode(errors="replace").strip()

    def clear(self) -> None:
        self._output.seek(0)  # the worker's descriptors share this offset
        self._output.truncate()

    def dump_stacks(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGUSR1)

    def kill(self) -> int:
        """End the process, wait for it and return its exit status, negative for a signal."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # what it started goes with it
        self._nursery.sendall(f"reap {self.pid}".encode())
        status = int(self._nursery.recv(64))
        self.connection.close()
        self._output.close()
        return status


class Pool:
    """Workers that are forked when first needed and kept; one that misbehaves costs all of them.

    Args:
        environment: of the process that forks them; it has imported torch and runs one thread.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._nursery: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._workers: list[Worker] = []
        self._port = 0
        self._calls = 0

    @property
    def pids(self) -> set[int]:
        """Every process that belongs to the pool."""
        return {worker.pid for worker in self._workers} | ({self._process.pid} if self._process else set())

    def run(
        self,
        size: int,
        function: Callable[[Communicator, Unpack[Args]], T],
        *args: Unpack[Args],
        timeout_s: float = 30.0,
    ) -> list[T]:
        """Run `function` on the first `size` workers, see `Ranks`."""
        self._ensure(size)
        self._calls += 1
        workers = self._workers[:size]
        tests = sys.modules.get("tests")
        if tests is not None and "tests" not in cloudpickle.list_registry_pickle_by_value():
            # Workers cannot import test modules.
            cloudpickle.register_pickle_by_value(tests)  # pyright: ignore[reportUnknownMemberType]
        call = cloudpickle.dumps((function, args))  # pyright: ignore[reportUnknownMemberType]
        try:
            for worker in workers:
                worker.clear()
                worker.connection.send((f"test{self._calls}", size, self._port, timeout_s))
                worker.connection.send_bytes(call)
            outcomes = self._collect(workers, timeout_s)
        except BaseException:  # a time limit or Ctrl-C included: what the workers do now is unknown
            self._kill_workers()
            raise
        return cast("list[T]", self._judge(outcomes))

    def close(self) -> None:
        """End every process of the pool."""
        self._kill_workers()
        if self._process is not None and self._nursery is not None:
            self._nursery.close()
            self._process.wait()
        self._process = self._nursery = None

    def _ensure(self, size: int) -> None:
        if not 1 <= size <= MAX_RANKS:
            raise ValueError(f"{size} ranks: a pool has 1 to {MAX_RANKS}")
        if self._nursery is None:
            ours, theirs = socket.socketpair()
            with theirs:
                program = Path(__file__).with_name("pool_worker.py")
                command = [sys.executable, str(program), str(theirs.fileno()), str(os.getpid())]
                self._process = subprocess.Popen(
                    command, pass_fds=[theirs.fileno()], env=self._environment, stdin=subprocess.DEVNULL
                )
            self._nursery = ours
        while len(self._workers) < size:
            worker = Worker(self._nursery, len(self._workers))
            self._workers.append(worker)
            if len(self._workers) == 1:
                self._port = cast("int", worker.connection.recv())  # rank 0 serves the store

    def _collect(self, workers: list[Worker], timeout_s: float) -> list[Outcome]:
        outcomes: dict[int, Outcome] = {}
        waiting = {worker.connection: rank for rank, worker in enumerate(workers)}
        deadline = time.monotonic() + timeout_s
        while waiting:
            ready = wait(list(waiting), max(0.0, deadline - time.monotonic()))
            if not ready:
                raise PoolError(self._describe_hang(workers, sorted(waiting.values()), timeout_s))
            for connection in cast("list[Connection[object, object]]", ready):
                rank = waiting.pop(connection)
                try:
                    outcomes[rank] = Outcome(*cloudpickle.loads(connection.recv_bytes()))
                    outcomes[rank].leaks = cast("list[str]", connection.recv())
                except (EOFError, ConnectionError) as error:
                    raise PoolError(self._describe_death(workers[rank], rank)) from error
            if any(outcome.text for outcome in outcomes.values()):
                deadline = min(deadline, time.monotonic() + 5.0)  # its peers notice soon, or hang
        return [outcomes[rank] for rank in range(len(workers))]

    def _describe_death(self, worker: Worker, rank: int) -> str:
        output = worker.output()
        self._workers.remove(worker)
        return f"rank {rank} died with exit status {worker.kill()}\n{output}"

    def _describe_hang(self, workers: list[Worker], hung: list[int], timeout_s: float) -> str:
        for worker in workers:
            worker.dump_stacks()
        time.sleep(0.2)  # the signal handler writes on its own time
        parts = [f"ranks {hung} of {len(workers)} did not finish within {timeout_s:g} s"]
        parts += [f"--- rank {rank}\n{worker.output()}" for rank, worker in enumerate(workers)]
        return "\n".join(parts)

    def _judge(self, outcomes: list[Outcome]) -> list[object]:
        leaks = [f"rank {rank}: {leak}" for rank, outcome in enumerate(outcomes) for leak in outcome.leaks]
        if leaks:
            self._kill_workers()
        failed = [(outcome.moment, rank) for rank, outcome in enumerate(outcomes) if outcome.text]
        if failed:
            _, rank = min(failed)
            error = outcomes[rank].value
            cause = RemoteTraceback(f"on rank {rank} of {len(outcomes)}:\n{outcomes[rank].text}")
            raise (error if isinstance(error, BaseException) else PoolError(f"rank {rank} failed")) from cause
        if leaks:
            raise PoolError("state left behind:\n" + "\n".join(leaks))
        return [outcome.value for outcome in outcomes]

    def _kill_workers(self) -> None:
        for worker in self._workers:
            worker.kill()
        self._workers.clear()
