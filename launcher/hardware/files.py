"""Reads the small text files of /proc and /sys, absent or unreadable ones included."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

ROOT = Path("/")


def read_text(path: Path) -> str:
    """The file's text without outer white space; empty where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except (OSError, ValueError):
        return ""


def read_int(path: Path) -> int | None:
    """The file's whole number; None where it is absent or holds something else, such as `max`."""
    try:
        return int(read_text(path))
    except ValueError:
        return None


def list_names(folder: Path) -> tuple[str, ...]:
    """The names in a folder, sorted; empty where it cannot be read."""
    try:
        return tuple(sorted(entry.name for entry in folder.iterdir()))
    except OSError:
        return ()


def parse_cpu_list(text: str) -> frozenset[int]:
    """CPU numbers of the kernel's list form: `0-3,8` is 0, 1, 2, 3 and 8."""
    cpus: set[int] = set()
    for part in text.replace("\n", ",").split(","):
        first, dash, last = part.strip().partition("-")
        if first.isdigit() and (last.isdigit() if dash else True):
            cpus.update(range(int(first), int(last if dash else first) + 1))
    return frozenset(cpus)


def format_cpu_list(cpus: Iterable[int]) -> str:
    """The kernel's list form: 0, 1, 2, 3 and 8 are `0-3,8`."""
    ranges: list[list[int]] = []
    for cpu in sorted(cpus):
        if ranges and cpu == ranges[-1][1] + 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
