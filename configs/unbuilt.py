"""What settings may ask for and this version cannot run yet: the one list, for all who warn or refuse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from .errors import XlError
from .layers import printed

RUNS: Mapping[str, tuple[object, ...]] = {
    "backend": ("ddp", "none"),
    "mixed_precision": ("no", "bf16", "fp16"),
    "data": ("replicated",),
    "num_machines": (1,),
    "hosts": ((),),
    "rdzv_backend": ("static",),
    "rdzv_conf": (),
    "role": ("default",),
    "monitor_interval": (0.1,),
    "enable_cpu_affinity": (False,),
    "gradient_accumulation_divide_by": ("window",),
    "exact_random": (False,),
    "debug": (False,),
    "dynamo.backend": ("no",),
    "dynamo.mode": ("default",),
    "dynamo.use_fullgraph": (False,),
    "dynamo.use_dynamic": (False,),
    "dynamo.use_regional_compilation": (False,),
    "parallelism.dp_replicate_size": (1,),
    "parallelism.dp_shard_size": (1,),
    "parallelism.tp_size": (1,),
    "parallelism.cp_size": (1,),
    "parallelism.cp_backend": ("torch",),
    "parallelism.cp_comm_strategy": ("allgather",),
    "parallelism.sp_size": (1,),
    "parallelism.sp_backend": ("deepspeed",),
    "parallelism.sp_seq_length": (),
    "parallelism.sp_seq_length_is_variable": (True,),
    "parallelism.sp_attn_implementation": ("sdpa",),
}
"""The values that can be launched, of every setting that has others; one that is not set always can."""

_OF_UNBUILT = ("fsdp.", "deepspeed.", "machine_rank", "main_process_ip", "ssh_options", "same_network")
"""Settings that matter only beside one that cannot be launched, and sections of them."""

_LATER = " is not there yet"
_INSTEAD = {
    "backend": "pass --backend ddp",
    "mixed_precision": "pass --mixed-precision bf16",
    "num_machines": "pass --num-machines 1 and launch on this machine only",
}


def unbuilt(settings: Mapping[str, object], places: Mapping[str, str] | None = None) -> list[XlError]:
    """An error for each of these settings, by dotted key, that this version cannot run.

    Args:
        places: where each setting comes from, such as `--backend` or `train.yaml:3`, where that is known.
    """
    return [
        _error(name, settings[name], (places or {}).get(name))
        for name, values in RUNS.items()
        if settings.get(name) is not None and not _runs(settings[name], values)
    ]


def launch_note(settings: Mapping[str, object]) -> str | None:
    """In one sentence what of these settings is kept and shown but not launched; None: all of it can be."""
    asked = [problem.what.removesuffix(_LATER) for problem in unbuilt(settings)]
    if not asked:
        return None
    return f"this version of xl does not launch {' and '.join(asked)} yet, and xl launch refuses it"


def is_unbuilt(name: str) -> bool:
    """Whether a launch knows no value of this setting but the default."""
    return name.startswith(_OF_UNBUILT) or (name in RUNS and len(RUNS[name]) < 2)


def choices_to_come(name: str, choices: Sequence[str | int]) -> list[str]:
    """Those of a setting's choices that cannot be launched yet."""
    return [str(choice) for choice in choices if name in RUNS and choice not in RUNS[name]]


def _runs(value: object, values: tuple[object, ...]) -> bool:
    return _typed(value) in values or (value is False and "no" in values)  # YAML's own `no`


def _typed(value: object) -> object:
    """A file's list as the profile has it."""
    return tuple(cast("list[object]", value)) if isinstance(value, list) else value


def _error(name: str, value: object, place: str | None) -> XlError:
    why = "this version of xl cannot run it"
    is_flag = place is not None and place.startswith("--")
    return XlError(
        f"{name}={printed(_typed(value))}{_LATER}",
        f"{place} asks for it, and {why}" if place else why,
        _INSTEAD.get(name, f"leave {place if is_flag else name} out"),
    )
