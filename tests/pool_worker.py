"""The process that forks warm workers for `pool.py`, and their loop; run as a program, never imported."""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import faulthandler
import gc
import io
import multiprocessing.process
import os
import pickle
import random
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from types import ModuleType
from typing import cast

import cloudpickle  # pyright: ignore[reportMissingTypeStubs]
import numpy as np
import torch
import torch.distributed as dist
import torch.nn.utils.clip_grad
import torch.optim.lr_scheduler
import torch.utils.data

from xl.runtime.collectives import Communicator

TCPStore = dist.TCPStore  # pyright: ignore[reportPrivateImportUsage]


def die_with_parent(parent: int) -> None:
    """Be killed when the parent ends (Linux; elsewhere the closed connection ends the process)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)


def subclasses(base: type) -> list[type]:
    found = [base]
    for child in base.__subclasses__():
        found += subclasses(child)
    return found


def patchable() -> list[object]:
    """Everything whose attributes a shim or a test may replace."""
    owners: list[object] = [
        builtins, io, os, random, sys, np.random, multiprocessing.process,
        multiprocessing.process.BaseProcess, torch, torch.autograd, torch.distributed, torch.nn,
        torch.nn.functional, torch.nn.utils, torch.random,
        torch.nn.utils.clip_grad, torch.optim.lr_scheduler, torch.serialization, torch.cuda, torch.Tensor,
        torch.nn.Module, torch.nn.modules.batchnorm, torch.nn.modules.loss, torch.utils.data, Communicator,
        torch.utils.data.DataLoader, torch.amp.GradScaler, torch.amp.grad_scaler,
    ]  # fmt: skip
    return owners + subclasses(torch.optim.Optimizer) + subclasses(torch.optim.lr_scheduler.LRScheduler)


# Variables that scikit-learn and torch set when they are imported or compile.
LIBRARIES = {"KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK", "TORCHINDUCTOR_CACHE_DIR"}

SELF_CHANGING = {
    "last_traceback",
    "last_exc",
    "last_type",
    "last_value",
    "__warningregistry__",
    "__slotnames__",
}


class State:
    """What a test may disturb in a worker: taken before a call, put back after it, leaks named."""

    def __init__(self, owners: list[object]) -> None:
        self._owners = [(owner, dict(vars(owner))) for owner in owners]
        self._threads = set(threading.enumerate())
        self._env = dict(os.environ)
        self._dtype = torch.get_default_dtype()
        self._rng = torch.get_rng_state(), random.getstate(), np.random.get_state()
        self._num_threads = torch.get_num_threads()
        self._folder = os.getcwd()

    def restore(self) -> list[str]:
        """Put the quiet kind of state back and return what else is left behind."""
        torch.set_default_dtype(self._dtype)
        torch.set_rng_state(self._rng[0])
        random.setstate(self._rng[1])
        np.random.set_state(self._rng[2])
        torch.set_num_threads(self._num_threads)
        torch.use_deterministic_algorithms(False)
        os.chdir(self._folder)
        leaks = [
            f"{name(owner)}.{key} is patched" for owner, before in self._owners for key in diff(owner, before)
        ]
        keys = {key for key, _ in os.environ.items() ^ self._env.items()} - LIBRARIES
        if keys:
            leaks.append(f"environment variables changed: {sorted(keys)}")
        for thread in set(threading.enumerate()) - self._threads:
            thread.join(0.5)
            if thread.is_alive():
                leaks.append(f"thread {thread.name} is running")
        if dist.is_initialized():
            leaks.append("a default process group is open")
        if not torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
            leaks.append("no_grad or autocast was never left")
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                leaks.append("a child process is running")
        return leaks


def name(owner: object) -> str:
    return owner.__name__ if isinstance(owner, type | ModuleType) else repr(owner)


def diff(owner: object, before: dict[str, object]) -> list[str]:
    now = vars(owner)
    return [
        key
        for key in {**before, **now}
        if now.get(key) is not before.get(key)
        and key not in SELF_CHANGING
        and not (key not in before and isinstance(now[key], ModuleType))  # a submodule was imported
        and not (isinstance(now.get(key), int | float | str | bool) and key.startswith("_"))  # counts
    ]


def answer(call: bytes, connect: Callable[[], Communicator]) -> bytes:
    """Run one call and return its pickled outcome; nothing refers to its objects any more on return."""
    communicator: Communicator | None = None
    try:
        communicator = connect()
        function, args = cast("tuple[Callable[..., object], tuple[object, ...]]", cloudpickle.loads(call))
        return cloudpickle.dumps((function(communicator, *args),))  # pyright: ignore[reportUnknownMemberType]
    except BaseException as error:
        moment, text = time.monotonic(), traceback.format_exc()
        error.__traceback__ = error.__context__ = error.__cause__ = None
        try:
            data = cloudpickle.dumps((error, moment, text))  # pyright: ignore[reportUnknownMemberType]
            pickle.loads(data)
        except Exception:  # an exception that does not survive pickling travels as text only
            data = cloudpickle.dumps((None, moment, text))  # pyright: ignore[reportUnknownMemberType]
        return data
    finally:
        if communicator is not None:
            communicator.close()


def work(connection: Connection[object, object], rank: int) -> None:
    """Answer calls until the tests hang up."""
    store: TCPStore | None = None
    if rank == 0:
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        connection.send(store.port)
    owners = patchable()
    while True:
        label, size, port, timeout_s = cast("tuple[str, int, int, float]", connection.recv())
        call = connection.recv_bytes()
        if store is None:
            store = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
        state = State(owners)
        connect = partial(
            Communicator, store, rank, size, torch.device("cpu"), name=label, timeout_s=timeout_s
        )
        outcome = answer(call, connect)
        gc.collect()
        connection.send_bytes(outcome)
        connection.send(state.restore())


def start_worker(rank: int, connection_fd: int, output_fd: int, parent: int) -> None:
    """Become a worker; never returns."""
    die_with_parent(parent)
    os.setpgid(0, 0)
    os.dup2(output_fd, 1)
    os.dup2(output_fd, 2)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    with contextlib.suppress(EOFError, ConnectionError):
        work(Connection(connection_fd), rank)
    os._exit(0)


def main() -> None:
    """Fork and reap workers on request until the tests hang up."""
    control = socket.socket(fileno=int(sys.argv[1]))
    die_with_parent(int(sys.argv[2]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, which then close the pool
    parameter = torch.nn.Parameter(torch.ones(2, 2))
    # The first use of an optimizer imports torch._dynamo, which takes seconds, and wraps `step` of its class.
    for optimizer in subclasses(torch.optim.Optimizer)[1:]:
        with contextlib.suppress(Exception):
            optimizer([parameter])
    gc.collect()
    gc.freeze()
    me = os.getpid()
    while True:
        message, fds, _, _ = socket.recv_fds(control, 256, 2)
        if not message:
            os._exit(0)
        verb, number = message.decode().split()
        if verb == "reap":
            _, status = os.waitpid(int(number), 0)
            control.sendall(str(os.waitstatus_to_exitcode(status)).encode())
            continue
        pid = os.fork()
        if pid == 0:
            control.close()
            start_worker(int(number), fds[0], fds[1], me)
        for fd in fds:
            os.close(fd)
        control.sendall(str(pid).encode())


if __name__ == "__main__":
    main()
