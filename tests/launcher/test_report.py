"""Which failure is the cause, and what is said about it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from xl.configs.worker import WorkerSettings
from xl.launcher.plan import WorkerStart
from xl.launcher.report import Failure, describe_failure, failure_report, first_failure
from xl.launcher.streams import Streams


def start(folder: Path, rank: int = 1, shown: Streams | None = None, world_size: int = 2) -> WorkerStart:
    settings = WorkerSettings(
        "run", "plain", rank=rank, world_size=world_size, error_file=str(folder / f"{rank}.json")
    )
    return WorkerStart(settings, {}, (), str(folder / f"{rank}.log"), shown or Streams())


def test_the_earliest_failure_is_the_cause(tmp_path: Path) -> None:
    early = Failure(start(tmp_path, 1), 1, 10.0, "ValueError: cause", "Traceback")
    late = Failure(start(tmp_path, 0), 1, 10.1, "RuntimeError: connection closed", "Traceback")
    assert first_failure([late, early]) is early


def test_an_error_of_several_is_told_of_the_lowest_rank(tmp_path: Path) -> None:
    """Which of them wrote it first is chance, and a report that differs from run to run helps nobody."""
    alike = [Failure(start(tmp_path, rank), 1, 10.0 - rank, "ValueError: m", "T") for rank in (0, 1)]
    other = Failure(start(tmp_path, 0), 1, 11.0, "ValueError: n", "T")
    assert first_failure(alike) is alike[0]
    assert first_failure([other, alike[1]]) is alike[1]


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
    assert text in failure_report(failure, [])


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
    others = [Failure(start(tmp_path, rank), -6, 2.0) for rank in (2, 3)]
    report = failure_report(Failure(start(tmp_path), 1, 1.0, "ValueError: m", trace), others)
    assert report.count("here") == 1
    assert "2 others failed after it" in report
    assert "line 49" in report
    assert "line 30" in report
    assert "line 29" not in report


def test_what_is_on_the_terminal_already_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "0.log").write_text("seen\n")
    shown = start(tmp_path, 0, Streams(True, True))
    report = failure_report(Failure(shown, 1, 1.0, "ValueError: m", "Traceback\n"), [])
    assert "seen" not in report
    assert "Traceback" not in report
    assert "0.log" in report


@pytest.mark.parametrize("ended", [False, True], ids=["by itself", "while it was ended"])
def test_an_equal_error_on_the_terminal_is_not_shown_again(tmp_path: Path, ended: bool) -> None:
    blamed = Failure(start(tmp_path, 1), 1, 1.0, "ValueError: m", "Traceback\nm\n")
    (tmp_path / "1.log").write_text("seen\n")
    shown = Failure(start(tmp_path, 0, Streams(True, True)), 1, 1.1, "ValueError: m", "Traceback\nm\n")
    report = failure_report(blamed, [] if ended else [shown], [shown] if ended else [])
    assert report.splitlines() == [
        "xl: all 2 ranks failed alike with exit code 1: ValueError: m",
        f"xl: the whole output of rank 1: {tmp_path / '1.log'}",
    ]


def test_another_error_on_the_terminal_is_told_apart(tmp_path: Path) -> None:
    blamed = Failure(start(tmp_path, 1), 1, 1.0, "ValueError: m", "Traceback of 1\n")
    shown = Failure(start(tmp_path, 0, Streams(True, True)), 1, 1.1, "OSError: n", "Traceback of 0\n")
    report = failure_report(blamed, [shown])
    assert "xl: rank 1 failed with exit code 1 (1 other failed after it): ValueError: m\n" in report
    assert "Traceback of 1" in report
    assert "Traceback of 0" not in report
    assert "xl: what is shown above is the error of rank 0: OSError: n" in report


def test_some_alike(tmp_path: Path) -> None:
    failures = [
        Failure(start(tmp_path, rank, world_size=4), 1, 1.0, "ValueError: m", "T\n") for rank in (1, 2)
    ]
    report = failure_report(failures[0], failures[1:])
    assert report.startswith("xl: ranks 1, 2 failed alike with exit code 1: ValueError: m\nT\n")
    assert report.count("T\n") == 1


def test_a_traceback_behind_a_prompt_is_not_repeated(tmp_path: Path) -> None:
    (tmp_path / "1.log").write_text("name? error: m\nwhy:   n\n")
    report = failure_report(Failure(start(tmp_path), 2, 1.0, "m", "error: m\nwhy:   n\n"), [])
    assert report.count("error: m") == 1
    assert "  name? \n" in report
