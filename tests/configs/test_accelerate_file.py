"""Accelerate's files: every key is mapped, warned of or refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from xl.configs.accelerate_file import Reading, read
from xl.configs.errors import XlError
from xl.configs.files import read_document
from xl.configs.foreign import is_accelerate
from xl.configs.profile import DeepSpeed, Fsdp
from xl.configs.resolve import Resolved, resolve

# What `accelerate config` of several versions writes for two GPUs, with its defaults spelled out.
DDP = """\
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: MULTI_GPU
downcast_bf16: 'no'
enable_cpu_affinity: false
gpu_ids: all
machine_rank: 0
main_training_function: main
mixed_precision: no
num_machines: 1
num_processes: 2
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
use_cpu: false
"""

FSDP = """\
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config:
  fsdp_activation_checkpointing: false
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_backward_prefetch: BACKWARD_PRE
  fsdp_cpu_ram_efficient_loading: true
  fsdp_forward_prefetch: 'false'
  fsdp_offload_params: true
  fsdp_reshard_after_forward: true
  fsdp_sharding_strategy: 1
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_sync_module_states: true
  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer,Other
  fsdp_use_orig_params: true
  fsdp_version: 1
  min_num_params: '100'
mixed_precision: bf16
num_processes: 4
"""

DEEPSPEED = """\
compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
deepspeed_config:
  deepspeed_multinode_launcher: standard
  deepspeed_moe_layer_cls_names: none
  gradient_accumulation_steps: 4
  gradient_clipping: auto
  offload_optimizer_device: cpu
  offload_optimizer_nvme_path: none
  offload_param_device: none
  zero3_init_flag: true
  zero3_save_16bit_model: true
  zero_stage: 3
