"""Usable cores are what affinity and every control group leave, on trees that stand in for other machines."""

import os
from pathlib import Path

import pytest

from xl.launcher.hardware.cpu import (
    NumaNode,
    bindable_cpus,
    read_cpu,
    read_cpu_quota,
    read_numa_nodes,
    read_usable_cores,
)

from .tree import V1_MOUNTS, V2_MOUNT, write_tree

EIGHT = frozenset(range(8))


def test_this_machine() -> None:
    cpu = read_cpu()
    assert cpu.allowed == os.sched_getaffinity(0)
    assert 1 <= cpu.usable_cores <= len(cpu.allowed) <= cpu.logical_cores
    assert cpu.usable_cores == read_usable_cores()
    assert cpu.model


def test_affinity_alone(tmp_path: Path) -> None:
    assert read_usable_cores(tmp_path, EIGHT) == 8
    assert read_usable_cores(tmp_path, frozenset({5})) == 1


@pytest.mark.parametrize(
    ("cpu_max", "cores"),
    [
        ("max 100000", 8),
        ("400000 100000", 4),
        ("150000 100000", 2),
        ("50000 100000", 1),
        ("9900000 100000", 8),
        ("", 8),
    ],
)
def test_quota_of_version_2(tmp_path: Path, cpu_max: str, cores: int) -> None:
    write_tree(
        tmp_path,
        {
            "proc/self/mountinfo": V2_MOUNT,
            "proc/self/cgroup": "0::/job\n",
            "sys/fs/cgroup/job/cpu.max": cpu_max,
        },
    )
    assert read_usable_cores(tmp_path, EIGHT) == cores


def test_the_tightest_parent_counts(tmp_path: Path) -> None:
    write_tree(
        tmp_path,
        {
            "proc/self/mountinfo": V2_MOUNT,
            "proc/self/cgroup": "0::/slice/job/step\n",
            "sys/fs/cgroup/slice/cpu.max": "200000 100000",
            "sys/fs/cgroup/slice/job/cpu.max": "max 100000",
            "sys/fs/cgroup/slice/job/step/cpu.max": "600000 100000",
        },
    )
    assert read_cpu_quota(tmp_path) == 2.0


def test_quota_of_version_1(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/cpu,cpuacct/docker/abc"
    write_tree(
        tmp_path,
        {
            "proc/self/mountinfo": V1_MOUNTS + V2_MOUNT,
            "proc/self/cgroup": "4:cpu,cpuacct:/docker/abc\n0::/elsewhere\n",
            f"{group}/cpu.cfs_quota_us": "300000",
            f"{group}/cpu.cfs_period_us": "100000",
        },
    )
    assert read_cpu_quota(tmp_path) == 3.0
    write_tree(tmp_path, {f"{group}/cpu.cfs_quota_us": "-1"})
    assert read_cpu_quota(tmp_path) is None


def test_a_container_that_sees_the_hosts_path(tmp_path: Path) -> None:
    """The group's path is the host's and does not exist below the mount: the mount itself is the group."""
    write_tree(
        tmp_path,
        {
            "proc/self/mountinfo": "31 23 0:28 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
            "proc/self/cgroup": "0::/docker/abc\n",
            "sys/fs/cgroup/cpu.max": "100000 100000",
        },
    )
    assert read_usable_cores(tmp_path, EIGHT) == 1
    write_tree(tmp_path, {"proc/self/cgroup": "0::/../elsewhere\n", "proc/self/mountinfo": V2_MOUNT})
    assert read_usable_cores(tmp_path, EIGHT) == 1


def test_mount_points_with_spaces(tmp_path: Path) -> None:
    write_tree(
        tmp_path,
        {
            "proc/self/mountinfo": "31 23 0:28 / /sys/my\\040groups rw - cgroup2 cgroup2 rw\n",
            "proc/self/cgroup": "0::/\n",
            "sys/my groups/cpu.max": "200000 100000",
        },
    )
    assert read_cpu_quota(tmp_path) == 2.0


def test_numa_nodes(tmp_path: Path) -> None:
    node = "sys/devices/system/node"
    write_tree(
        tmp_path,
        {
            f"{node}/node0/cpulist": "0-3",
            f"{node}/node0/meminfo": "Node 0 MemTotal:       1024 kB\nNode 0 MemFree: 1 kB\n",
            f"{node}/node10/cpulist": "4-7",
            f"{node}/node2/cpulist": "",
            f"{node}/has_cpu": "0",
        },
    )
    assert read_numa_nodes(tmp_path) == (
        NumaNode(0, frozenset({0, 1, 2, 3}), 1 << 20),
        NumaNode(2, frozenset()),
        NumaNode(10, frozenset({4, 5, 6, 7})),
    )


def test_binding_stays_inside_the_allowed_cpus_and_is_never_empty() -> None:
    node = NumaNode(0, frozenset({0, 1, 2, 3}))
    assert bindable_cpus(node, frozenset({2, 3, 4})) == {2, 3}
    assert bindable_cpus(node, frozenset({6, 7})) == {6, 7}
    assert bindable_cpus(NumaNode(1, frozenset()), frozenset({6})) == {6}


def test_cores_without_their_threads(tmp_path: Path) -> None:
    blocks = [
        f"processor\t: {cpu}\nmodel name\t: Fast CPU\nphysical id\t: 0\ncore id\t: {cpu // 2}"
        for cpu in range(4)
    ]
    write_tree(tmp_path, {"proc/cpuinfo": "\n\n".join(blocks)})
    cpu = read_cpu(tmp_path, frozenset(range(4)))
    assert (cpu.model, cpu.logical_cores, cpu.physical_cores) == ("Fast CPU", 4, 2)


def test_nothing_to_read(tmp_path: Path) -> None:
    cpu = read_cpu(tmp_path, frozenset({0}))
    assert (cpu.logical_cores, cpu.physical_cores, cpu.numa_nodes, cpu.usable_cores) == (1, None, (), 1)
