"""Runs `xl` in a folder of its own, with a config folder of its own."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from xl.cli.main import main


@dataclass(frozen=True, slots=True)
class Outcome:
    code: int
    out: str
    err: str


@dataclass(frozen=True, slots=True)
class Cli:
    """A working directory that is a repository, a config folder, and `run`."""

    cwd: Path
    home: Path
    run: Callable[..., Outcome]

    def write(self, name: str, text: str) -> Path:
        path = self.cwd / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o644)
        return path

    def profile(self, name: str, text: str, *, active: bool = False) -> Path:
        path = self.home / "profiles" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if active:
            (self.home / "active").write_text(name)
        return path


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    cwd, home = tmp_path / "repo", tmp_path / "home"
    (cwd / ".git").mkdir(parents=True)
    for variable in [name for name in os.environ if name.startswith("XL_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("XL_CONFIG_HOME", str(home))
    monkeypatch.chdir(cwd)

    def run(*args: str) -> Outcome:
        capsys.readouterr()
        code = main(list(args))
        out, err = capsys.readouterr()
        return Outcome(code, out, err)

    return Cli(cwd, home, run)
