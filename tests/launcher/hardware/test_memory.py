"""RAM and its limits, on trees that stand in for other machines."""

from pathlib import Path

import pytest

from xl.launcher.hardware.memory import read_memory

from .tree import V1_MOUNTS, V2_MOUNT, write_tree

GIB = 1 << 30
MEMINFO = "MemTotal: 67108864 kB\nMemAvailable: 33554432 kB\nSwapTotal: 0 kB\nHugePages_Total: 0\n"


def test_this_machine() -> None:
    memory = read_memory()
    assert memory.total_bytes
    assert memory.available_bytes
    assert 0 < memory.available_bytes <= memory.total_bytes
    assert memory.usable_bytes
    assert memory.usable_bytes <= memory.total_bytes


def test_without_a_limit(tmp_path: Path) -> None:
    memory = read_memory(write_tree(tmp_path, {"proc/meminfo": MEMINFO}))
    assert (memory.total_bytes, memory.available_bytes) == (64 * GIB, 32 * GIB)
    assert (memory.swap_total_bytes, memory.limit_bytes, memory.usable_bytes) == (0, None, 64 * GIB)


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"job/memory.max": str(8 * GIB), "job/memory.current": str(GIB)}, 8 * GIB),
        ({"job/memory.max": "max", "memory.max": str(4 * GIB)}, 4 * GIB),
        ({"job/memory.max": str(100 * GIB)}, None),
        ({"job/memory.max": "max"}, None),
    ],
)
def test_limit_of_version_2(tmp_path: Path, files: dict[str, str], limit: int | None) -> None:
    write_tree(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/mountinfo": V2_MOUNT,
            "proc/self/cgroup": "0::/job\n",
            **{f"sys/fs/cgroup/{name}": text for name, text in files.items()},
        },
    )
    memory = read_memory(tmp_path)
    assert memory.limit_bytes == limit
    assert memory.usable_bytes == (limit or 64 * GIB)
    assert memory.limit_used_bytes == (GIB if "job/memory.current" in files else None)


def test_limit_of_version_1(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/memory/job"
    write_tree(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/mountinfo": V1_MOUNTS,
            "proc/self/cgroup": "9:memory:/job\n",
            f"{group}/memory.limit_in_bytes": str(2 * GIB),
            f"{group}/memory.usage_in_bytes": str(GIB),
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
        },
    )
    memory = read_memory(tmp_path)
    assert (memory.limit_bytes, memory.limit_used_bytes) == (2 * GIB, GIB)


def test_nothing_to_read(tmp_path: Path) -> None:
    memory = read_memory(tmp_path)
    assert memory.total_bytes is None
    assert memory.usable_bytes is None
    assert memory.shm_total_bytes is None
