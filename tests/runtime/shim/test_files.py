"""Ranks above 0 see what they write in a file system of their own, and the user's files stay as they are."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import glob
import os
import pathlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from .file_harness import as_rank


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
    with as_rank(1, tmp_path, error_file=str(tmp_path / "error.json")):
        os.chdir(folder)
        yield folder
        os.chdir(cwd)
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


def test_open_files_have_the_names_of_the_script(user: Path) -> None:
    for mode in ("r", "rb", "w", "ab"):
        with open("data.txt", mode) as file:
            assert file.name == "data.txt"
    with open("data.txt", "rb", buffering=0) as file:
        assert file.name == "data.txt"
    with open(user / "data.txt") as file:
        assert file.name == str(user / "data.txt")


def test_pipes_are_private(user: Path) -> None:
    os.mkfifo("pipe")
    assert Path("pipe").is_fifo()


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


def test_a_renamed_folder_takes_its_old_files_along(user: Path) -> None:
    Path("old/new").write_text("n")
    os.rename("old", "older")
    assert sorted(os.listdir("older")) == ["a", "new"]
    assert Path("older/a").read_text() == "a"
    assert not os.path.exists("old")


def test_a_folder_in_place_of_a_removed_one_shows_nothing_of_it(user: Path) -> None:
    os.makedirs("next/deep")
    Path("next/new").write_text("n")
    shutil.rmtree("old")
    os.rename("next", "old")
    assert sorted(os.listdir("old")) == ["deep", "new"]
    assert not os.path.exists("old/a")
    os.rename("old", "next")
    os.makedirs("old")
    assert os.listdir("old") == []


def test_links_are_followed_into_either_layer(user: Path, tmp_path: Path) -> None:
    os.symlink("data.txt", "file")
    os.symlink(user / "old", "folder")
    assert Path("file").read_text() == "real"
    Path("file").write_text("mine")
    assert Path("data.txt").read_text() == "mine"
    Path("folder/new").write_text("n")
    assert sorted(os.listdir("old")) == sorted(os.listdir("folder")) == ["a", "new"]
    assert os.path.realpath("folder/new") == str(user / "old" / "new")
    assert os.readlink("folder") == str(user / "old")
    os.chdir("folder")
    assert Path("../data.txt").read_text() == "mine"
    assert os.getcwd() == str(user / "old")
    os.chdir(user)
    os.symlink("loop", "loop")
    with pytest.raises(OSError, match="Too many levels"):
        Path("loop").read_text()


def test_a_real_link_is_written_through(user: Path) -> None:
    subprocess.run(["ln", "-s", "user/data.txt", user.parent / "link"])
    subprocess.run(["ln", "-s", user / "old", user.parent / "latest"])
    with open("../link", "a") as file:
        file.write(" and mine")
    assert Path("data.txt").read_text() == "real and mine"
    Path("../latest/new").write_text("n")
    assert sorted(os.listdir("old")) == ["a", "new"]
    os.unlink("../latest")
    assert os.path.isdir("old")
    assert not os.path.lexists("../latest")


@pytest.mark.parametrize(
    ("call", "error", "name"),
    [
        (lambda: os.rmdir("missing"), FileNotFoundError, "missing"),
        (lambda: os.rmdir("data.txt"), NotADirectoryError, "data.txt"),
        (lambda: os.rmdir(Path("old")), OSError, "old"),
        (lambda: shutil.rmtree("missing"), FileNotFoundError, "missing"),
        (lambda: shutil.rmtree("data.txt"), NotADirectoryError, "data.txt"),
        (lambda: os.makedirs("data.txt/x"), NotADirectoryError, "data.txt/x"),
        (lambda: os.mkdir("missing/x"), FileNotFoundError, "missing/x"),
        (lambda: os.listdir("missing"), FileNotFoundError, "missing"),
        (lambda: os.listdir(b"data.txt"), NotADirectoryError, b"data.txt"),
        (lambda: os.scandir(Path("missing")), FileNotFoundError, "missing"),
        (lambda: os.unlink("old"), IsADirectoryError, "old"),
        (lambda: Path("missing").unlink(), FileNotFoundError, "missing"),
        (lambda: Path("old").write_text(""), IsADirectoryError, "old"),
        (lambda: Path("data.txt/x").read_text(), NotADirectoryError, "data.txt/x"),
        (lambda: os.rename("missing", "x"), FileNotFoundError, "missing"),
        (lambda: os.rename("old", "old/x"), OSError, "old"),
        (lambda: os.replace("data.txt", "old"), IsADirectoryError, "data.txt"),
        (lambda: os.rename("old", "data.txt"), NotADirectoryError, "old"),
        (lambda: os.link("missing", "x"), FileNotFoundError, "missing"),
        (lambda: os.symlink("x", "old"), FileExistsError, "x"),
        (lambda: os.truncate("missing", 0), FileNotFoundError, "missing"),
        (lambda: os.chmod("missing", 0o600), FileNotFoundError, "missing"),
        (lambda: os.utime("missing"), FileNotFoundError, None),
        (lambda: os.stat("missing", dir_fd=0), NotADirectoryError, "missing"),
        (lambda: torch.load("missing"), FileNotFoundError, "missing"),
        (lambda: os.stat(""), FileNotFoundError, ""),
    ],
)
def test_errors_are_those_of_the_system(
    user: Path, call: Callable[[], object], error: type[OSError], name: str | None
) -> None:
    with pytest.raises(error) as caught:
        call()
    assert caught.value.filename == name
    assert str(user.parent) not in str(caught.value)


def test_a_missing_folder_as_torch_says_it(user: Path) -> None:
    with pytest.raises(RuntimeError, match=r"^Parent directory runs/1 does not exist\.$"):
        torch.save(torch.ones(2), "runs/1/m.pt")


def test_temporary_files_in_a_folder_that_only_this_process_sees(user: Path) -> None:
    os.mkdir("work")
    with tempfile.TemporaryDirectory(dir="work") as folder:
        Path(folder, "x").write_text("1")
        assert os.listdir("work") == [os.path.basename(folder)]
    with tempfile.NamedTemporaryFile("w", dir="work", delete=False) as file:
        file.write("2")
    os.replace(file.name, "work/x")
    assert os.listdir("work") == ["x"]
    assert Path("work/x").read_text() == "2"


def test_entries_have_the_paths_of_the_script(user: Path) -> None:
    Path("old/new").write_text("new")
    os.symlink("new", "old/link")
    with os.scandir("old") as found:
        entries = {entry.name: entry for entry in found}
    assert {entry.path for entry in entries.values()} == {"old/a", "old/new", "old/link"}
    assert os.fspath(entries["new"]) == "old/new"
    assert entries["new"].stat().st_size == 3
    assert entries["link"].is_symlink()
    assert entries["link"].is_file()
    assert not entries["link"].is_file(follow_symlinks=False)
    assert entries["link"].stat(follow_symlinks=False).st_ino == entries["link"].inode()
    assert sorted(entry.path for entry in os.scandir(b"old")) == [b"old/a", b"old/link", b"old/new"]
    assert sorted(Path("old").iterdir()) == [Path("old/a"), Path("old/link"), Path("old/new")]
    assert sorted(glob.glob("old/n*")) == ["old/new"]
    assert sorted(os.listdir(None)) == sorted(os.listdir(".")) == ["data.txt", "old"]
    assert {folder for folder, _, _ in os.walk(".")} == {".", "./old"}


def test_paths_beside_an_open_folder(user: Path) -> None:
    Path("old/new").write_text("new")
    folder = os.open("old", os.O_RDONLY)
    try:
        assert sorted(os.listdir(folder)) == ["a", "new"]
        assert sorted(entry.path for entry in os.scandir(folder)) == ["a", "new"]
        os.unlink("a", dir_fd=folder)
        os.rename("new", "newer", src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        os.close(folder)
    assert os.listdir("old") == ["newer"]


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
