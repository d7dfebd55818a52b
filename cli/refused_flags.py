"""Flags of `accelerate launch` for things that xl does not do, with the reason and what to do instead."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a flag is refused, and what to type."""

    why: str
    fix: str


_TPU = Refusal(
    "torch has no build for TPUs that xl could start", "leave the flag out to train on GPUs or the CPU"
)
_MEGATRON = Refusal("xl does not drive Megatron-LM", "pass --use-fsdp to shard a large model")
_FP8 = Refusal("xl does not train in FP8", "leave it out and pass --mixed-precision bf16")
_AWS = Refusal("xl does not start SageMaker jobs", "run xl launch on the machine that trains")
_MPI = Refusal(
    "xl starts processes itself, without MPI", "pass --num-processes N, and --hosts A,B for many machines"
)

_BY_PREFIX = (
    ("--tpu", _TPU),
    ("--no-tpu-cluster", _TPU),
    ("--vm", _TPU),
    ("--main-training-function", _TPU),
    ("--downcast-bf16", _TPU),
    ("--use-megatron-lm", _MEGATRON),
    ("--megatron-lm", _MEGATRON),
    ("--fp8", _FP8),
    ("--aws", _AWS),
    ("--mpirun", _MPI),
)


def refusal(flag: str) -> Refusal | None:
    """Why xl does not take this flag; None when it is simply not known."""
    name = flag.replace("_", "-")
    return next((why for prefix, why in _BY_PREFIX if name == prefix or name.startswith(f"{prefix}-")), None)
