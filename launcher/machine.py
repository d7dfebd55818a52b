"""Facts of this machine that planning needs, as frozen values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gpu:
    """One NVIDIA GPU.

    Args:
        index: NVML's number.
        uuid: its permanent name.
        name: model.
        memory_total_bytes: its memory; 0 where the driver does not tell.
        memory_free_bytes: what is free of it.
        mig: UUIDs of its MIG instances, empty unless it is divided.
    """

    index: int
    uuid: str
    name: str
    memory_total_bytes: int
    memory_free_bytes: int
    mig: tuple[str, ...] = ()
