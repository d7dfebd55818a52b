"""The sub-commands of `xl config`, each through the command line."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest
import yaml

from xl.configs.migrations import SCHEMA_VERSION

from ..conftest import Cli


def test_show_without_any_settings(cli: Cli) -> None:
    outcome = cli.run("config", "show")
    assert outcome.code == 0
    assert "No profile is active" in outcome.out


def test_show_prints_files_as_they_are(cli: Cli) -> None:
    text = "# mine\nseed:   1\n"
    path = cli.profile("big", text, active=True)
    project = cli.write("xl.yaml", "debug: true  # here\n")
    outcome = cli.run("config", "show")
    assert f"# active profile big: {path}\n{text}" in outcome.out
    assert f"# project file: {project}\ndebug: true  # here\n" in outcome.out
    assert cli.run("config", "show", "fsdp").out.startswith("# profile fsdp: ")
    assert "did you mean big?" in cli.run("config", "show", "bigg").err


def test_list_marks_the_active_profile(cli: Cli) -> None:
    cli.profile("big", "# for the cluster\nseed: 1\n", active=True)
    cli.profile("small", "seed: 1\n")
    lines = cli.run("config", "list").out.splitlines()
    assert lines[:4] == ["Profiles:", "* big    for the cluster", "  small", "Presets:"]
    assert any(re.fullmatch(r"  zero3 +DeepSpeed, .*", line) for line in lines)


def test_list_fits_80_columns(cli: Cli) -> None:
    cli.profile("big", f"# {'long words ' * 20}\nseed: 1\n", active=True)
    lines = cli.run("config", "list").out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[2].startswith(" " * len("* big  ") + "words long")


def test_use_and_none(cli: Cli) -> None:
    cli.profile("big", "seed: 1\n")
    assert cli.run("config", "use", "big").code == 0
    assert (cli.home / "active").read_text() == "big\n"
    assert "did you mean big?" in cli.run("config", "use", "bg").err
    assert (cli.home / "active").read_text() == "big\n"
    assert cli.run("config", "use", "--none").code == 0
    assert not (cli.home / "active").exists()
    assert cli.run("config", "use", "--none").code == 0
    assert cli.run("config", "use").code == 2
    assert cli.run("config", "use", "big", "--none").code == 2
    assert cli.run("config", "use", "zero3").code == 0


def test_set_makes_and_changes_a_profile(cli: Cli) -> None:
    assert cli.run("config", "set", "seed", "1").code == 2
    outcome = cli.run("config", "set", "--profile", "big", "num-processes", "4", "fsdp.offload_params=true")
    assert outcome.code == 0
    path = cli.home / "profiles/big.yaml"
    expected: dict[str, object] = {
        "schema_version": SCHEMA_VERSION,
        "num_processes": 4,
        "fsdp": {"offload_params": True},
    }
    assert yaml.safe_load(path.read_text()) == expected
    cli.run("config", "use", "big")
    path.write_text("# keep\n" + path.read_text())
    assert cli.run("config", "set", "mixed_precision", "no", "num_processes", "null").code == 0
    assert path.read_text().startswith("# keep\n")
    assert yaml.safe_load(path.read_text()) == {**expected, "mixed_precision": "no", "num_processes": None}


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["num_proceses", "4"], "did you mean num_processes?"),
        (["num_processes", "four"], "num_processes: 'four'"),
        (["seed"], "seed has no value"),
        (["seed="], "or null to ask for the default"),
        (["fsdp", "no"], "fsdp is a section, not a setting"),
        (["machine_rank", "3"], "num_machines is the default"),
        (["preset", "zero9"], "there is no preset zero9"),
    ],
)
def test_set_checks_before_it_writes(cli: Cli, args: list[str], words: str) -> None:
    path = cli.profile("big", "seed: 1\n", active=True)
    outcome = cli.run("config", "set", *args)
    assert outcome.code == 2
    assert words in outcome.err
    assert path.read_text() == "seed: 1\n"


def test_set_says_what_null_and_no_mean(cli: Cli) -> None:
    out = cli.run("config", "set", "--profile", "big", "num_machines", "null", "seed=null", "cpu", "no").out
    assert out.splitlines()[1:] == [
        "  num_machines: null (the default holds, which is: 1)",
        "  seed: null (the default holds, which is: decided from the machine)",
        "  cpu: false",
    ]
    text = cli.run("config", "set", "--help").out
    assert "Not set, null and no are three different things" in text


@pytest.mark.parametrize(
    ("setting", "shown"),
    [("mixed_precision=fp8", "mixed_precision=fp8"), ("preset=zero3", "backend=deepspeed")],
)
def test_what_is_not_launched_yet_is_said_at_once(cli: Cli, setting: str, shown: str) -> None:
    words = f"warning: this version of xl does not launch {shown} yet"
    assert words in cli.run("config", "set", "--profile", "big", setting).err
    cli.run("config", "use", "big")
    path = str(cli.home / "profiles/big.yaml")
    for args in (["validate"], ["validate", path]):
        outcome = cli.run("config", *args)
        assert (outcome.code, words in outcome.err) == (0, True)


def test_show_warns_of_what_a_launch_refuses(cli: Cli) -> None:
    assert "does not launch backend=deepspeed yet" in cli.run("config", "show", "zero3").err
    cli.profile("big", "mixed-precision: fp8\n", active=True)
    assert "does not launch mixed_precision=fp8 yet" in cli.run("config", "show").err
    cli.profile("big", "a: [\n", active=True)
    outcome = cli.run("config", "show")
    assert (outcome.code, "a: [" in outcome.out, "validate" in outcome.err) == (0, True, True)
    assert cli.run("config", "show", "ddp").err == ""


def test_set_does_not_touch_a_preset(cli: Cli) -> None:
    cli.run("config", "use", "zero3")
    outcome = cli.run("config", "set", "seed", "1")
    assert outcome.code == 2
    assert "xl config set --profile my-zero3 preset zero3 seed 1 makes a profile" in outcome.err
    assert "it is a preset that xl brings" in outcome.err


def test_set_says_when_the_active_profile_is_gone(cli: Cli) -> None:
    cli.profile("big", "seed: 1\n", active=True).unlink()
    outcome = cli.run("config", "set", "seed", "2")
    assert outcome.code == 2
    assert "there is no file of it in" in outcome.err
    assert cli.run("config", "set", "--profile", "big", "seed", "2").code == 0
    assert cli.run("config", "set", "seed", "3").code == 0


def test_set_takes_negative_looking_values(cli: Cli) -> None:
    outcome = cli.run("config", "set", "--profile", "big", "seed", "-1")
    assert "seed: -1 is not a whole number from 0 to" in outcome.err


def test_explain_names_winner_and_losers(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.write("train.yaml", "num_processes: 3\n")
    cli.write("xl.yaml", "num_processes: 4\n")
    cli.profile("big", "num_processes: 5\n", active=True)
    monkeypatch.setenv("XL_NUM_PROCESSES", "2")
    outcome = cli.run(
        "config", "explain", "num_processes", "--num_processes", "1", "--config-file", "train.yaml"
    )
    assert outcome.out.splitlines() == [
        "num_processes = 1  (--num-processes)",
        "    over 2  (XL_NUM_PROCESSES)",
        "    over 3  (train.yaml:1)",
        "    over 4  (xl.yaml:1)",
        "    over decided from the machine  (default)",
        "Settings from: train.yaml + xl.yaml",
    ]


def test_explain_shows_what_is_set_a_section_or_all(cli: Cli) -> None:
    assert "Nobody sets anything" in cli.run("config", "explain").out
    cli.write("xl.yaml", "seed: 1\nfsdp: {version: 1}\n")
    assert [
        line.split(" ")[0] for line in cli.run("config", "explain").out.splitlines() if line[0] != " "
    ] == [
        "fsdp.version",
        "seed",
        "Settings",
    ]
    section = cli.run("config", "explain", "fsdp").out
    assert [line for line in section.splitlines() if line.startswith("fsdp.")] == [
        "fsdp.version = 1  (xl.yaml:2)"
    ]
    assert "15 settings of fsdp are not set" in section
    assert cli.run("config", "explain", "--all", "fsdp").out.count("\nfsdp.") == 15
    assert "backend = ddp  (default)" in cli.run("config", "explain", "--all").out
    assert "did you mean seed?" in cli.run("config", "explain", "seeed").err


def test_validate_reports_every_problem_of_every_file(cli: Cli) -> None:
    cli.write("a.yaml", "sed: 1\nmachine_rank: x\n")
    cli.write("b.yaml", "seed: 1\n")
    cli.write("c.yaml", "a: [\n")
    cli.write("d.yaml", "machine_rank: 3\n")
    outcome = cli.run("config", "validate", "a.yaml", "b.yaml", "c.yaml", "d.yaml", "none.yaml")
    assert outcome.code == 2
    assert outcome.out == "b.yaml: nothing is wrong\n"
    for words in (
        "a.yaml:1 names it",
        "a.yaml:2 sets it",
        "c.yaml:2 is not YAML",
        "d.yaml:1 sets",
        "none.yaml does",
    ):
        assert words in outcome.err


def test_validate_knows_a_deepspeed_config(cli: Cli) -> None:
    cli.write("my ds.json", '{"train_batch_size": 8}')
    outcome = cli.run("config", "validate", "my ds.json")
    assert outcome.code == 2
    assert "my ds.json is a DeepSpeed config" in outcome.err
    assert "fix:   xl config import 'my ds.json'" in outcome.err


def test_validate_without_files(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli.run("config", "validate").out == "no settings file is in use\n"
    cli.write("xl.yaml", "seed: 1\n")
    assert cli.run("config", "validate").out == "xl.yaml: nothing is wrong\n"
    monkeypatch.setenv("XL_SEDE", "1")
    assert "did you mean XL_SEED?" in cli.run("config", "validate").err


def test_the_schema_accepts_what_xl_accepts(cli: Cli) -> None:
    schema: Any = json.loads(cli.run("config", "schema").out)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator: Any = jsonschema.Draft202012Validator(schema)
    for good in ({"seed": None}, {"fsdp": {"version": 2}}, {"cpu": None, "fsdp": None, "env": {"A": "1"}}):
        validator.validate(good)
    for bad in ({"sed": 1}, {"seed": "1"}, {"fsdp": {"versoin": 2}}, {"backend": "dpp"}):
        assert not validator.is_valid(bad)
    assert '"flag"' not in json.dumps(schema)


def test_path(cli: Cli) -> None:
    path = cli.profile("big", "seed: 1\n", active=True)
    project = cli.write("xl.yaml", "seed: 1\n")
    out = cli.run("config", "path").out
    assert out.splitlines() == [
        f"config folder:  {cli.home}",
        f"active profile: {path}",
        f"project file:   {project}",
    ]


def test_import_of_an_accelerate_file(cli: Cli) -> None:
    cli.write("acc.yaml", "distributed_type: FSDP\nmixed_precision: no\nfsdp_config: {fsdp_version: 2}\n")
    outcome = cli.run("config", "import", "acc.yaml", "--name", "mine")
    assert outcome.code == 0
    assert "mapped   acc.yaml:1  distributed_type -> backend: fsdp\n" in outcome.out
    assert cli.run("config", "validate", str(cli.home / "profiles/mine.yaml")).code == 0
    assert "backend = fsdp" in cli.run("config", "explain", "backend", "--profile", "mine").out
    again = cli.run("config", "import", "acc.yaml", "--name", "mine")
    assert again.code == 2
    assert cli.run("config", "import", "acc.yaml", "--name", "mine", "--force").code == 0


def test_import_leaves_out_gpus_where_the_cpu_trains(cli: Cli) -> None:
    """Accelerate writes `gpu_ids: all` in any case; a launch refuses it beside cpu."""
    cli.write("acc.yaml", "distributed_type: MULTI_CPU\ngpu_ids: all\nuse_cpu: true\nnum_processes: 2\n")
    outcome = cli.run("config", "import", "acc.yaml")
    assert outcome.code == 0
    assert "default  acc.yaml:2  gpu_ids: all is left out: line 3 asks for the CPU" in outcome.out
    assert "does not launch" not in outcome.out
    assert cli.run("config", "validate", str(cli.home / "profiles/acc.yaml")).code == 0
    assert cli.run("config", "explain", "--config-file", "acc.yaml").code == 0


def test_import_reports_each_key_once(cli: Cli) -> None:
    cli.write("acc.yaml", "distributed_type: MULTI_GPU\nuse_cpu: false\ngpu_ids: all\nnum_processes: 2\n")
    assert cli.run("config", "import", "acc.yaml").out.splitlines()[:-1] == [
        "mapped   acc.yaml:1  distributed_type -> backend: ddp, cpu: false",
        "mapped   acc.yaml:2  use_cpu -> cpu: false",
        "mapped   acc.yaml:3  gpu_ids: all",
        "mapped   acc.yaml:4  num_processes: 2",
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("distributed_type: MULTI_GPU\nuse_cpu: true\n", "two values for cpu: false and true"),
        ("use_cpu: true\nmachine_rank: 3\n", "machine_rank=3 does not fit num_machines=1"),
        (
            "distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: none.json}\n",
            "none.json does not exist",
        ),
    ],
)
def test_import_refuses_what_a_launch_would(cli: Cli, text: str, words: str) -> None:
    cli.write("acc.yaml", text)
    outcome = cli.run("config", "import", "acc.yaml")
    assert outcome.code == 2
    assert words in outcome.err
    assert "acc.yaml:2" in outcome.err or "line 2" in outcome.err
    assert not (cli.home / "profiles").exists()


@pytest.mark.parametrize("beside", [True, False])
def test_an_imported_profile_finds_its_deepspeed_file_from_anywhere(cli: Cli, beside: bool) -> None:
    text = "distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: ds.json}\n"
    cli.write("other/acc.yaml", text)
    ds = cli.write("other/ds.json" if beside else "ds.json", '{"zero_optimization": {"stage": 1}}')
    outcome = cli.run("config", "import", "other/acc.yaml")
    assert outcome.code == 0
    assert "note: this version of xl does not launch backend=deepspeed yet" in outcome.out
    written = yaml.safe_load((cli.home / "profiles/acc.yaml").read_text())
    assert written["deepspeed"]["config_file"] == str(ds)


def test_import_writes_nothing_when_a_key_is_refused(cli: Cli) -> None:
    cli.write(
        "acc.yaml", "distributed_type: MULTI_GPU\nmpirun_config: {mpirun_hostfile: f}\nfp8_config: {a: 1}\n"
    )
    outcome = cli.run("config", "import", "acc.yaml")
    assert outcome.code == 2
    assert "refused  acc.yaml:2" in outcome.out
    assert "mpirun_config" in outcome.err
    assert "fp8_config" in outcome.err
    assert not (cli.home / "profiles").exists()


def test_import_of_a_deepspeed_file_names_it(cli: Cli) -> None:
    path = cli.write("ds.json", '{"zero_optimization": {"stage": 3}, "optimizer": {"type": "AdamW"}}')
    outcome = cli.run("config", "import", "ds.json")
    assert outcome.code == 0
    assert "zero_optimization.stage -> read as deepspeed.zero_stage" in outcome.out
    assert "optimizer.type -> left to DeepSpeed" in outcome.out
    written = yaml.safe_load((cli.home / "profiles/ds.yaml").read_text())
    assert written["deepspeed"] == {"config_file": str(path)}
    assert "deepspeed.zero_stage = 3" in cli.run("config", "explain", "deepspeed", "--profile", "ds").out


def test_import_of_neither(cli: Cli) -> None:
    cli.write("a.yaml", "seed: 1\n")
    assert "neither an Accelerate nor a DeepSpeed file" in cli.run("config", "import", "a.yaml").err


def test_trust(cli: Cli) -> None:
    assert "there is no xl.yaml" in cli.run("config", "trust").err
    cli.write("xl.yaml", "hosts: [a, b]\nenv: {LD_PRELOAD: x.so, A: '1'}\n")
    assert cli.run("config", "validate").code == 2
    outcome = cli.run("config", "trust")
    assert "  hosts: ['a', 'b']\n  env.LD_PRELOAD: x.so\n" in outcome.out
    assert "env.A" not in outcome.out
    assert cli.run("config", "validate").code == 0


def test_help_lists_the_subcommands(cli: Cli) -> None:
    out = cli.run("config", "--help").out
    names = "show list use set unset explain validate schema path import trust"
    for name in names.split():
        assert f"\n  {name} " in out
