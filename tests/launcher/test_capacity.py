"""How many processes a machine can hold: read from a tree of its own, judged limit by limit."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from xl.launcher.capacity import MEMORY_EACH_MIB, Limit, read_limits, refusal

FILES = Limit("open files", 1024, "ulimit -n", 3, 16)
TASKS = Limit("processes and threads", 32768, "/proc/sys/kernel/pid_max", 3, 4)


def test_what_fits_is_not_refused() -> None:
    assert refusal(336, "--num-processes", (FILES, TASKS)) is None
    assert refusal(10**9, "--num-processes", ()) is None


def test_every_limit_is_named_and_the_fix_keeps_them_all() -> None:
    error = refusal(100_000, "--num-processes", (FILES, TASKS))
    assert error is not None
    assert error.exit_code == 2
    assert error.what == "num_processes=100000 does not fit this machine"
    assert "--num-processes asks for 100000" in error.why
    assert "300016 open files are needed, 1024 are there (ulimit -n)" in error.why
    assert "300004 processes and threads are needed, 32768 are there (/proc/sys/kernel/pid_max)" in error.why
    assert "pass --num-processes 336 or fewer" in error.fix
    assert refusal(336, None, (FILES, TASKS)) is None
    only = refusal(337, None, (FILES, TASKS))
    assert only is not None
    assert "pid_max" not in only.why


def test_one_process_is_never_refused() -> None:
    assert refusal(1, None, (Limit("open files", 2, "ulimit -n", 3, 16),)) is None


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell")
def test_limits_of_a_machine(tmp_path: Path) -> None:
    files = {
        "proc/sys/kernel/pid_max": "32768",
        "proc/sys/kernel/threads-max": "5000",
        "proc/meminfo": "MemTotal: 2097152 kB\nSwapTotal: 1048576 kB\n",
        "proc/self/cgroup": "0::/job\n",
        "proc/self/mountinfo": "1 1 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        "sys/fs/cgroup/job/pids.max": "300",
        "sys/fs/cgroup/job/pids.current": "20",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = {limit.source.removeprefix(str(tmp_path)): limit for limit in read_limits(tmp_path)}
    assert found["/proc/sys/kernel/pid_max"].allowed == 32768
    assert found["/proc/sys/kernel/threads-max"].allowed == 5000
    assert found["/sys/fs/cgroup/job/pids.max less those that run"].allowed == 280
    assert found["RAM and swap"].allowed == 3072
    assert found["RAM and swap"].most_workers == 3072 // MEMORY_EACH_MIB
    (tmp_path / "sys/fs/cgroup/job/memory.max").write_text(str(1 << 30))
    found = {limit.source: limit for limit in read_limits(tmp_path)}
    assert found["the control group's limit and swap"].allowed == 2048


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell")
def test_this_machine_holds_a_few() -> None:
    limits = read_limits()
    assert {"ulimit -n", "/proc/sys/kernel/pid_max"} <= {limit.source for limit in limits}
    assert refusal(4, None, limits) is None
