"""Run folders: made, kept while in use, pruned to the newest."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from xl.configs.errors import XlError
from xl.launcher.runs import KEPT_RUNS, RunFolder


def test_old_runs_are_pruned_and_running_ones_stay(tmp_path: Path) -> None:
    running = RunFolder(str(tmp_path / "running"), prune=True)
    os.utime(running.path, (0, 0))
    for number in range(KEPT_RUNS + 3):
        RunFolder(str(tmp_path / f"run{number}"), prune=True).close()
        os.utime(tmp_path / f"run{number}", (number + 1, number + 1))
    RunFolder(str(tmp_path / "last"), prune=True).close()
    left = {entry.name for entry in tmp_path.iterdir()}
    assert "running" in left
    assert "last" in left
    assert len(left) == KEPT_RUNS + 1
    running.close()


def test_a_folder_of_the_users_is_not_pruned(tmp_path: Path) -> None:
    for number in range(KEPT_RUNS + 3):
        RunFolder(str(tmp_path / f"run{number}"), prune=False).close()
    assert len(list(tmp_path.iterdir())) == KEPT_RUNS + 3


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(XlError, match="cannot be made"):
        RunFolder(str(tmp_path / "file" / "run"), prune=False)
