"""Ranks above 0 see what they write in a file system of their own, and the user's files stay as they are."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from xl.configs.errors import XlError
from xl.configs.worker import WorkerSettings
from xl.runtime.shim import files
from xl.runtime.shim.report import Report
from xl.runtime.shim.session import Session


def listing(folder: Path) -> list[str]:
    """What another program sees: names and sizes."""
    command = ["find", str(folder), "-printf", r"%p %s\n"]
    return sorted(subprocess.run(command, capture_output=True, text=True).stdout.splitlines())


@pytest.fixture
def user(tmp_path: Path) -> Iterator[Path]:
    """The user's folder, from within: old files that must not change, and an overlay over them."""
    folder = tmp_path / "user"
    (folder / "old").mkdir(parents=True)
    (folder / "data.txt").write_text("real")
    (folder / "old" / "a").write_text("a")
    before, cwd = listing(folder), os.getcwd()

    def connect(_: torch.device) -> Any:
        raise AssertionError

    settings = WorkerSettings("test", "plain", rank=1, world_size=2, error_file=str(tmp_path / "error.json"))
    session = Session(settings, connect, Report(2))
    files.install(session, str(tmp_path / "overlay"))
    os.chdir(folder)
    yield folder
    os.chdir(cwd)
    session.close()
    assert listing(folder) == before


def test_written_files_are_read_back(user: Path) -> None:
    with open("data.txt", "a") as file:
        file.write(" and mine")
    assert Path("data.txt").read_text() == "real and mine"
    os.makedirs("runs/1")
    Path("runs/1/x.json").write_text("{}")
    assert os.listdir("runs/1") == ["x.json"]
    assert sorted(os.listdir()) == ["data.txt", "old", "runs"]
    assert [str(path) for path in Path(".").rglob("*.json")] == ["runs/1/x.json"]
    assert {name for _, folders, names in os.walk(user) for name in folders + names} == {
        "data.txt", "old", "a", "runs", "1", "x.json",
    }  # fmt: skip
    with os.scandir("old") as entries:
        assert [entry.name for entry in entries] == ["a"]


def test_checkpoints(user: Path) -> None:
    torch.save({"a": torch.ones(2)}, "m.part")
    os.replace("m.part", user / "m.pt")
    assert not os.path.exists("m.part")
    assert torch.load("m.pt")["a"].sum() == 2
    assert torch.load(user / "m.pt", mmap=True)["a"].sum() == 2
    np.save("z.npy", np.ones(3))
    np.savez("z.npz", a=np.ones(3))
    assert np.load("z.npy").sum() == 3
    with np.load("z.npz") as archive:
        assert archive["a"].sum() == 3


def test_removed_files_are_gone(user: Path) -> None:
    os.remove("data.txt")
    assert not pathlib.Path("data.txt").exists()
    with pytest.raises(FileNotFoundError) as caught, open("data.txt"):
        pass
    assert caught.value.filename == "data.txt"
    shutil.rmtree("old")
    assert os.listdir() == []
    os.mkdir("old")
    assert os.listdir("old") == []
    with pytest.raises(FileNotFoundError), open("old/a"):
        pass
    os.rmdir(user / "old")
    assert not os.path.isdir("old")


def test_copies_moves_and_links(user: Path) -> None:
    shutil.copytree("old", "new")
    shutil.move("new", "moved")
    assert not os.path.exists("new")
    assert Path("moved/a").read_text() == "a"
    os.rename("data.txt", "moved/b")
    assert Path("moved/b").read_text() == "real"
    assert "data.txt" not in os.listdir()
    os.symlink("b", "moved/c")
    assert Path("moved/c").read_text() == "real"
    os.chmod("moved/b", 0o600)
    with pytest.raises(OSError, match="not empty"):
        os.rmdir("moved")
    with pytest.raises(IsADirectoryError):
        os.remove("moved")


def test_folders_can_be_entered(user: Path) -> None:
    os.mkdir("runs")
    os.chdir("runs")
    assert os.getcwd() == str(user / "runs")
    assert Path("../data.txt").read_text() == "real"
    Path("here").write_text("1")
    assert Path(user / "runs" / "here").read_text() == "1"


def test_existing_is_still_an_error(user: Path) -> None:
    with open("fresh", "x"):
        pass
    with pytest.raises(FileExistsError), open("fresh", "x"):
        pass
    os.mkdir("runs")
    with pytest.raises(FileExistsError):
        os.mkdir("runs")
    os.makedirs("runs", exist_ok=True)
    with pytest.raises(FileNotFoundError), open("nowhere/x", "w"):
        pass


def test_other_programs_find_temporary_files(user: Path) -> None:
    with tempfile.NamedTemporaryFile() as file:
        assert subprocess.run(["test", "-e", file.name]).returncode == 0
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "x").write_text("1")
        assert subprocess.run(["test", "-e", f"{folder}/x"]).returncode == 0
    assert not os.path.exists(folder)


