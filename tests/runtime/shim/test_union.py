"""Random programs on files give the same through the union of layers as on real files, and change none."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import glob
import os
import random
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .file_harness import as_rank

Step = tuple[str, list[str]]

_SEQUENCES, _STEPS = 200, 14


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()


def _write(path: str, mode: str) -> int:
    with open(path, mode) as file:
        return file.write(f"{mode}{path}")


def _open_and_write(path: str, flags: int) -> int:
    descriptor = os.open(path, flags, 0o640)
    try:
        return os.write(descriptor, b"12")
    finally:
        os.close(descriptor)


def _entries(path: str) -> list[Any]:
    with os.scandir(path) as found:
        return sorted(
            (e.name, e.path, e.is_dir(), e.is_file(), e.is_symlink(), e.is_dir(follow_symlinks=False))
            for e in found
        )


def _status(status: os.stat_result) -> tuple[int, int]:
    if stat.S_ISREG(status.st_mode):
        return status.st_mode, status.st_size
    return stat.S_IFMT(status.st_mode), 0


def _walked(path: str) -> list[Any]:
    return sorted((a, sorted(b), sorted(c)) for a, b, c in os.walk(path))


def _walked_by_descriptor(path: str) -> list[Any]:
    return sorted((a, sorted(b), sorted(c)) for a, b, c, _ in os.fwalk(path))


def _visited(path: str) -> str:
    before = os.getcwd()
    os.chdir(path)
    try:
        return f"{os.getcwd()} {sorted(os.listdir())} {os.path.exists('../a')}"
    finally:
        os.chdir(before)


def _swapped(path: str, other: str) -> None:
    shutil.rmtree(path)
    os.rename(other, path)


def _made(path: str) -> None:
    os.makedirs(path, exist_ok=True)


# Functions are looked up when they are called: they are replaced then.
_ON_ONE: dict[str, Callable[[str], object]] = {
    "read": _read,
    "write": lambda p: _write(p, "w"),
    "append": lambda p: _write(p, "a"),
    "create": lambda p: _write(p, "x"),
    "update": lambda p: _write(p, "r+"),
    "open append": lambda p: _open_and_write(p, os.O_WRONLY | os.O_APPEND),
    "open create": lambda p: _open_and_write(p, os.O_WRONLY | os.O_CREAT),
    "open new": lambda p: _open_and_write(p, os.O_RDWR | os.O_CREAT | os.O_EXCL),
    "open itself": lambda p: _open_and_write(p, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW),
    "truncate": lambda p: os.truncate(p, 1),
    "mkdir": lambda p: os.mkdir(p),
    "makedirs": lambda p: os.makedirs(p),
    "made": _made,
    "rmdir": lambda p: os.rmdir(p),
    "removedirs": lambda p: os.removedirs(p),
    "rmtree": lambda p: shutil.rmtree(p),
    "rmtree if there": lambda p: shutil.rmtree(p, ignore_errors=True),
    "unlink": lambda p: os.unlink(p),
    "readlink": lambda p: os.readlink(p),
    "realpath": lambda p: os.path.realpath(p),
    "resolve": lambda p: str(Path(p).resolve()),
    "listdir": lambda p: sorted(os.listdir(p)),
    "scandir": _entries,
    "iterdir": lambda p: sorted(map(str, Path(p).iterdir())),
    "walk": _walked,
    "fwalk": _walked_by_descriptor,
    "stat": lambda p: _status(os.stat(p)),
    "lstat": lambda p: _status(os.lstat(p)),
    "access": lambda p: os.access(p, os.R_OK),
    "exists": lambda p: (os.path.exists(p), os.path.lexists(p), os.path.isdir(p), os.path.islink(p)),
    "glob": lambda p: sorted(glob.glob(f"{p}/**", recursive=True)),
    "rglob": lambda p: sorted(map(str, Path(p).rglob("*"))),
    "touch": lambda p: Path(p).touch(),
    "chdir": _visited,
    "picture": lambda _: _picture(),
}
_ON_TWO: dict[str, Callable[[str, str], object]] = {
    "rename": lambda p, q: os.rename(p, q),
    "replace": lambda p, q: os.replace(p, q),
    "symlink": lambda p, q: os.symlink(p, q),
    "absolute symlink": lambda p, q: os.symlink(os.path.abspath(p), q),
    "link": lambda p, q: os.link(p, q),
    "copy": lambda p, q: shutil.copy(p, q),
    "copytree": lambda p, q: shutil.copytree(p, q),
    "move": lambda p, q: str(shutil.move(p, q)),
    "swap": _swapped,
}


def _tree(folder: Path) -> Path:
    (folder / "d" / "s").mkdir(parents=True)
    (folder / "e").mkdir()
    for name in ("a", "b", "d/a", "d/b", "d/s/a", "d/s/c"):
        (folder / name).write_text(f"old {name}")
    os.chmod(folder / "b", 0o755)
    os.symlink("a", folder / "l")
    os.symlink("d", folder / "m")
    os.symlink("../e", folder / "d" / "u")
    os.symlink("nowhere", folder / "n")
    os.symlink(folder / "d" / "s", folder / "d" / "o")
    return folder


def _path(source: random.Random) -> str:
    names = source.choices("aabdddesclmuno", k=source.choice((1, 1, 1, 2, 2, 3)))
    if source.random() < 0.05:
        names.insert(source.randrange(len(names) + 1), source.choice(("..", ".", "")))
    return "/".join(names).lstrip("/") or "d"


def _program(seed: int) -> list[Step]:
    source = random.Random(seed)
    names = source.choices([*_ON_ONE, *_ON_TWO], k=_STEPS)
    steps = [(name, [_path(source) for _ in range(2 if name in _ON_TWO else 1)]) for name in names]
    return [*steps, ("picture", ["."])]


def _run(program: list[Step], folder: Path) -> list[str]:
    """What each step gives."""
    os.chdir(folder)
    said: list[str] = []
    for name, paths in program:
        try:
            result = repr(_ON_TWO[name](*paths) if name in _ON_TWO else _ON_ONE[name](*paths))
        except (shutil.Error, RuntimeError) as error:  # pathlib's own for a loop of links
            result = f"{type(error)}"
        except OSError as error:
            result = f"{type(error)} {error.errno} {error.filename!r} {error.filename2!r}"
        said.append(f"{name} {paths}: {result}".replace(str(folder.parent), "FOLDER"))
    os.chdir(folder.parent)
    return said


def _picture() -> list[str]:
    found: list[str] = []
    for folder, folders, names in os.walk("."):
        found += [f"{folder}/{name} " for name in folders]
        for name in names:
            path = f"{folder}/{name}"
            content = os.readlink(path) if os.path.islink(path) else _read(path)
            found.append(f"{path} {content}")
    return sorted(found)


def _snapshot(folder: Path) -> list[Any]:
    """All of the real files that a change would change; no patch is on."""
    paths = [f"{at}/{name}" for at, folders, names in os.walk(folder) for name in ("", *folders, *names)]
    found = [(path, os.lstat(path)) for path in sorted(paths)]
    return [(path, s.st_ino, s.st_mode, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for path, s in found]


def _check(seed: int, folder: Path) -> None:
    program = _program(seed)
    plain = _run(program, _tree(folder / "plain" / "user"))

    alone = _tree(folder / "alone" / "user")
    before = _snapshot(alone.parent)
    with as_rank(1, folder / "ranks"):
        assert _run(program, alone) == plain, f"seed {seed}"
    assert _snapshot(alone.parent) == before

    if seed % 2:
        return
    shared = _tree(folder / "shared" / "user")
    with as_rank(0, folder / "shared ranks"):
        assert _run(program, shared) == plain, f"seed {seed}"
    after = _snapshot(shared.parent)
    with as_rank(1, folder / "shared ranks"):
        assert _run(program, shared) == plain, f"seed {seed}, behind rank 0"
    assert _snapshot(shared.parent) == after


@pytest.mark.parametrize("part", range(4))
def test_random_programs(part: int, tmp_path: Path) -> None:
    before = os.getcwd()
    try:
        for seed in range(part, _SEQUENCES, 4):
            _check(seed, tmp_path / str(seed))
            shutil.rmtree(tmp_path / str(seed))
    finally:
        os.chdir(before)
