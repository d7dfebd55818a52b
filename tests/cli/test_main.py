"""The command `xl`: what it imports, what it prints when a line is wrong, and its exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from xl.cli import main as module
from xl.configs.errors import XlError

HEAVY = {"torch", "pydantic", "yaml", "numpy", "rich", "questionary"}


def run(*args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "xl.cli", *args]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environ}, check=False)


def imported(*args: str) -> set[str]:
    """The heavy packages that a run of `xl` with these arguments has imported."""
    code = f"import sys; from xl.cli.main import main; main({list(args)!r})"
    code += "; print(*sys.modules, file=sys.stderr)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return HEAVY & set(result.stderr.split())


@pytest.mark.parametrize(
    "args",
    [
        ["--help"],
        ["--version"],
        [],
        ["config", "show"],
        ["config", "list"],
        ["config", "path"],
        ["config", "use", "--none"],
        ["config", "use", "--help"],
    ],
    ids=" ".join,
)
def test_light_commands_import_nothing_heavy(
    args: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XL_CONFIG_HOME", str(tmp_path))
    assert imported(*args) <= ({"yaml"} if args[:2] == ["config", "use"] else set())


def test_launching_imports_no_torch() -> None:
    assert "torch" not in imported("launch", "--help")


def test_help_and_version() -> None:
    result = run("--help")
    assert result.returncode == 0
    for name in ("config", "launch", "env"):
        assert f"\n  {name} " in result.stdout
    assert run().stdout == result.stdout
    assert run("--version").stdout.startswith("xl ")


@pytest.mark.parametrize(
    ("args", "fix"),
    [
        (["lunch"], "did you mean launch?"),
        (["train.py"], "did you mean launch train.py?"),
        (["--verison"], "did you mean --version?"),
        (["config", "shwo"], "did you mean show?"),
        (["config", "set"], "xl config set --help"),
        (["launch"], "xl launch --help"),
        (["launch", "--seed"], "xl launch --help"),
        (["launch", "--nproc", "2", "train.py"], "did you mean --num-processes-per-machine?"),
        (["launch", "--num-proceses", "2", "train.py"], "did you mean --num-processes?"),
    ],
)
def test_a_wrong_line_is_explained(args: list[str], fix: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert module.main(args) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert "\nwhy:   " in err
    assert fix in err.rpartition("\nfix:   ")[2]


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (XlError("a", "b", "c"), 2),
        (XlError("a", "b", "c", exit_code=1), 1),
        (click.UsageError("bad"), 2),
        (click.FileError("x"), 1),
        (KeyboardInterrupt(), 130),
        (click.Abort(), 130),
    ],
)
def test_exit_codes(raised: BaseException, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise raised

    monkeypatch.setitem(module.xl.commands, "fails", click.Command("fails", callback=fails))
    assert module.main(["fails"]) == code


def test_a_command_returns_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module.xl.commands, "seven", click.Command("seven", callback=lambda: 7))
    assert module.main(["seven"]) == 7


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    command = f"{sys.executable} -m xl.cli config schema | head -c 1"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert result.stderr == ""