def test_the_launcher_finds_the_error_file(user: Path) -> None:
    (user.parent / "error.json").write_text("{}")
    assert subprocess.run(["test", "-e", str(user.parent / "error.json")]).returncode == 0


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[Session, Session, Path]]:
    """Rank 0, whose patches are on, and rank 1, which `as_rank` lets work; both in the user's folder."""
    folder = tmp_path / "user"
    folder.mkdir()
    (folder / "n.json").write_text("1")
    (folder / "old").mkdir()
    (folder / "old" / "a").write_text("a")

    def connect(_: torch.device) -> Any:
        raise AssertionError

    sessions = [
        Session(WorkerSettings("test", "plain", rank=rank, world_size=2), connect, Report(2))
        for rank in (0, 1)
    ]
    cwd = os.getcwd()
    os.chdir(folder)
    yield sessions[0], sessions[1], tmp_path
    os.chdir(cwd)


@contextmanager
def as_rank(session: Session, tmp_path: Path) -> Generator[None]:
    files.install(session, str(tmp_path / "overlay" / f"rank{session.rank}"))
    try:
        yield
    finally:
        session.unpatch()


def test_a_rank_sees_no_file_that_rank_0_has_just_made(two: tuple[Session, Session, Path]) -> None:
    first, second, tmp_path = two
    with as_rank(first, tmp_path):
        Path("made").write_text("1")
        os.makedirs("run0/logs")
        torch.save(torch.ones(2), "run0/m.pt")
        Path("n.json").write_text("2")
        with open("old/a", "a") as file:
            file.write("b")
    with as_rank(second, tmp_path):
        assert not os.path.exists("made")
        assert not os.path.isdir("run0")
        assert sorted(os.listdir()) == ["n.json", "old"]
        with os.scandir() as entries:
            assert sorted(entry.name for entry in entries) == ["n.json", "old"]
        assert Path("n.json").read_text() == "1"
        assert Path("old/a").read_text() == "a"
        with open("old/a", "a") as file:
            file.write("c")
        assert Path("old/a").read_text() == "ac"
        os.makedirs("run0")
        assert os.listdir("run0") == []
        with open("made", "x"):
            pass
    assert Path("old/a").read_text() == "ab"
    assert Path("n.json").read_text() == "2"


def test_a_rank_sees_files_that_rank_0_has_just_taken_away(two: tuple[Session, Session, Path]) -> None:
    first, second, tmp_path = two
    with as_rank(first, tmp_path):
        os.rename("n.json", "m.json")
        Path("old/new").write_text("1")
        shutil.rmtree("old")
    with as_rank(second, tmp_path):
        assert Path("n.json").read_text() == "1"
        assert not os.path.exists("m.json")
        assert os.listdir("old") == ["a"]
        assert sorted(os.listdir()) == ["n.json", "old"]
        os.rename("n.json", "m.json")
        shutil.rmtree("old")
        assert os.listdir() == ["m.json"]


def test_a_file_too_large_to_be_kept(
    two: tuple[Session, Session, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, tmp_path = two
    monkeypatch.setattr("xl.runtime.shim.originals._MAX_KEPT_BYTES", 0)
    with as_rank(first, tmp_path):
        Path("n.json").write_text("2")
    with as_rank(second, tmp_path), pytest.raises(XlError, match="after another has begun to change it"):
        Path("n.json").read_text()


def test_temporary_files_on_both_ranks(two: tuple[Session, Session, Path]) -> None:
    first, second, tmp_path = two
    for session in (first, second):
        with as_rank(session, tmp_path):
            with tempfile.TemporaryFile(dir=".") as nameless:
                nameless.write(b"1")
            with tempfile.NamedTemporaryFile("w", dir=".", delete=False) as file:
                file.write("2")
            os.replace(file.name, "m.json")
            assert Path("m.json").read_text() == "2"
            assert sorted(os.listdir()) == ["m.json", "n.json", "old"]
    assert sorted(os.listdir()) == ["m.json", "n.json", "old"]


def test_paths_by_name_marks_and_hard_links_on_both_ranks(two: tuple[Session, Session, Path]) -> None:
    first, second, tmp_path = two
    for session in (first, second):
        with as_rank(session, tmp_path):
            with open(file="named", mode="w") as file:
                file.write("1")
            os.rename(src="named", dst="renamed")
            torch.save(obj=torch.ones(2), f="m.pt")
            assert torch.load(f="m.pt").sum() == 2
            assert not os.path.exists("flag")
            Path("flag").touch()
            assert os.path.exists("flag")
            os.link("n.json", "hard")
            with open("hard", "a") as file:
                file.write("2")
            assert Path("hard").read_text() == Path("n.json").read_text() == "12"
    assert Path("n.json").read_text() == "12"
