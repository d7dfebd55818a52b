"""Values that contradict each other, and values that nothing reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from xl.configs.errors import XlError
from xl.configs.resolve import resolve


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"num_processes": 4, "num_processes_per_machine": 3}, "num_processes: 3"),
        ({"machine_rank": 2, "num_machines": 2}, "pass --machine-rank with 0 to 1"),
        ({"hosts": ("a", "b"), "num_machines": 3}, "num_machines: 2"),
        ({"cpu": True, "gpu_ids": "0"}, "--no-cpu"),
        ({"tee": "4"}, "local_rank:stream"),
        ({"tee": "0:1,1"}, "local_rank:stream"),
        ({"show_ranks": "0-"}, "0,2,4-7"),
        ({"show_ranks": "none"}, "or all"),
        ({"gpu_ids": "0,,1"}, "UUIDs"),
        ({"rdzv_conf": "timeout"}, "key=value"),
        ({"backend": "deepspeed", "deepspeed.offload_param_device": "cpu"}, "--zero-stage 3"),
        (
            {"backend": "deepspeed", "deepspeed.zero_stage": 3, "deepspeed.offload_param_device": "nvme"},
            "--offload-param-nvme-path",
        ),
        (
            {"backend": "deepspeed", "deepspeed.zero_stage": 0, "deepspeed.offload_optimizer_device": "cpu"},
            "--zero-stage 2",
        ),
    ],
)
def test_contradictions_are_refused(tmp_path: Path, flags: dict[str, object], words: str) -> None:
    with pytest.raises(XlError) as caught:
        resolve(flags, {}, tmp_path)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "flags",
    [
        {"num_processes": 6, "num_processes_per_machine": 3, "num_machines": 2},
        {"hosts": ("a", "b")},
        {"tee": "0:3,1:2"},
        {"show_ranks": "0,2,4-7"},
        {"gpu_ids": "GPU-5ab1,MIG-0/1/2"},
        {"rdzv_conf": "timeout=5,read_timeout=60"},
    ],
)
def test_what_fits_is_taken(tmp_path: Path, flags: dict[str, object]) -> None:
    assert resolve(flags, {}, tmp_path).warnings == ()


def test_a_cpu_flag_sets_aside_a_files_gpus(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("gpu_ids: 0\n")
    assert resolve({"cpu": True}, {}, tmp_path, config_file="a.yaml").profile.cpu
    (tmp_path / "b.yaml").write_text("cpu: true\n")
    with pytest.raises(XlError, match="contradict"):
        resolve({"gpu_ids": "0"}, {}, tmp_path, config_file="b.yaml")


def test_flags_that_nothing_reads_are_named(tmp_path: Path) -> None:
    flags = {"fsdp.version": 1, "deepspeed.zero_stage": 3, "dynamo.mode": "max-autotune"}
    warnings = resolve(flags, {"XL_FSDP_OFFLOAD_PARAMS": "true"}, tmp_path).warnings
    assert sorted(warning.split(" has no effect: ")[0] for warning in warnings) == [
        "deepspeed.zero_stage (--zero-stage)",
        "dynamo.mode (--dynamo-mode)",
        "fsdp.offload_params (XL_FSDP_OFFLOAD_PARAMS)",
        "fsdp.version (--fsdp-version)",
    ]
    (tmp_path / "a.yaml").write_text("fsdp: {version: 1}\n")
    assert resolve({}, {}, tmp_path, config_file="a.yaml").warnings == ()
