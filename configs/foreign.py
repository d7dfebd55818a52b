"""Recognises the files of other tools where settings of xl are expected; reading them is others' task."""

from __future__ import annotations

import shlex

from .documents import Document, mapping
from .errors import XlError

_ACCELERATE = {
    "compute_environment",
    "distributed_type",
    "use_cpu",
    "deepspeed_config",
    "fsdp_config",
    "megatron_lm_config",
    "mpirun_config",
    "dynamo_config",
    "fp8_config",
    "parallelism_config",
    "downcast_bf16",
    "main_training_function",
    "tpu_use_cluster",
}
"""Keys that only Accelerate's files have."""

_DEEPSPEED = {
    "zero_optimization",
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "steps_per_print",
    "zero_allow_untested_optimizer",
}

_DEEPSPEED_SECTIONS = {"fp16", "bf16", "optimizer", "scheduler"}
"""DeepSpeed's keys where they hold keys of their own; Accelerate has a switch `fp16`."""


def is_deepspeed(document: Document) -> bool:
    """Whether the file holds DeepSpeed's keys."""
    return bool(_found(document))


def _found(document: Document) -> list[str]:
    marks = _DEEPSPEED & document.entries.keys()
    sections = {
        name for name in _DEEPSPEED_SECTIONS & document.entries.keys() if mapping(document.entries[name])
    }
    return sorted(marks | sections)


def not_settings(document: Document) -> XlError:
    """The error for a DeepSpeed file where settings of xl are expected."""
    return XlError(
        f"{document.shown} is a DeepSpeed config, not a settings file of xl",
        f"it holds DeepSpeed's own keys ({', '.join(_found(document))})",
        f"xl config import {shlex.quote(document.shown)} makes a profile that names it",
    )


def is_accelerate(document: Document) -> bool:
    """Whether the file has keys that only Accelerate's files have."""
    return bool(_ACCELERATE & document.entries.keys())
