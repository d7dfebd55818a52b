"""Process trees on Linux: who is below us, who handles SIGTERM, and how to leave nobody behind.

The launcher and the process that starts its workers are both *child subreapers*: a process whose parent dies
is handed to them and not to process 1, so whichever of the two survives still sees all that the job ever
started, sessions of their own included.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Collection

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def become_subreaper() -> None:
    """Adopt the orphans among this process's descendants; does nothing off Linux."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def set_parent_death_signal(signum: int) -> None:
    """Have the kernel send `signum` (0: nothing) to this process when its parent dies; nothing off Linux."""
    _prctl(_PR_SET_PDEATHSIG, signum)


def handles_sigterm(pid: int) -> bool:
    """Whether `pid` has a handler for SIGTERM and is worth waiting for; False where nobody can tell."""
    try:
        with open(f"/proc/{pid}/status") as file:
            caught = next(line for line in file if line.startswith("SigCgt:"))
    except (OSError, StopIteration):
        return False
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def _parents() -> dict[int, int]:
    """Return the parent of every process of this machine."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                # The command's name, in brackets, may hold spaces and brackets of its own.
                parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):  # it ended meanwhile
            continue
    return parents


def descendants(root: int) -> list[int]:
    """Return the processes below `root`, zombies included; empty off Linux."""
    if sys.platform != "linux":
        return []
    parents = _parents()
    found = [root]
    for pid in found:
        found.extend(child for child, parent in parents.items() if parent == pid)
    return found[1:]


def sweep(spare: Collection[int] = (), timeout_s: float = 5.0) -> dict[int, int]:
    """Kill everything below this process but `spare`, until nothing is left or `timeout_s` have passed.

    Returns:
        The wait status of every direct child that ended meanwhile.
    """
    statuses: dict[int, int] = {}
    end = time.monotonic() + timeout_s
    while remaining := [pid for pid in descendants(os.getpid()) if pid not in spare]:
        for pid in remaining:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
        time.sleep(0.002)
        for pid in remaining:
            statuses.update(_reap(pid))
        if time.monotonic() > end:
            break
    return statuses


def _reap(pid: int) -> dict[int, int]:
    try:
        done, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:  # not ours: its own parent, dead too by now, hands it to us
        return {}
    return {done: status} if done else {}
