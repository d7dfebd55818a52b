"""DeepSpeed's JSON and the profile: one owner for each number, or one error that names both."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from xl.configs.errors import XlError
from xl.configs.resolve import Resolved, resolve

DOCUMENT = {
    "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
    "gradient_accumulation_steps": 4,
    "gradient_clipping": 1.0,
    "fp16": {"enabled": True},
}


def launch(tmp_path: Path, content: object, **flags: object) -> Resolved:
    (tmp_path / "ds.json").write_text(json.dumps(content, indent=2))
    asked = {"backend": "deepspeed", "deepspeed.config_file": "ds.json"}
    return resolve(asked | {name.replace("__", "."): value for name, value in flags.items()}, {}, tmp_path)


def test_the_file_fills_what_nobody_chose(tmp_path: Path) -> None:
    resolved = launch(tmp_path, DOCUMENT)
    profile = resolved.profile
    assert (profile.mixed_precision, profile.gradient_accumulation_steps) == ("fp16", 4)
    assert (profile.deepspeed.zero_stage, profile.deepspeed.offload_optimizer_device) == (2, "cpu")
    assert profile.deepspeed.gradient_clipping == 1.0
    assert resolved.values["mixed_precision"].origin.place == "ds.json:11 (fp16.enabled)"
    assert resolved.values["mixed_precision"].losers[0].value == "no"


def test_a_preset_gives_way_to_the_file(tmp_path: Path) -> None:
    assert launch(tmp_path, DOCUMENT, preset="zero3").profile.deepspeed.zero_stage == 2


def test_auto_is_filled_by_the_profile(tmp_path: Path) -> None:
    content = {"zero_optimization": {"stage": "auto"}, "gradient_accumulation_steps": "auto"}
    profile = launch(tmp_path, content, gradient_accumulation_steps=8, deepspeed__zero_stage=1).profile
    assert (profile.gradient_accumulation_steps, profile.deepspeed.zero_stage) == (8, 1)


def test_a_number_in_quotes_is_that_number(tmp_path: Path) -> None:
    content = {"gradient_accumulation_steps": "8", "gradient_clipping": "1"}
    resolved = launch(tmp_path, content, gradient_accumulation_steps=8, deepspeed__gradient_clipping=1.0)
    assert resolved.profile.gradient_accumulation_steps == 8


def test_disagreement_names_both_sources(tmp_path: Path) -> None:
    with pytest.raises(XlError) as caught:
        launch(
            tmp_path, DOCUMENT, gradient_accumulation_steps=8, mixed_precision="bf16", deepspeed__zero_stage=3
        )
    text = str(caught.value)
    assert "two values for gradient_accumulation_steps: 8 and 4" in text
    assert "--gradient-accumulation-steps says 8, ds.json:8 (gradient_accumulation_steps) says 4" in text
    assert "two values for mixed_precision: bf16 and fp16" in text
    assert "two values for deepspeed.zero_stage: 3 and 2" in text


def test_precision_that_the_file_turns_off(tmp_path: Path) -> None:
    off = {"fp16": {"enabled": False}, "zero_optimization": {"stage": 2}}
    with pytest.raises(XlError, match="two values for mixed_precision: fp16 and no"):
        launch(tmp_path, off, mixed_precision="fp16")
    assert launch(tmp_path, off, mixed_precision="bf16").profile.mixed_precision == "bf16"
    with pytest.raises(XlError, match="fp16 and bf16 are both enabled"):
        launch(tmp_path, {"fp16": {"enabled": True}, "bf16": {"enabled": True}})


def test_a_file_without_its_backend_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(json.dumps(DOCUMENT))
    resolved = resolve({"deepspeed.config_file": "ds.json"}, {}, tmp_path)
    assert resolved.profile.mixed_precision == "no"
    assert "has no effect: backend is ddp" in resolved.warnings[0]


def test_missing_and_misplaced_files(tmp_path: Path) -> None:
    with pytest.raises(XlError, match="ds.json does not exist"):
        resolve({"backend": "deepspeed", "deepspeed.config_file": "ds.json"}, {}, tmp_path)
    (tmp_path / "ds.json").write_text(json.dumps(DOCUMENT))
    with pytest.raises(
        XlError, match=r"(?s)is a DeepSpeed config.*zero_optimization.*xl config import ds.json"
    ):
        resolve({}, {}, tmp_path, config_file="ds.json")


def test_wrong_values_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(XlError, match=r"(?s)zero_stage: 7 is not a whole number from 0 to 3.*ds.json:3"):
        launch(tmp_path, {"zero_optimization": {"stage": 7}})
