"""How a value is read from text, what stands for what, and what an error says."""

from __future__ import annotations

import pytest

from xl.configs.errors import XlError
from xl.configs.keys import all_keys, canonical, check, find_key, nearest_key, parse


def typed(name: str, text: str) -> object:
    return parse(all_keys()[name], text, "here")


def checked(name: str, value: object) -> object:
    return check(all_keys()[name], value, "a.yaml:1")


def message(name: str, value: object) -> str:
    with pytest.raises(XlError) as caught:
        checked(name, value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("num_processes", "8", 8),
        ("num_processes", "null", None),
        ("main_process_port", "0", 0),
        ("grace_period_s", "2.5", 2.5),
        ("cpu", "True", True),
        ("cpu", "off", False),
        ("mixed_precision", "BF16", "bf16"),
        ("fsdp.version", "2", 2),
        ("fsdp.sharding_strategy", "1", "FULL_SHARD"),
        ("fsdp.auto_wrap_policy", "TRANSFORMER_BASED", "TRANSFORMER_BASED_WRAP"),
        ("fsdp.transformer_layer_cls_to_wrap", "Block, Layer", ("Block", "Layer")),
        ("gpu_ids", "0,1", "0,1"),
    ],
)
def test_texts_become_values(name: str, text: str, value: object) -> None:
    assert typed(name, text) == value


@pytest.mark.parametrize("text", ["eight", "0", "-1", "2.5", "", " ", "1e400", "٣.٥"])
def test_texts_that_are_no_count(text: str) -> None:
    with pytest.raises(XlError, match="num_processes"):
        typed("num_processes", text)


@pytest.mark.parametrize("text", ["nan", "inf", "-1", ""])
def test_texts_that_are_no_seconds(text: str) -> None:
    with pytest.raises(XlError, match="grace_period_s"):
        typed("grace_period_s", text)


@pytest.mark.parametrize(
    ("name", "value", "form"),
    [
        ("mixed_precision", False, "no"),
        ("dynamo.backend", False, "no"),
        ("gpu_ids", 0, "0"),
        ("gpu_ids", [0, 1], "0,1"),
        ("tee", 3, "3"),
        ("hosts", ["a", "b"], ("a", "b")),
        ("hosts", "a, b", ("a", "b")),
        ("grace_period_s", 3, 3.0),
        ("num_processes", None, None),
    ],
)
def test_forms_that_stand_for_others(name: str, value: object, form: object) -> None:
    found = checked(name, value)
    assert found == form
    assert type(found) is type(form)


@pytest.mark.parametrize(
    ("name", "value", "fix"),
    [
        ("num_processes", "8", "write 8 without quotes"),
        ("num_processes", 2.0, "write 2"),
        ("num_processes", True, "write a whole number of at least 1"),
        ("cpu", "false", "write true or false"),
        ("cpu", 0, "write true or false"),
        ("mixed_precision", True, "write one of no, fp16, bf16, fp8"),
        ("mixed_precision", "fp61", "write fp16"),
        ("log_dir", True, 'put it in quotes: "true"'),
        ("hosts", [1, 2], "write a list of texts"),
        ("main_process_port", 70000, "from 0 to 65535"),
        ("fsdp.version", "2", "write 2 without quotes"),
    ],
)
def test_wrong_values_name_the_fix(name: str, value: object, fix: str) -> None:
    text = message(name, value)
    assert fix in text
    assert "a.yaml:1 sets it" in text


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("num_proceses", "num_processes"),
        ("nproc_per_node", "num_processes_per_machine"),
        ("master_port", "main_process_port"),
        ("offload_params", "fsdp.offload_params"),
        ("fsdp_version", "fsdp.version"),
        ("zero_stage", "deepspeed.zero_stage"),
        ("deepspeed_config_file", "deepspeed.config_file"),
        ("xyzzy", None),
    ],
)
def test_the_nearest_key(word: str, key: str | None) -> None:
    assert nearest_key(word) == key


def test_dashes_and_repeated_section_names_are_the_same_key() -> None:
    assert canonical("num-processes") == "num_processes"
    assert canonical("fsdp.fsdp_version") == "fsdp.version"
    assert canonical("env.MY-NAME") == "env.MY-NAME"


def test_a_variable_of_the_processes_is_a_text() -> None:
    key = find_key("env.OMP_NUM_THREADS")
    assert key is not None
    assert check(key, 4, "a.yaml:1") == "4"
    assert parse(key, " spaces stay ", "here") == " spaces stay "
    with pytest.raises(XlError, match="in quotes"):
        check(key, 1.5, "a.yaml:1")


def test_every_key_has_a_flag_a_variable_and_a_meaning() -> None:
    keys = all_keys().values()
    assert len({key.flag for key in keys}) == len(keys)
    assert len({key.variable for key in keys}) == len(keys)
    assert all(key.description for key in keys)
