"""Which file a program begins in, and what is said about a name that leads to none."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from xl.configs.errors import XlError
from xl.configs.worker import Target
from xl.launcher.locate import locate


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in {
        "train.py": "",
        "plain": "print(1)\n",
        "folder/readme.md": "",
        "scripts/a.py": "",
        "scripts/my_train.py": "",
        "package/__init__.py": "",
        "package/train.py": "",
        "my nb.ipynb": "{}",
        "ds.json": "{}",
        "run.sh": "#!/bin/bash\nxl launch train.py\n",
        "tool": "#!/usr/bin/env python3\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("trian.py", "did you mean train.py?"),
        ("train", "did you mean train.py?"),
        ("none.py", "check the path"),
        ("nowhere/train.py", "check the path"),
        ("folder", "it holds no Python file"),
        ("scripts", "name a file in it: scripts/my_train.py, scripts/a.py"),
        ("package", "name a file in it: package/train.py"),
        ("package.train", "did you mean the module: xl launch -m package.train?"),
        ("json.tool", "did you mean the module: xl launch -m json.tool?"),
        ("package.none", "check the path"),
        ("..", "is a folder"),
        ("-", "standard input"),
        ("pipe", "is a device or a pipe"),
        ("ds.json", "xl launch --config-file ds.json SCRIPT"),
        ("run.sh", "its first line asks for /bin/bash"),
    ],
)
def test_what_is_no_script(folder: Path, name: str, text: str) -> None:
    with pytest.raises(XlError) as error:
        locate(Target(name), folder)
    assert text in str(error.value)
    assert error.value.exit_code == 2


def test_a_notebook_is_refused_with_the_way_to_a_script(folder: Path) -> None:
    """P38: its JSON would run as a dictionary, and its cells would not run at all."""
    with pytest.raises(XlError, match="is a notebook") as error:
        locate(Target("my nb.ipynb"), folder)
    assert error.value.fix == "jupyter nbconvert --to script 'my nb.ipynb', then xl launch 'my nb.py'"
    assert "every process starts the program anew" in error.value.why


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("nothing", "there is no module nothing"),
        ("folder.nothing", "folder.nothing is found neither in"),
        ("package", "name one of its modules, such as -m package.train"),
        ("train.py", "xl launch train.py, without -m"),
        ("package/train.py", "xl launch package/train.py, without -m"),
        ("a..b", "there is no module a..b"),
    ],
)
def test_what_is_no_module(folder: Path, name: str, text: str) -> None:
    with pytest.raises(XlError) as error:
        locate(Target(name, (), module=True), folder)
    assert text in str(error.value)


@pytest.mark.parametrize("name", ["train.py", "plain", "tool"])
def test_a_program_needs_no_ending(folder: Path, name: str) -> None:
    assert locate(Target(name), folder) == folder / name


def test_modules_are_found_without_being_imported(folder: Path) -> None:
    (folder / "package" / "__init__.py").write_text("raise AssertionError")
    assert locate(Target("package.train", (), True), folder) == folder / "package" / "train.py"
    assert "package" not in sys.modules
