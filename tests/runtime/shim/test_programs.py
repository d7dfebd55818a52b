"""A script that starts other programs is told that each process does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from xl.configs.worker import WorkerSettings
from xl.runtime.shim import programs
from xl.runtime.shim.report import Report
from xl.runtime.shim.session import Session


@pytest.fixture
def session() -> Iterator[Session]:
    def connect(_: torch.device) -> object:
        raise AssertionError

    made = Session(WorkerSettings("test", "plain", world_size=2), connect, Report(2))  # type: ignore[arg-type]
    programs.install(made)
    yield made
    made.close()


@pytest.mark.parametrize("way", ["system", "run", "Popen"])
def test_a_program_of_the_script(session: Session, way: str, capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        if way == "system":
            assert os.system("true") == 0  # pyright: ignore[reportDeprecated]
        elif way == "run":
            assert subprocess.run(["true"]).returncode == 0
        else:
            assert subprocess.Popen(["true"]).wait() == 0
    said = capfd.readouterr().err
    assert said.count("xl: the script starts another program (test_programs.py:") == 1
    assert "it runs on each of the 2 processes" in said


def test_nothing_is_said_of_libraries_and_after_stepping_aside(
    session: Session, capfd: pytest.CaptureFixture[str]
) -> None:
    code = compile(
        "import subprocess\nsubprocess.run(['true'])", f"{sys.prefix}/site-packages/lib.py", "exec"
    )
    exec(code, {"__name__": "lib"})
    session.aside = "the test"
    os.system("true")  # pyright: ignore[reportDeprecated]
    assert capfd.readouterr().err == ""
