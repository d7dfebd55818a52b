"""Usable cores from affinity and from the quotas of control groups, as files of either version show them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from xl.launcher.cores import usable_cores

ALLOWED = len(os.sched_getaffinity(0))


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_without_control_groups_affinity_counts(tmp_path: Path) -> None:
    assert usable_cores(tmp_path) == ALLOWED


@pytest.mark.parametrize(("quota", "expected"), [("max 100000", ALLOWED), ("50000 100000", 1)])
def test_version_2(tmp_path: Path, quota: str, expected: int) -> None:
    write(tmp_path / "proc/self/cgroup", "0::/user/job\n")
    write(tmp_path / "sys/fs/cgroup/user/job/cpu.max", quota)
    assert usable_cores(tmp_path) == expected


def test_a_parents_quota_counts_too(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/cgroup", "0::/user/job\n")
    write(tmp_path / "sys/fs/cgroup/user/job/cpu.max", "max 100000")
    write(tmp_path / "sys/fs/cgroup/user/cpu.max", "100000 100000")
    assert usable_cores(tmp_path) == 1


def test_a_quota_inside_a_container_is_found_at_the_top(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/cgroup", "0::/as/the/host/sees/it\n")
    write(tmp_path / "sys/fs/cgroup/cpu.max", "100000 100000")
    assert usable_cores(tmp_path) == 1


@pytest.mark.parametrize(("quota", "expected"), [("-1", ALLOWED), ("100000", 1)])
def test_version_1(tmp_path: Path, quota: str, expected: int) -> None:
    write(tmp_path / "proc/self/cgroup", "4:cpu,cpuacct:/job\n2:memory:/job\n")
    write(tmp_path / "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", quota)
    write(tmp_path / "sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000")
    assert usable_cores(tmp_path) == expected
