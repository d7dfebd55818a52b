"""The flags of `xl launch`: every line people type for Accelerate, and a script's own arguments untouched."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

import click
import pytest

from xl.cli.launch_options import (
    GROUPS,
    LaunchCommand,
    SettingsCommand,
    collect_flags,
    launch_options,
    setting_options,
)
from xl.cli.main import main, xl
from xl.configs.errors import XlError
from xl.configs.keys import Key, all_keys
from xl.configs.layers import Flags
from xl.configs.unbuilt import is_unbuilt


@dataclass(frozen=True, slots=True)
class Parsed:
    flags: Flags
    script: str
    script_args: tuple[str, ...]
    own: dict[str, object]


@click.command("launch", cls=LaunchCommand)
@launch_options
@click.pass_context
def launch(ctx: click.Context, script: str, script_args: tuple[str, ...], **own: object) -> Parsed:
    return Parsed(collect_flags(ctx), script, script_args, own)


def parse(*args: str) -> Parsed:
    parsed: object = launch.main(list(args), prog_name="xl launch", standalone_mode=False)
    assert isinstance(parsed, Parsed)
    return parsed


def failure(*args: str) -> str:
    with pytest.raises(XlError) as caught:
        parse(*args)
    assert caught.value.exit_code == 2
    return str(caught.value)


# Every launch line of the two documents that describe the system, as they stand there.
LINES: list[tuple[str, dict[str, object]]] = [
    (
        "accelerate launch --num_processes=8 --mixed_precision='bf16' train.py",
        {"num_processes": 8, "mixed_precision": "bf16"},
    ),
    ("accelerate launch train.py", {}),
    ("accelerate launch --num_processes 4 train.py", {"num_processes": 4}),
    ("accelerate launch --mixed_precision fp16 train.py", {"mixed_precision": "fp16"}),
    (
        "accelerate launch --use_deepspeed --zero_stage 2 train.py",
        {"backend": "deepspeed", "deepspeed.zero_stage": 2},
    ),
    (
        "accelerate launch --use_deepspeed --deepspeed_config_file ds_config.json train.py",
        {"backend": "deepspeed", "deepspeed.config_file": "ds_config.json"},
    ),
    (
        "accelerate launch --use_fsdp --fsdp_auto_wrap_policy TRANSFORMER_BASED train.py",
        {"backend": "fsdp", "fsdp.auto_wrap_policy": "TRANSFORMER_BASED_WRAP"},
    ),
    (
        "accelerate launch --main_process_ip 192.168.1.1 --main_process_port 29500 \\\n"
        "--num_processes 4 --num_machines 2 --machine_rank 1 train.py",
        {
            "main_process_ip": "192.168.1.1",
            "main_process_port": 29500,
            "num_processes": 4,
            "num_machines": 2,
            "machine_rank": 1,
        },
    ),
    (
        "accelerate launch --num_processes 4 --mixed_precision bf16 train.py",
        {"num_processes": 4, "mixed_precision": "bf16"},
    ),
]


@pytest.mark.parametrize(("line", "flags"), LINES, ids=[line for line, _ in LINES])
@pytest.mark.parametrize("dashes", [False, True], ids=["underscores", "dashes"])
def test_lines_written_for_accelerate(line: str, flags: dict[str, object], dashes: bool) -> None:
    words = shlex.split(line.replace("\\\n", ""))[2:]
    if dashes:
        words = [word.replace("_", "-") if word.startswith("--") else word for word in words]
    parsed = parse(*words)
    assert parsed.flags == flags
    assert parsed.script == "train.py"
    assert parsed.script_args == ()


@pytest.mark.parametrize("line", ["accelerate config", "accelerate config show", "accelerate env"])
def test_the_other_lines_name_commands(line: str) -> None:
    names = line.split()[1:]
    assert names[0] in xl.list_commands(click.Context(xl))
    if len(names) == 2:
        group = xl.get_command(click.Context(xl), names[0])
        assert isinstance(group, click.Group)
        assert names[1] in group.list_commands(click.Context(group))


# Accelerate's own flags of the groups that xl has, each with a value where it takes one.
ACCELERATE = """
--config_file=f --quiet -q -m --module --no_python --debug --cpu --multi_gpu --mixed_precision=fp16
--num_processes=2 --num_machines=2 --num_cpu_threads_per_process=2 --enable_cpu_affinity
--dynamo_backend=inductor --dynamo_mode=max-autotune --dynamo_use_fullgraph --dynamo_use_dynamic
--dynamo_use_regional_compilation --use_deepspeed --use_fsdp --use_parallelism_config --gpu_ids=0,1
--same_network --machine_rank=1 --main_process_ip=h --main_process_port=0 -t=3 --tee=3 --log_dir=d
--role=trainer --rdzv_backend=c10d --rdzv_conf=a=1 --max_restarts=1 --monitor_interval=5
--deepspeed_config_file=f --zero_stage=3 --offload_optimizer_device=cpu --offload_param_device=none
--offload_optimizer_nvme_path=p --offload_param_nvme_path=p --gradient_accumulation_steps=4
--gradient_clipping=1.0 --zero3_init_flag=true --zero3_save_16bit_model=false --deepspeed_hostfile=f
--deepspeed_exclusion_filter=x --deepspeed_inclusion_filter=x --deepspeed_multinode_launcher=pdsh
--deepspeed_moe_layer_cls_names=A,B --fsdp_version=2 --fsdp_offload_params=true
--fsdp_min_num_params=100000000 --fsdp_sharding_strategy=FULL_SHARD --fsdp_reshard_after_forward=true
--fsdp_auto_wrap_policy=SIZE_BASED_WRAP --fsdp_transformer_layer_cls_to_wrap=A
--fsdp_backward_prefetch=BACKWARD_PRE --fsdp_state_dict_type=SHARDED_STATE_DICT
--fsdp_forward_prefetch=false --fsdp_use_orig_params=true --fsdp_cpu_ram_efficient_loading=true
--fsdp_sync_module_states=true --fsdp_activation_checkpointing=false
--fsdp_activation_checkpointing_offload=false --parallelism_config_dp_replicate_size=1
--parallelism_config_dp_shard_size=2 --parallelism_config_tp_size=1 --parallelism_config_cp_size=1
--parallelism_config_cp_backend=torch --parallelism_config_cp_comm_strategy=alltoall
--parallelism_config_sp_size=1 --parallelism_config_sp_backend=deepspeed
--parallelism_config_sp_seq_length=8 --parallelism_config_sp_seq_length_is_variable=true
--parallelism_config_sp_attn_implementation=sdpa
"""


@pytest.mark.parametrize("flag", ACCELERATE.split())
def test_accelerates_flags_parse(flag: str) -> None:
    name, equals, value = flag.partition("=")
    words = [name, value] if equals else [name]
    for spelling in (name, name[:2] + name[2:].replace("_", "-")):
        assert parse(spelling, *words[1:], "train.py").script == "train.py"


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--tpu", "TPU"),
        ("--tpu_cluster", "TPU"),
        ("--no_tpu_cluster", "TPU"),
        ("--tpu_use_sudo", "TPU"),
        ("--vm=x", "TPU"),
        ("--main_training_function=f", "TPU"),
        ("--downcast_bf16", "TPU"),
        ("--use_megatron_lm", "--use-fsdp"),
        ("--megatron_lm_tp_degree=2", "--use-fsdp"),
        ("--fp8_backend=te", "--mixed-precision bf16"),
        ("--fp8_format=E4M3", "--mixed-precision bf16"),
        ("--aws_access_key_id=x", "SageMaker"),
        ("--mpirun_hostfile=f", "without MPI"),
    ],
)
def test_what_xl_does_not_do_is_refused(flag: str, words: str) -> None:
    text = failure(flag, "train.py")
    assert "is not supported" in text
    assert words in text


def test_a_scripts_arguments_are_its_own() -> None:
    own = ["--help", "--num-processes", "3", "--", "-m", "--cpu", "--seed=1", "a b", "", "--nproc"]
    parsed = parse("--seed", "2", "train.py", *own)
    assert parsed.script_args == tuple(own)
    assert parsed.flags == {"seed": 2}
    module = parse("-m", "pkg.train", *own)
    assert (module.script, module.script_args, module.own["module"]) == ("pkg.train", tuple(own), True)
    assert parse("--cpu", "--", "-odd.py", "--x").script == "-odd.py"
    assert parse("train.py", "--", "--x").script_args == ("--", "--x")


def test_what_was_not_typed_is_not_there() -> None:
    parsed = parse("train.py")
    assert parsed.flags == {}
    assert parsed.own == {
        "module": False,
        "no_python": False,
        "dry_run": False,
        "quiet": False,
        "explain_split": False,
        "profile": None,
        "config_file": None,
    }


@pytest.mark.parametrize(
    ("words", "key", "value", "place"),
    [
        (["--no-cpu"], "cpu", False, "--no-cpu"),
        (["--no_same_network"], "same_network", False, "--no-same-network"),
        (["--main-process-port", "0"], "main_process_port", 0, "--main-process-port"),
        (["--mixed-precision", "no"], "mixed_precision", "no", "--mixed-precision"),
        (["--fsdp-offload-params", "false"], "fsdp.offload_params", False, "--fsdp-offload-params"),
        (["--max-restarts", "0"], "max_restarts", 0, "--max-restarts"),
        (["--seed", "null"], "seed", None, "--seed"),
        (["--use-fsdp"], "backend", "fsdp", "--use-fsdp"),
        (["-t", "3"], "tee", "3", "--tee"),
        (["--env", "A=1", "--env", "B=x=y"], "env", {"A": "1", "B": "x=y"}, "--env"),
    ],
)
def test_false_zero_and_no_are_values(words: list[str], key: str, value: object, place: str) -> None:
    flags = parse(*words, "train.py").flags
    assert flags == {key: value}
    assert flags.places == {key: place}


def sample(key: Key) -> str:
    if key.kind == "choice":
        return str(key.choices[-1])
    samples = {"whole": "1", "number": "1.5", "bool": "false", "text": "a", "list": "a,b", "mapping": "A=1"}
    return samples[key.kind]


@pytest.mark.parametrize("key", all_keys().values(), ids=lambda key: key.name)
def test_every_setting_has_its_flag(key: Key) -> None:
    parsed = parse(key.flag, sample(key), "train.py")
    if parsed.script == sample(key):  # a switch takes no value
        parsed = parse(key.flag, "train.py")
        assert parsed.flags == {key.name: True}
        assert parse(key.flag.replace("--", "--no-", 1), "train.py").flags == {key.name: False}
    assert list(parsed.flags) == [key.name]
    assert parsed.script == "train.py"


def test_every_setting_is_below_one_heading() -> None:
    patterns = [pattern for _, names in GROUPS for pattern in names]
    for name in all_keys():
        hits = [p for p in patterns if p == name or (p.endswith("*") and name.startswith(p[:-1]))]
        assert len(hits) == (0 if name == "preset" else 1), name


def test_contradictions_and_wrong_values_come_together() -> None:
    text = failure(
        "--use-fsdp", "--backend", "ddp", "--seed", "x", "--num-machines", "0", "--env", "A", "train.py"
    )
    assert "--use-fsdp and --backend contradict each other" in text
    assert "seed: 'x' is not a whole number" in text
    assert "num_machines: '0'" in text or "num_machines: 0" in text
    assert "env: 'A' is not NAME=VALUE" in text
    assert "--cpu and --multi-gpu contradict" in failure("--cpu", "--multi-gpu", "train.py")


@pytest.mark.parametrize(
    ("flag", "guess"),
    [
        ("--nproc", "--num-processes-per-machine"),
        ("--nproc_per_node", "--num-processes-per-machine"),
        ("--nnodes", "--num-machines"),
        ("--node_rank", "--machine-rank"),
        ("--master_port", "--main-process-port"),
        ("--num-process", "--num-processes"),
        ("--mixed_precison", "--mixed-precision"),
        ("--zero-stag", "--zero-stage"),
    ],
)
def test_a_typo_before_the_script_gets_a_hint(flag: str, guess: str) -> None:
    assert f"did you mean {guess}?" in failure(flag, "2", "train.py")


def test_help_fits_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_text("--help", capsys)
    headings = "Processes and devices,Training,Profiles,Script,Output,Starting and failures,Options"
    assert re.findall(r"\n(\S.*):\n", text)[:-1] == headings.split(",")
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 110
    assert "_processes" not in text
    assert "megatron" not in text.lower()


def test_help_names_what_a_launch_refuses_apart(capsys: pytest.CaptureFixture[str]) -> None:
    built, _, unbuilt = help_text("--help", capsys).partition("Not in this version (")
    for key in all_keys().values():
        assert f" {key.flag}" in (unbuilt if is_unbuilt(key.name) else built)
        assert f" {key.flag} " not in (built if is_unbuilt(key.name) else unbuilt)
    assert "Not in this version: fsdp, deepspeed." in " ".join(built.split())


def test_help_all_describes_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_text("--help-all", capsys)
    for heading in ("Options:", "Profiles:", *(f"{name}:" for name, _ in GROUPS)):
        assert f"\n{heading}\n" in text
    assert max(map(len, text.splitlines())) <= 80
    assert "How keys and values are exchanged. Not in this version." in " ".join(text.split())


@pytest.mark.parametrize(
    "command",
    ["", "launch", "env", "config"]
    + [f"config {name}" for name in ("show", "list", "use", "set", "unset", "explain", "validate", "schema")]
    + ["config path", "config import", "config trust"],
)
def test_every_help_fits_80_columns(capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert main([*command.split(), "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"Usage: xl {command}".rstrip())
    assert max(map(len, text.splitlines())) <= 80
    assert len(text.splitlines()) <= 110


def help_text(flag: str, capsys: pytest.CaptureFixture[str]) -> str:
    launch.main([flag], prog_name="xl launch", standalone_mode=False, terminal_width=80)
    return capsys.readouterr().out


def test_settings_without_a_script() -> None:
    @click.command(cls=SettingsCommand)
    @click.argument("keys", nargs=-1)
    @setting_options
    @click.pass_context
    def explain(
        ctx: click.Context, keys: tuple[str, ...], profile: str | None, config_file: str | None
    ) -> object:
        return keys, dict(collect_flags(ctx)), profile, config_file

    args = ["seed", "--num_processes", "2", "cpu", "--profile", "big"]
    assert explain.main(args, standalone_mode=False) == (("seed", "cpu"), {"num_processes": 2}, "big", None)
