"""Whoever is killed, by whatever signal: nothing of a supervised launch is left, and the exit code tells why.

docs/kill-matrix.md is this table in words.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from .launches import Launch, write_script

WITHIN_S = 2.0

# Each rank starts a data worker, a child of a shell, and a child with a session of its own; then it waits,
# asleep or in a collective that its peer never joins.
SCRIPT = """
import os, subprocess, sys, time
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 1000
    def __getitem__(self, i):
        if i > 4:
            time.sleep(1000)
        return torch.zeros(1)

if __name__ == "__main__":
    rank = int(os.environ["RANK"])
    shell = subprocess.Popen(["sh", "-c", "sleep 1000; true"])
    session = subprocess.Popen(["setsid", "sleep", "1001"])
    loader = iter(DataLoader(Slow(), num_workers=1, batch_size=1))
    next(loader)
    if sys.argv[1] == "gloo":
        dist.init_process_group("gloo")
    for name, pid in (("worker", os.getpid()), ("shell", shell.pid), ("session", session.pid),
                      ("data", loader._workers[0].pid)):
        with open(f"{name}{rank}.part", "w") as file:
            file.write(str(pid))
        os.rename(f"{name}{rank}.part", f"{name}{rank}")
    if sys.argv[1] == "gloo" and rank == 0:
        dist.barrier()
    time.sleep(1000)
"""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)


@pytest.fixture
def running(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Launch]:
    write_script(tmp_path, SCRIPT)
    launch = Launch(tmp_path, ["--cpu", "--num-processes", "2", "train.py", request.param])
    names = [f"{name}{rank}" for name in ("worker", "shell", "session", "data") for rank in (0, 1)]
    launch.wait_for(lambda: all((tmp_path / name).exists() for name in names))
    assert len(launch.processes()) >= 2 + 2 * 5
    yield launch
    launch.clear()


def pid_of(launch: Launch, victim: str) -> int:
    if victim == "launcher":
        return launch.process.pid
    if victim == "zygote":
        return launch.zygote()
    return int((launch.folder / victim).read_text())


MATRIX = [
    pytest.param(state, victim, signum, id=f"{state}-{victim}-{signum.name}")
    for state in ("idle", "gloo")
    for victim in ("launcher", "zygote", "worker0", "worker1")
    for signum in SIGNALS
    # Python cannot interrupt a process that waits in a collective; only its launcher can end it.
    if (state, victim, signum) != ("gloo", "worker0", signal.SIGINT)
]


@pytest.mark.parametrize(("running", "victim", "signum"), MATRIX, indirect=["running"])
def test_no_process_survives(running: Launch, victim: str, signum: signal.Signals) -> None:
    os.kill(pid_of(running, victim), signum)
    assert running.all_gone(WITHIN_S), [process.cmdline() for process in running.processes()]
    expected = -signal.SIGKILL if (victim, signum) == ("launcher", signal.SIGKILL) else 128 + signum
    assert running.wait() == expected, running.text()


@pytest.mark.parametrize("running", ["idle"], indirect=True)
@pytest.mark.parametrize("signum", SIGNALS, ids=lambda s: s.name)
def test_ctrl_c_reaches_the_whole_group(running: Launch, signum: signal.Signals) -> None:
    """A terminal signals the launcher's process group; zygote and workers are in sessions of their own."""
    os.killpg(running.process.pid, signum)
    assert running.all_gone(WITHIN_S), [process.cmdline() for process in running.processes()]
    assert running.wait() == (-signum if signum == signal.SIGKILL else 128 + signum)


@pytest.mark.parametrize("running", ["idle"], indirect=True)
@pytest.mark.parametrize("victim", ["shell0", "session0"])
def test_other_children_are_the_scripts_business(running: Launch, victim: str) -> None:
    os.kill(pid_of(running, victim), signal.SIGKILL)
    assert not running.all_gone(0.3)
    os.kill(running.process.pid, signal.SIGTERM)
    assert running.all_gone(WITHIN_S)
