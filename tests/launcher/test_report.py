"""Which failure is the cause, and what is said about it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from xl.configs.worker import WorkerSettings
from xl.launcher.plan import WorkerStart
from xl.launcher.report import Failure, describe_failure, failure_report, first_failure
from xl.launcher.streams import Streams


def start(folder: Path, rank: int = 1, shown: Streams | None = None) -> WorkerStart:
    settings = WorkerSettings("run", "plain", rank=rank, error_file=str(folder / f"{rank}.json"))
    return WorkerStart(settings, {}, (), str(folder / f"{rank}.log"), shown or Streams())


def test_the_earliest_failure_is_the_cause(tmp_path: Path) -> None:
    early = Failure(start(tmp_path, 1), 1, 10.0, "ValueError: cause", "Traceback")
    late = Failure(start(tmp_path, 0), 1, 10.1, "RuntimeError: connection closed", "Traceback")
    assert first_failure([late, early]) is early


def test_a_sudden_death_comes_before_the_errors_of_those_it_left(tmp_path: Path) -> None:
    killed = Failure(start(tmp_path, 1), -9, 10.2)
    peer = Failure(start(tmp_path, 0), 1, 10.1, "RuntimeError: connection closed", "Traceback")
    assert first_failure([peer, killed]) is killed


@pytest.mark.parametrize(
    ("returncode", "code", "text"),
    [
        (-9, 137, "out of memory?"),
        (-7, 135, "shared memory"),
        (-11, 139, "SIGSEGV"),
        (-6, 134, "SIGABRT"),
        (-40, 168, "signal 40"),
        (3, 3, "exit code 3"),
    ],
)
def test_what_an_exit_means(tmp_path: Path, returncode: int, code: int, text: str) -> None:
    failure = describe_failure(start(tmp_path), returncode, 1.0)
    assert failure.exit_code == code
    assert text in failure_report(failure, 0)


def test_a_worker_ended_while_it_failed_keeps_its_own_code(tmp_path: Path) -> None:
    told = {"time": 1.0, "type": "ValueError", "message": "m", "traceback": "T", "exit_code": 1}
    (tmp_path / "1.json").write_text(json.dumps(told))
    failure = describe_failure(start(tmp_path), -15, 2.0)
    assert (failure.exit_code, failure.cause, failure.time) == (1, "ValueError: m", 1.0)


def test_the_last_lines_do_not_repeat_the_traceback(tmp_path: Path) -> None:
    trace = "Traceback (most recent call last):\n  here\nValueError: m\n"
    lines = [f"line {number}" for number in range(50)]
    prefixed = [f"[rank1]: {line}" for line in trace.splitlines()]  # as torch's own hook prints it
    (tmp_path / "1.log").write_text("\n".join([*lines, *prefixed]) + "\n")
    report = failure_report(Failure(start(tmp_path), 1, 1.0, "ValueError: m", trace), 2)
    assert report.count("here") == 1
    assert "2 others failed after it" in report
    assert "line 49" in report
    assert "line 30" in report
    assert "line 29" not in report


def test_what_is_on_the_terminal_already_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "0.log").write_text("seen\n")
    shown = start(tmp_path, 0, Streams(True, True))
    report = failure_report(Failure(shown, 1, 1.0, "ValueError: m", "Traceback\n"), 0)
    assert "seen" not in report
    assert "Traceback" not in report
    assert "0.log" in report
