"""Ranks above 0 see the user's files as rank 0 found them, wherever rank 0 is by then."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from xl.configs.errors import XlError

from .file_harness import as_rank


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Path]:
    """The folder of the ranks; they work in the user's one below it."""
    folder = tmp_path / "user"
    folder.mkdir()
    (folder / "n.json").write_text("1")
    (folder / "old").mkdir()
    (folder / "old" / "a").write_text("a")
    cwd = os.getcwd()
    os.chdir(folder)
    yield tmp_path
    os.chdir(cwd)


def test_a_rank_sees_no_file_that_rank_0_has_just_made(shared: Path) -> None:
    with as_rank(0, shared):
        Path("made").write_text("1")
        os.makedirs("run0/logs")
        torch.save(torch.ones(2), "run0/m.pt")
        Path("n.json").write_text("2")
        with open("old/a", "a") as file:
            file.write("b")
    with as_rank(1, shared):
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


def test_a_rank_sees_files_that_rank_0_has_just_taken_away(shared: Path) -> None:
    with as_rank(0, shared):
        os.rename("n.json", "m.json")
        Path("old/new").write_text("1")
        shutil.rmtree("old")
    with as_rank(1, shared):
        assert Path("n.json").read_text() == "1"
        assert not os.path.exists("m.json")
        assert os.listdir("old") == ["a"]
        assert sorted(os.listdir()) == ["n.json", "old"]
        os.rename("n.json", "m.json")
        shutil.rmtree("old")
        assert os.listdir() == ["m.json"]


def test_a_file_too_large_to_be_kept(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xl.runtime.shim.originals._MAX_KEPT_BYTES", 0)
    with as_rank(0, shared):
        Path("n.json").write_text("2")
    with as_rank(1, shared), pytest.raises(XlError, match="after another has begun to change it"):
        Path("n.json").read_text()


def test_temporary_files_on_both_ranks(shared: Path) -> None:
    for rank in (0, 1):
        with as_rank(rank, shared):
            with tempfile.TemporaryFile(dir=".") as nameless:
                nameless.write(b"1")
            with tempfile.NamedTemporaryFile("w", dir=".", delete=False) as file:
                file.write("2")
            os.replace(file.name, "m.json")
            assert Path("m.json").read_text() == "2"
            assert sorted(os.listdir()) == ["m.json", "n.json", "old"]
    assert sorted(os.listdir()) == ["m.json", "n.json", "old"]


def test_paths_by_name_marks_and_hard_links_on_both_ranks(shared: Path) -> None:
    for rank in (0, 1):
        with as_rank(rank, shared):
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


def test_a_renamed_file_that_rank_0_goes_on_writing(shared: Path) -> None:
    for rank in (0, 1):
        with as_rank(rank, shared):
            os.rename("n.json", "old.json")
            with open("old.json", "a") as file:
                file.write("2")
            assert Path("old.json").read_text() == "12"
            os.rename("old.json", "n.json")


def test_links_that_rank_0_writes_through(shared: Path) -> None:
    Path("link").symlink_to("n.json")
    Path("latest").symlink_to("old")
    for rank in (0, 1):
        with as_rank(rank, shared):
            with open("link", "a") as file:
                file.write("2")
            assert Path("n.json").read_text() == "12"
            Path("latest/new").write_text("1")
            assert sorted(os.listdir("old")) == ["a", "new"]
            os.replace("latest/new", "latest/a")
            assert sorted(os.listdir("old")) == ["a"]
            with pytest.raises(
                NotADirectoryError
            ):  # it cannot remove the link, after it has removed all else
                shutil.rmtree("latest/")
            assert os.listdir("old") == []
