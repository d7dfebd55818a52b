"""Finds the control groups, version 1 and 2, whose limits apply to this process."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from .files import ROOT, read_text


@dataclass(frozen=True, slots=True)
class Cgroup:
    """One folder of limits; those of the parents apply as well."""

    version: int
    folder: Path


def find_cgroups(controller: str, root: Path = ROOT) -> tuple[Cgroup, ...]:
    """The groups of `cpu` or `memory` that hold this process, innermost first; empty without control groups.

    A machine may mount both versions; a controller lives in one: version 1 where it is mounted there.
    """
    mounts = _mounts(root)
    paths = _own_paths(root)
    for version, key in ((1, controller), (2, "")):
        if key in mounts and key in paths:
            mounted_root, mount_point = mounts[key]
            top = root / mount_point.lstrip("/")
            return tuple(Cgroup(version, f) for f in _existing_chain(top, paths[key], mounted_root))
    return ()


def _mounts(root: Path) -> dict[str, tuple[str, str]]:
    """Controller ("" for version 2) -> (the group that is mounted, where)."""
    found: dict[str, tuple[str, str]] = {}
    for line in read_text(root / "proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        fields, tail = left.split(), right.split()
        if len(fields) < 5 or len(tail) < 3:
            continue
        where = (_unescape(fields[3]), _unescape(fields[4]))
        if tail[0] == "cgroup2":
            found.setdefault("", where)
        elif tail[0] == "cgroup":
            for option in tail[2].split(","):
                found.setdefault(option, where)
    return found


def _own_paths(root: Path) -> dict[str, str]:
    """Controller ("" for version 2) -> this process's group."""
    found: dict[str, str] = {}
    for line in read_text(root / "proc/self/cgroup").splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:
            for controller in parts[1].split(","):
                found[controller] = parts[2]
    return found


def _existing_chain(top: Path, own: str, mounted_root: str) -> list[Path]:
    """The folders from the process's group up to the mount point.

    Inside a container the path may be named as the host sees it; only the part below the mount exists.
    """
    own_parts, mounted_parts = PurePosixPath(own).parts[1:], PurePosixPath(mounted_root).parts[1:]
    if own_parts[: len(mounted_parts)] == mounted_parts:
        own_parts = own_parts[len(mounted_parts) :]
    if ".." in own_parts:  # a group outside the process's cgroup namespace
        own_parts = ()
    folders = [top.joinpath(*own_parts[:depth]) for depth in range(len(own_parts), -1, -1)]
    return [folder for folder in folders if folder.is_dir()]


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
