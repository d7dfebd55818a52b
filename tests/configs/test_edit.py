"""Changing or removing one setting of a file leaves every other line as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from xl.configs.edit import set_value, unset_value
from xl.configs.errors import XlError
from xl.configs.files import parse_document

BEFORE = """\
# my profile
seed: 1  # the first
fsdp:
  # sharding
  fsdp_version: 2
  offload_params: no   # slow

# end of fsdp
hosts:
  - a
  - b
# last words
"""


def changed(text: str, key: str, value: object, name: str = "a.yaml") -> str:
    return set_value(text, parse_document(text, Path(name), name), key, value)


@pytest.mark.parametrize(
    ("key", "value", "old", "new"),
    [
        ("seed", 22, "seed: 1  #", "seed: 22  #"),
        ("seed", None, "seed: 1  #", "seed: null  #"),
        ("fsdp.version", 1, "fsdp_version: 2", "fsdp_version: 1"),
        ("fsdp.offload_params", True, "offload_params: no ", "offload_params: true "),
        (
            "fsdp.use_orig_params",
            False,
            "offload_params: no   # slow",
            "offload_params: no   # slow\n  use_orig_params: false",
        ),
        ("hosts", ("c",), "- a\n  - b\n", "[c]\n"),
        ("mixed_precision", "no", "# last words\n", "# last words\nmixed_precision: 'no'\n"),
        ("env.X", "1", "# last words\n", "# last words\nenv:\n  X: '1'\n"),
    ],
)
def test_only_that_line_changes(key: str, value: object, old: str, new: str) -> None:
    assert changed(BEFORE, key, value) == BEFORE.replace(old, new)


@pytest.mark.parametrize(
    ("before", "key", "value", "after"),
    [
        ("", "seed", 1, "seed: 1\n"),
        ("# nothing yet", "seed", 1, "# nothing yet\nseed: 1\n"),
        ("seed:\n", "seed", 1, "seed: 1\n"),
        ("seed:   # later\n", "seed", 1, "seed: 1   # later\n"),
        ("fsdp:\ncpu: true\n", "fsdp.version", 2, "fsdp:\n  version: 2\ncpu: true\n"),
        ("fsdp: {}\n", "fsdp.version", 2, "fsdp:\n  version: 2\n"),
        ("fsdp: {offload_params: true}\n", "fsdp.version", 2, "fsdp: {version: 2, offload_params: true}\n"),
        ("{seed: 1}\n", "cpu", True, "{cpu: true, seed: 1}\n"),
        (
            "fsdp:\n    version: 1",
            "fsdp.offload_params",
            True,
            "fsdp:\n    version: 1\n    offload_params: true",
        ),
        ("num-processes: 2\n", "num_processes", 3, "num-processes: 3\n"),
        ("log_dir: a\n", "log_dir", "x: #y", "log_dir: 'x: #y'\n"),
        ("log_dir: |\n  a\n  b\ncpu: true\n", "log_dir", "c", "log_dir: c\ncpu: true\n"),
    ],
)
def test_odd_files(before: str, key: str, value: object, after: str) -> None:
    result = changed(before, key, value)
    document = parse_document(result, Path("a.yaml"), "a.yaml")
    assert document.entries == parse_document(after, Path("a.yaml"), "a.yaml").entries
    if not before.startswith(("log_dir: |", "seed:   #", "fsdp: {}")):
        assert result == after


def test_json_is_rewritten() -> None:
    before = '{"seed": 1, "fsdp": {"fsdp_version": 2}}'
    assert changed(before, "fsdp.version", 1, "a.json") == (
        '{\n  "seed": 1,\n  "fsdp": {\n    "version": 1\n  }\n}\n'
    )
    assert '"hosts": [\n    "a"\n  ]' in changed(before, "hosts", ("a",), "a.json")


def test_what_cannot_be_changed_by_line_is_refused() -> None:
    with pytest.raises(XlError, match="edit it by hand: fsdp: {version: 1}"):
        changed("base: &b {version: 2}\nfsdp: *b\n", "fsdp.version", 1)


def without(text: str, key: str, name: str = "a.yaml") -> str:
    return unset_value(text, parse_document(text, Path(name), name), key)


@pytest.mark.parametrize(
    ("key", "lines"),
    [
        ("seed", "seed: 1  # the first\n"),
        ("fsdp.version", "  fsdp_version: 2\n"),
        ("fsdp.offload_params", "  offload_params: no   # slow\n"),
        ("hosts", "hosts:\n  - a\n  - b\n"),
        ("fsdp", "fsdp:\n  # sharding\n  fsdp_version: 2\n  offload_params: no   # slow\n"),
    ],
)
def test_only_that_line_goes(key: str, lines: str) -> None:
    assert without(BEFORE, key) == BEFORE.replace(lines, "")


@pytest.mark.parametrize(
    ("before", "key", "after"),
    [
        ("seed: 1", "seed", ""),
        ("seed:\ncpu: true\n", "seed", "cpu: true\n"),
        ("cpu: true\nseed:\n", "seed", "cpu: true\n"),
        ("log_dir: |\n  a\n  b\ncpu: true\n", "log_dir", "cpu: true\n"),
        ("fsdp:\n  version: 2\ncpu: true\n", "fsdp.version", "cpu: true\n"),
        ("fsdp: {version: 2}\ncpu: true\n", "fsdp.version", "cpu: true\n"),
        ("fsdp: {version: 2, offload_params: true}\n", "fsdp.version", "fsdp: {offload_params: true}\n"),
        ("fsdp: {version: 2, offload_params: true}\n", "fsdp.offload_params", "fsdp: {version: 2}\n"),
        ("{seed: 1, cpu: true}\n", "cpu", "{seed: 1}\n"),
        ("{seed: 1}\n", "seed", "{}\n"),
        ("env:\n  A: '1'\n  B: '2'\n", "env.A", "env:\n  B: '2'\n"),
        ("num-processes: 2\ncpu: true\n", "num_processes", "cpu: true\n"),
        ("fsdp.version: 2\ncpu: true\n", "fsdp.version", "cpu: true\n"),
        ("sede: 2\ncpu: true\n", "sede", "cpu: true\n"),
    ],
)
def test_odd_forms_go_too(before: str, key: str, after: str) -> None:
    assert without(before, key) == after


def test_unset_in_json() -> None:
    text = '{"seed": 1, "fsdp": {"fsdp_version": 2}, "cpu": true}'
    assert without(text, "fsdp.version", "a.json") == '{\n  "seed": 1,\n  "cpu": true\n}\n'
    assert without(text, "seed", "a.json").startswith('{\n  "fsdp"')


def test_what_cannot_be_cut_out_is_left_to_the_user() -> None:
    with pytest.raises(XlError, match=r"log_dir cannot be taken out of a\.yaml"):
        without("log_dir: &a x\nrole: *a\n", "log_dir")
