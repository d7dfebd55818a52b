"""What this version cannot run: refused by name, and never a default."""

from __future__ import annotations

import pytest

from xl.configs.keys import all_keys
from xl.configs.unbuilt import RUNS, choices_to_come, is_unbuilt, launch_note, unbuilt


@pytest.mark.parametrize("name", RUNS)
def test_every_default_can_be_launched(name: str) -> None:
    default = all_keys()[name].default
    assert default is None or default in RUNS[name]
    assert not unbuilt({name: default})


@pytest.mark.parametrize("name", RUNS)
def test_every_other_choice_is_refused(name: str) -> None:
    for choice in all_keys()[name].choices:
        assert bool(unbuilt({name: choice})) == (choice not in RUNS[name])


def test_the_error_names_value_place_and_way_out() -> None:
    settings = {"dynamo.backend": "inductor", "debug": True, "backend": "fsdp"}
    text = "\n".join(map(str, unbuilt(settings, {"dynamo.backend": "--dynamo-backend", "debug": "a.yaml:3"})))
    assert "dynamo.backend=inductor is not there yet" in text
    assert "--dynamo-backend asks for it" in text
    assert "leave --dynamo-backend out" in text
    assert "debug=true is not there yet\nwhy:   a.yaml:3 asks for it" in text
    assert "leave debug out" in text
    assert "pass --backend ddp" in text


def test_values_as_files_have_them() -> None:
    assert not unbuilt({"hosts": [], "mixed_precision": False, "rdzv_conf": None})
    assert [problem.what for problem in unbuilt({"hosts": ["a", "b"]})] == ["hosts=a,b is not there yet"]


def test_the_note_names_all_of_it() -> None:
    assert launch_note({"backend": "ddp", "num_machines": 1}) is None
    note = launch_note({"backend": "fsdp", "num_machines": 2})
    assert note is not None
    assert "backend=fsdp and num_machines=2" in note


def test_what_a_launch_reads_is_told_from_what_it_does_not() -> None:
    assert is_unbuilt("fsdp.version")
    assert is_unbuilt("debug")
    assert not is_unbuilt("backend")
    assert not is_unbuilt("seed")
    assert choices_to_come("backend", all_keys()["backend"].choices) == ["fsdp", "deepspeed"]
    assert choices_to_come("start", all_keys()["start"].choices) == []
