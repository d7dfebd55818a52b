"""Changing profiles by `set`, `unset` and `import`: what is refused, and that the fixes can be typed."""

from __future__ import annotations

import pytest

from ..conftest import Cli


@pytest.mark.parametrize("line", ["set --profile cpu seed 1", "unset --profile cpu seed"])
def test_a_profile_does_not_hide_a_preset(cli: Cli, line: str) -> None:
    command = line.split()
    outcome = cli.run("config", *command)
    assert outcome.code == 2
    assert "a profile of that name would hide it" in outcome.err
    fix = outcome.err.partition("fix:   ")[2].partition(" makes")[0]
    assert not (cli.home / "profiles").exists()
    assert cli.run(*fix.split()[1:]).code == 0
    assert "preset: cpu" in (cli.home / "profiles/my-cpu.yaml").read_text()
    cli.profile("cpu", "seed: 2\n")  # one that is there already
    assert cli.run("config", *command).code == 0


def test_an_imported_profile_does_not_hide_a_preset(cli: Cli) -> None:
    cli.write("ddp.yaml", "distributed_type: MULTI_GPU\n")
    outcome = cli.run("config", "import", "ddp.yaml")
    assert (outcome.code, "xl brings a preset ddp" in outcome.err) == (2, True)
    assert cli.run("config", "import", "ddp.yaml", "--name", "mine").code == 0
    outcome = cli.run("config", "--yes", "--cpu", "--name", "ddp")
    assert (outcome.code, "xl brings a preset of that name" in outcome.err) == (2, True)


def test_unset_takes_the_line_out(cli: Cli) -> None:
    text = "# mine\nseed: 1  # lucky\n# both\nfsdp:\n  version: 2\n  offload_params: true\ncpu: true\n"
    path = cli.profile("big", text, active=True)
    outcome = cli.run("config", "unset", "seed", "fsdp.offload-params")
    lines = [f"{path}:", "  seed: not set any more", "  fsdp.offload_params: not set any more"]
    assert (outcome.code, outcome.out.splitlines()) == (0, lines)
    assert path.read_text() == "# mine\n# both\nfsdp:\n  version: 2\ncpu: true\n"
    assert cli.run("config", "unset", "fsdp").code == 0
    assert path.read_text() == "# mine\n# both\ncpu: true\n"


def test_unset_of_what_is_not_there(cli: Cli) -> None:
    path = cli.profile("big", "seed: 1\nsede: 2\nzzz: 3\n", active=True)
    outcome = cli.run("config", "unset", "cpu", "nope")
    assert outcome.code == 2
    assert "cpu is not set in" in outcome.err
    assert "unknown setting nope" in outcome.err
    assert path.read_text() == "seed: 1\nsede: 2\nzzz: 3\n"
    outcome = cli.run("config", "unset", "sede")  # the way to repair a file, one mistake at a time
    assert (outcome.code, path.read_text()) == (0, "seed: 1\nzzz: 3\n")
    assert "warning: unknown setting zzz" in outcome.err
    assert cli.run("config", "unset", "zzz").err == ""


def test_unset_checks_before_it_writes(cli: Cli) -> None:
    path = cli.profile("big", "num_machines: 2\nmachine_rank: 1\n", active=True)
    outcome = cli.run("config", "unset", "num_machines")
    assert (outcome.code, "machine_rank=1 does not fit" in outcome.err) == (2, True)
    assert "num_machines: 2" in path.read_text()


@pytest.mark.parametrize(
    ("args", "fix"),
    [
        (["config", "explain", "nope"], "xl config explain --all lists every setting"),
        (["config", "set", "--profile", "big", "nope", "1"], "xl config explain --all lists every setting"),
        (
            ["config", "set", "--profile", "big", "seed", "x"],
            f"xl config set seed takes a whole number from 0 to {2**64 - 1}, or null to have xl decide",
        ),
        (
            ["config", "set", "--profile", "big", "mixed_precision", "fp61"],
            "xl config set mixed_precision fp16",
        ),
        (["config", "explain", "--mixed-precision", "fp61"], "pass --mixed-precision fp16"),
        (
            ["config", "explain", "--max-restarts", "x"],
            "pass --max-restarts with a whole number of at least 0, or null for the default, 0",
        ),
        (["config", "set", "--profile", "ünï x", "seed", "1"], "choose another name, such as uni-x"),
        (
            ["config", "set", "--profile", "a.yaml", "seed", "1"],
            "say a; xl launch takes a file by --config-file a.yaml",
        ),
        (["config", "use", "ds.json"], "xl config import ds.json makes a profile"),
        (["launch", "--profile", "ds.json", "x"], "xl config import ds.json makes a profile"),
    ],
)
def test_a_fix_is_what_to_type_there(cli: Cli, args: list[str], fix: str) -> None:
    outcome = cli.run(*args)
    assert outcome.code == 2
    assert fix in outcome.err.partition("fix:   ")[2]


@pytest.mark.parametrize(
    "text", ['{"train_batch_size": 8}', '{"bf16": {"enabled": true}}', '{"optimizer": {"type": "Adam"}}']
)
def test_a_deepspeed_file_is_imported(cli: Cli, text: str) -> None:
    cli.write("ds.json", text)
    cli.write("train.py", "raise AssertionError")
    for args in (["--config-file", "ds.json", "train.py"], ["ds.json"]):
        outcome = cli.run("launch", *args)
        assert outcome.code == 2
        assert "fix:   xl config import ds.json makes a profile that names it" in outcome.err
    assert cli.run("config", "import", "ds.json").code == 0


def test_an_accelerate_file_as_the_script(cli: Cli) -> None:
    cli.write("acc.yaml", "distributed_type: MULTI_GPU\n")
    fix = cli.run("launch", "acc.yaml").err.partition("fix:   ")[2]
    assert "xl launch --config-file acc.yaml SCRIPT takes it as it is" in fix
    assert "xl config import acc.yaml makes a profile of it" in fix
