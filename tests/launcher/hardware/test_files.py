"""The kernel's list form of CPU numbers, and files that are not there."""

from pathlib import Path

import pytest

from xl.launcher.hardware.files import format_cpu_list, list_names, parse_cpu_list, read_int, read_text


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0-3,8", {0, 1, 2, 3, 8}),
        ("0", {0}),
        ("0-1, 4-5\n", {0, 1, 4, 5}),
        ("x,2-,3", {3}),
    ],
)
def test_cpu_lists(text: str, cpus: set[int]) -> None:
    assert parse_cpu_list(text) == cpus


@pytest.mark.parametrize("text", ["", "0", "0-3", "0-3,8", "1,3,5-7"])
def test_formatting_is_the_inverse(text: str) -> None:
    assert format_cpu_list(parse_cpu_list(text)) == text


def test_an_empty_list_of_cpus() -> None:
    assert parse_cpu_list("") == parse_cpu_list("\n") == frozenset()


def test_absent_files_are_empty(tmp_path: Path) -> None:
    assert read_text(tmp_path / "absent") == ""
    assert read_text(tmp_path) == ""
    assert read_int(tmp_path / "absent") is None
    assert list_names(tmp_path / "absent") == ()
    (tmp_path / "max").write_text("max\n")
    assert read_int(tmp_path / "max") is None
