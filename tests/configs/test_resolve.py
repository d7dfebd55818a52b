"""One order for every source, every value with its origin, and every problem at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pytest

from xl.configs.errors import XlError
from xl.configs.files import write_profile
from xl.configs.keys import Key, all_keys
from xl.configs.layers import Origin
from xl.configs.resolve import Resolved, resolve


class Place:
    """A working directory in a repository, with a config folder beside it."""

    def __init__(self, folder: Path) -> None:
        self.cwd, self.home = folder / "repo", folder / "home"
        (self.cwd / ".git").mkdir(parents=True)
        self.environ: dict[str, str] = {"XL_CONFIG_HOME": str(self.home)}

    def write(self, name: str, text: str) -> Path:
        path = self.cwd / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def profile(self, name: str, text: str, *, active: bool = False) -> None:
        path = self.home / "profiles" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if active:
            (self.home / "active").write_text(name)

    def resolve(
        self,
        flags: Mapping[str, object] | None = None,
        *,
        file: str | None = None,
        profile: str | None = None,
        **variables: str,
    ) -> Resolved:
        return resolve(flags or {}, self.environ | variables, self.cwd, profile, file)

    def problems(self, file: str, **variables: str) -> str:
        with pytest.raises(XlError) as caught:
            self.resolve(None, file=file, profile=None, **variables)
        assert caught.value.exit_code == 2
        return str(caught.value)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_nothing_set_gives_the_defaults(place: Place) -> None:
    resolved = place.resolve()
    assert resolved.profile.backend == "ddp"
    assert resolved.profile.num_processes is None
    assert resolved.values["backend"].origin == Origin("default", "default")
    assert resolved.label == "none"
    assert resolved.warnings == ()


def test_an_empty_home_is_no_failure(tmp_path: Path) -> None:
    for environ in ({}, {"HOME": ""}, {"HOME": str(tmp_path)}):
        assert resolve({}, environ, tmp_path).label == "none"


def test_every_source_wins_over_the_ones_below(place: Place) -> None:
    place.write("train.yaml", "seed: 3\n")
    place.write("xl.yaml", "seed: 4\n")
    place.profile("mine", "seed: 5\npreset: cpu\n", active=True)
    steps = [
        (place.resolve({"seed": 1}, file="train.yaml", XL_SEED="2"), 1, "--seed"),
        (place.resolve(file="train.yaml", XL_SEED="2"), 2, "XL_SEED"),
        (place.resolve(file="train.yaml"), 3, "train.yaml:1"),
        (place.resolve(), 4, "xl.yaml:1"),
    ]
    for resolved, seed, origin in steps:
        assert resolved.profile.seed == seed
        assert resolved.values["seed"].origin.place == origin
    assert [loser.value for loser in steps[0][0].values["seed"].losers] == [2, 3, 4, None]
    (place.cwd / "xl.yaml").unlink()
    resolved = place.resolve()
    assert resolved.profile.seed == 5
    assert resolved.values["seed"].origin == Origin("profile", str(place.home / "profiles/mine.yaml") + ":1")
    assert resolved.values["cpu"].origin == Origin("preset", "preset cpu")


def test_the_files_in_use_are_named(place: Place) -> None:
    place.write("conf/train.yaml", "seed: 1\n")
    place.write("xl.yaml", "debug: true\n")
    place.profile("big", "mixed_precision: bf16\n", active=True)
    resolved = place.resolve({"preset": "fsdp"}, file="conf/train.yaml")
    assert resolved.label == "conf/train.yaml + xl.yaml + preset fsdp"  # a named file replaces big
    assert place.resolve(profile="zero3").label == "profile zero3 + xl.yaml"
    assert place.resolve().label == "xl.yaml + active profile big"


def test_a_missing_file_stops_the_launch(place: Place) -> None:
    text = place.problems(file="nowhere.yaml")
    assert "nowhere.yaml does not exist" in text
    assert "--config-file names it" in text


def test_a_missing_profile_is_guessed(place: Place) -> None:
    place.profile("bigmodel", "seed: 1\n")
    with pytest.raises(XlError, match="did you mean bigmodel"):
        place.resolve(profile="bigmodle")
    with pytest.raises(XlError, match="did you mean zero3-offload"):
        place.resolve({"preset": "zero3-ofload"})
    place.profile("gone", "", active=True)
    (place.home / "profiles/gone.yaml").unlink()
    with pytest.raises(XlError, match="xl config use asks for it"):
        place.resolve()


def test_a_profile_and_a_file_together_are_refused(place: Place) -> None:
    place.write("a.yaml", "seed: 1\n")
    with pytest.raises(XlError, match="a profile and a file are both named"):
        place.resolve(profile="ddp", file="a.yaml")


def test_variables_name_a_profile_or_a_file(place: Place) -> None:
    place.write("a.yaml", "seed: 1\n")
    assert place.resolve(XL_CONFIG_FILE="a.yaml").label == "a.yaml"
    assert place.resolve(XL_PROFILE="fsdp").profile.backend == "fsdp"
    assert place.resolve(profile="ddp", XL_PROFILE="fsdp").profile.backend == "ddp"


def test_flags_win_over_keys_of_a_section(place: Place) -> None:
    place.write("a.yaml", "backend: deepspeed\ndeepspeed:\n  zero_stage: 3\n  gradient_clipping: 1.0\n")
    resolved = place.resolve({"deepspeed.zero_stage": 1}, file="a.yaml")
    assert resolved.profile.deepspeed.zero_stage == 1
    assert resolved.profile.deepspeed.gradient_clipping == 1.0
    assert resolved.values["deepspeed.zero_stage"].losers[0].origin.place == "a.yaml:3"


def test_sections_of_several_files_merge_by_key(place: Place) -> None:
    place.write("a.yaml", "fsdp: {offload_params: true}\nenv: {A: '1', B: '2'}\n")
    place.write(
        "xl.yaml",
        "fsdp: {fsdp_offload_params: false, activation_checkpointing: true}\nenv: {B: '3', C: '4'}\n",
    )
    profile = place.resolve(file="a.yaml").profile
    assert (profile.fsdp.offload_params, profile.fsdp.activation_checkpointing) == (True, True)
    assert profile.env == {"A": "1", "B": "2", "C": "4"}


def test_null_asks_for_the_default_past_lower_sources(place: Place) -> None:
    place.write("a.yaml", "num_processes: null\nmixed_precision: null\nfsdp: null\nenv: null\n")
    place.write(
        "xl.yaml", "num_processes: 4\nmixed_precision: bf16\nfsdp: {offload_params: true}\nenv: {A: '1'}\n"
    )
    resolved = place.resolve(file="a.yaml")
    assert resolved.profile.num_processes is None
    assert resolved.profile.mixed_precision == "no"
    assert resolved.profile.fsdp.offload_params is False
    assert resolved.profile.env == {}
    assert resolved.values["num_processes"].origin.place == "a.yaml:1"
    assert place.resolve({"env.A": None}).profile.env == {}


def test_unset_null_and_no_differ(place: Place) -> None:
    place.write("xl.yaml", "mixed_precision: fp16\n")
    place.write("no.yaml", "mixed_precision: no\n")
    place.write("null.yaml", "mixed_precision: null\n")
    place.write("unset.yaml", "seed: 1\n")
    origins = {
        name: place.resolve(file=f"{name}.yaml").values["mixed_precision"] for name in ("no", "null", "unset")
    }
    assert {name: (it.value, it.origin.place) for name, it in origins.items()} == {
        "no": ("no", "no.yaml:1"),
        "null": ("no", "null.yaml:1"),
        "unset": ("fp16", "xl.yaml:1"),
    }


def test_every_problem_is_reported_at_once(place: Place) -> None:
    place.write("a.yaml", "num_proceses: 2\nseed: '8'\nmixed_precision: bf61\nfsdp:\n  ofload_params: true\n")
    place.write("xl.yaml", "debug: 3\n")
    text = place.problems(file="a.yaml", XL_NUM_MACHNES="2", XL_MAX_RESTARTS="many")
    for expected in (
        "unknown setting num_proceses",
        "did you mean num_processes?",
        "a.yaml:2 sets it",
        "write 8 without quotes",
        "a.yaml:3 sets it",
        "write bf16",
        "did you mean fsdp.offload_params?",
        "xl.yaml:1 sets it",
        "did you mean XL_NUM_MACHINES?",
        "XL_MAX_RESTARTS sets it",
    ):
        assert expected in text


def test_a_file_of_a_later_version_runs_with_a_warning(place: Place) -> None:
    place.write("a.yaml", "schema_version: 99\nteleport: true\nsed: 3\nseed: 3\n")
    resolved = place.resolve(file="a.yaml")
    assert resolved.profile.seed == 3
    assert "a.yaml:1: written for a newer xl" in resolved.warnings[0]
    assert "a.yaml:2: this xl does not know teleport" in resolved.warnings[1]
    assert "did you mean seed?" in resolved.warnings[2]


def test_a_wrong_version_is_an_error(place: Place) -> None:
    place.write("a.yaml", "schema_version: new\n")
    assert "schema_version: new is not a version" in place.problems(file="a.yaml")


def test_a_preset_that_loses_says_so(place: Place) -> None:
    place.profile("mine", "backend: ddp\n", active=True)
    resolved = place.resolve({"preset": "fsdp"})
    assert resolved.profile.backend == "ddp"
    assert "preset fsdp (--preset) asks for backend=fsdp" in resolved.warnings[0]
    assert place.resolve(profile="fsdp").profile.backend == "fsdp"


def test_a_preset_named_in_a_file_is_its_base(place: Place) -> None:
    place.write("a.yaml", "preset: zero3-offload\ndeepspeed: {offload_param_device: none}\n")
    resolved = place.resolve(file="a.yaml")
    assert resolved.profile.deepspeed.zero_stage == 3
    assert resolved.profile.deepspeed.offload_param_device == "none"
    assert resolved.warnings == ()


def test_json_files_work(place: Place) -> None:
    place.write("a.json", '{\n\t"num_processes": 2,\n\t"fsdp": {"version": 2}\n}')
    resolved = place.resolve(file="a.json")
    assert resolved.values["num_processes"].origin.place == "a.json:2"


def test_a_total_overrules_a_lower_number_for_each_machine(place: Place) -> None:
    place.write("a.yaml", "num_processes_per_machine: 4\nnum_machines: 2\n")
    by_total = place.resolve({"num_processes": 6}, file="a.yaml")
    assert by_total.profile.num_processes == 6
    assert by_total.profile.num_processes_per_machine is None
    assert by_total.values["num_processes_per_machine"].losers[0].value == 4
    by_each = place.resolve({"num_processes_per_machine": 2}, XL_NUM_PROCESSES="9")
    assert (by_each.profile.num_processes, by_each.profile.num_processes_per_machine) == (None, 2)


def test_paths_of_a_project_file_count_from_its_folder(place: Place) -> None:
    place.write("xl.yaml", "log_dir: logs\n")
    deep = place.cwd / "a/b"
    deep.mkdir(parents=True)
    resolved = resolve({}, place.environ, deep)
    assert resolved.profile.log_dir == str(place.cwd / "logs")
    assert place.resolve().profile.log_dir == "logs"


def test_other_tools_settings_are_never_read_unasked(place: Place, tmp_path: Path) -> None:
    default = tmp_path / "hf/accelerate/default_config.yaml"
    default.parent.mkdir(parents=True)
    default.write_text("mixed_precision: bf16\n")
    resolved = place.resolve(HF_HOME=str(tmp_path / "hf"), ACCELERATE_MIXED_PRECISION="fp16")
    assert resolved.profile.mixed_precision == "no"


# --- for every setting: flag or variable, and file, each set or not --------------------------------

TEXTS = {
    "tee": ("0", "3"),
    "gpu_ids": ("0", "1,2"),
    "show_ranks": ("0", "all"),
    "rdzv_conf": ("a=1", "b=2"),
    "preset": ("cpu", "ddp"),
}


def two_values(key: Key) -> tuple[object, object]:
    """Two different values, one of them false, zero, `no` or empty where the setting has such a one."""
    if key.kind == "bool":
        return False, True
    if key.kind == "choice":
        return key.choices[0], key.choices[-1]
    if key.kind == "list":
        return (), ("one",)
    if key.kind == "text":
        return TEXTS.get(key.name, ("first", "second"))
    low = int(key.minimum or 0)
    return (low, low + 1) if key.kind == "whole" else (float(low), low + 1.0)


PLAIN = [key for key in all_keys().values() if key.kind != "mapping"]


@pytest.mark.parametrize("key", PLAIN, ids=lambda key: key.name)
def test_flag_and_file_set_or_not(place: Place, key: Key) -> None:
    base: dict[str, object] = {"num_machines": 8} if key.name == "machine_rank" else {}
    first, second = two_values(key)
    for flag, in_file in ((first, second), (second, first)):
        write_profile(place.cwd / "a.yaml", {key.name: in_file})
        by_flag, by_file = {**base, key.name: flag}, dict(base)
        found = {
            "both": place.resolve(by_flag, file="a.yaml"),
            "flag": place.resolve(by_flag),
            "file": place.resolve(by_file, file="a.yaml"),
            "neither": place.resolve(by_file),
        }
        values = {which: resolved.values[key.name] for which, resolved in found.items()}
        default = base.get(key.name, key.default)
        assert {which: value.value for which, value in values.items()} == {
            "both": flag,
            "flag": flag,
            "file": in_file,
            "neither": default,
        }
        assert values["both"].origin == Origin("flag", key.flag)
        line = 3 if "." in key.name else 2
        assert values["file"].origin == Origin("file", f"a.yaml:{line}")


def as_text(value: object) -> str:
    return ",".join(cast("tuple[str, ...]", value)) if isinstance(value, tuple) else str(value)


@pytest.mark.parametrize("key", PLAIN, ids=lambda key: key.name)
def test_variable_and_file_set_or_not(place: Place, key: Key) -> None:
    base: dict[str, object] = {"num_machines": 8} if key.name == "machine_rank" else {}
    first, second = two_values(key)
    for typed, in_file in ((first, second), (second, first)):
        if typed == ():
            continue  # an empty variable is refused, see test_variables.py
        write_profile(place.cwd / "a.yaml", {key.name: in_file})
        both = resolve(base, place.environ | {key.variable: as_text(typed)}, place.cwd, None, "a.yaml")
        assert both.values[key.name].value == typed
        assert both.values[key.name].origin == Origin("variable", key.variable)
        assert both.values[key.name].losers[0].value == in_file


@pytest.mark.parametrize(
    ("file", "way_out"),
    [
        (None, "--profile cpu ranks above both"),
        ("train.yaml", "pass --profile cpu and name no other file"),
    ],
)
def test_a_preset_that_loses_is_told_with_the_way_out(place: Place, file: str | None, way_out: str) -> None:
    """A preset ranks below every file, wherever it is named; what is advised does what it says."""
    place.profile("mine", "cpu: false\n", active=True)
    place.write("train.yaml", "cpu: false\n")
    resolved = place.resolve({"preset": "cpu"}, file=file)
    (warning,) = resolved.warnings
    assert warning.startswith("preset cpu (--preset) asks for cpu=true, but ")
    assert warning.endswith(f" says false and ranks higher; {way_out}")
    assert place.resolve(profile="cpu").values["cpu"].value is True


def test_a_variable_that_overrules_a_preset_is_to_be_unset(place: Place) -> None:
    (warning,) = place.resolve({"preset": "cpu"}, XL_CPU="false").warnings
    assert warning.endswith("XL_CPU says false and ranks higher; unset XL_CPU to have the preset's")