dynamo_config: {dynamo_backend: INDUCTOR, dynamo_mode: default, dynamo_use_dynamic: false}
mixed_precision: fp16
num_processes: 8
num_machines: 2
machine_rank: 1
main_process_ip: 10.0.0.1
main_process_port: 29500
"""


def launch(tmp_path: Path, text: str, name: str = "acc.yaml") -> Resolved:
    (tmp_path / name).write_text(text)
    return resolve({}, {}, tmp_path, config_file=name)


def reading(tmp_path: Path, text: str) -> Reading:
    (tmp_path / "acc.yaml").write_text(text)
    document = read_document(tmp_path / "acc.yaml", "acc.yaml", "test")
    assert is_accelerate(document)
    return read(document)


def test_a_plain_file(tmp_path: Path) -> None:
    resolved = launch(tmp_path, DDP)
    profile = resolved.profile
    assert (profile.backend, profile.num_processes, profile.mixed_precision) == ("ddp", 2, "no")
    assert (profile.gpu_ids, profile.cpu, profile.same_network) == ("all", False, True)
    assert resolved.values["mixed_precision"].origin.place == "acc.yaml:9"
    assert resolved.warnings == ()
    assert resolved.label == "acc.yaml"


def test_an_fsdp_file(tmp_path: Path) -> None:
    profile = launch(tmp_path, FSDP).profile
    assert (profile.backend, profile.mixed_precision) == ("fsdp", "bf16")
    assert profile.fsdp == Fsdp(
        version=1,
        sharding_strategy="FULL_SHARD",
        reshard_after_forward=True,
        offload_params=True,
        min_num_params=100,
        auto_wrap_policy="TRANSFORMER_BASED_WRAP",
        transformer_layer_cls_to_wrap=("LlamaDecoderLayer", "Other"),
        backward_prefetch="BACKWARD_PRE",
        state_dict_type="SHARDED_STATE_DICT",
    )


def test_a_deepspeed_file(tmp_path: Path) -> None:
    profile = launch(tmp_path, DEEPSPEED).profile
    assert (profile.backend, profile.mixed_precision, profile.gradient_accumulation_steps) == (
        "deepspeed",
        "fp16",
        4,
    )
    assert (profile.num_processes, profile.num_machines, profile.machine_rank) == (8, 2, 1)
    assert profile.deepspeed == DeepSpeed(
        zero_stage=3,
        offload_optimizer_device="cpu",
        zero3_init_flag=True,
        zero3_save_16bit_model=True,
    )
    assert profile.dynamo.backend == "inductor"


def test_json_and_old_words(tmp_path: Path) -> None:
    text = (
        '{"compute_environment": "LOCAL_MACHINE", "distributed_type": "NO", "fp16": true, "num_processes": 1,'
    )
    text += ' "dynamo_backend": "NO", "use_cpu": false}'
    profile = launch(tmp_path, text, "acc.json").profile
    assert (profile.backend, profile.mixed_precision, profile.dynamo.backend) == ("none", "fp16", "no")


def test_processes_on_the_cpu_are_really_started(tmp_path: Path) -> None:
    profile = launch(tmp_path, "distributed_type: MULTI_CPU\nnum_processes: 2\nuse_cpu: true\n").profile
    assert (profile.backend, profile.cpu, profile.num_processes) == ("ddp", True, 2)
    resolved = launch(tmp_path, "distributed_type: no\nnum_processes: 2\n")
    assert (resolved.profile.backend, resolved.profile.num_processes) == ("ddp", 2)
    assert "Accelerate ran one process" in resolved.warnings[0]
    assert launch(tmp_path, "distributed_type: MULTI_GPU\nnum_processes: -1\n").profile.num_processes is None


@pytest.mark.parametrize(
    ("text", "key", "reason"),
    [
        ("distributed_type: XLA", "distributed_type", "TPU"),
        ("distributed_type: TPU", "distributed_type", "TPU"),
        ("distributed_type: MEGATRON_LM", "distributed_type", "Megatron"),
        ("distributed_type: MULTI_NPU", "distributed_type", "cuda"),
        ("compute_environment: AMAZON_SAGEMAKER", "compute_environment", "AMAZON_SAGEMAKER"),
        ("megatron_lm_config: {megatron_lm_tp_degree: 2}", "megatron_lm_config", "Megatron"),
        ("mpirun_config: {mpirun_hostfile: hosts}", "mpirun_config", "MPI"),
        ("fp8_config: {backend: TE}", "fp8_config", "FP8"),
        ("downcast_bf16: 'yes'", "downcast_bf16", "TPU"),
        ("tpu_name: pod", "tpu_name", "TPU"),
        ("commands: [ls]", "commands", "TPU"),
        ("image_uri: x", "image_uri", "SageMaker"),
        ("num_proceses: 2", "num_proceses", "neither Accelerate nor xl"),
        ("fsdp_config: {fsdp_teleport: true}", "fsdp_config.fsdp_teleport", "no such setting"),
        ("fsdp_config: 3", "fsdp_config", "not a mapping"),
    ],
)
def test_what_xl_does_not_do_is_refused_by_name(tmp_path: Path, text: str, key: str, reason: str) -> None:
    found = reading(tmp_path, f"use_cpu: false\n{text}\n")
    assert [row.key.split(":")[0] for row in found.rows if row.status == "refused"] == [key]
    assert "acc.yaml:2" in str(found.problems[0])
    assert reason in str(found.problems[0])
    with pytest.raises(XlError):
        launch(tmp_path, f"use_cpu: false\n{text}\n")


def test_what_has_no_effect_is_a_warning(tmp_path: Path) -> None:
    resolved = launch(tmp_path, "main_training_function: train\nuse_cpu: true\n")
    assert resolved.warnings == (
        "acc.yaml:1: main_training_function: only TPUs used it; the script runs as it is",
    )


@pytest.mark.parametrize(("gpus", "warnings"), [("all", 0), ("0,1", 1)])
def test_gpus_beside_the_cpu_are_left_out(tmp_path: Path, gpus: str, warnings: int) -> None:
    """Accelerate trains on the CPU then; of `all`, which it writes in any case, nothing is said."""
    resolved = launch(tmp_path, f"gpu_ids: {gpus}\nuse_cpu: true\n")
    assert (resolved.profile.cpu, resolved.profile.gpu_ids) == (True, None)
    assert len(resolved.warnings) == warnings


def test_two_values_for_one_setting_are_refused(tmp_path: Path) -> None:
    found = reading(tmp_path, "distributed_type: MULTI_CPU\nuse_cpu: false\n")
    assert [row.status for row in found.rows] == ["mapped", "refused"]
    assert "acc.yaml:1 says the one, acc.yaml:2 (use_cpu) the other" in str(found.problems[0])


def test_every_key_is_in_the_report(tmp_path: Path) -> None:
    for text in (DDP, FSDP, DEEPSPEED):
        found = reading(tmp_path, text)
        lines = [number for number, line in enumerate(text.splitlines(), 1) if not line.endswith("_config:")]
        assert sorted({row.line for row in found.rows}) == lines


def test_values_of_a_wrong_type_name_the_line(tmp_path: Path) -> None:
    with pytest.raises(XlError, match=r"(?s)num_processes: 'two'.*acc.yaml:2"):
        launch(tmp_path, "use_cpu: true\nnum_processes: two\n")
