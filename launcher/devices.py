"""Which GPUs each worker sees: a table over the machine's GPUs, the user's CUDA_VISIBLE_DEVICES and gpu_ids.

Devices are named by UUID. A number in CUDA_VISIBLE_DEVICES counts in CUDA's order, fastest first unless
CUDA_DEVICE_ORDER says otherwise, and NVML counts by bus: where the two may differ, the user's number is kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ..configs.errors import XlError
from .machine import Gpu

VISIBLE = "CUDA_VISIBLE_DEVICES"
_NUMBER = re.compile(r"[0-9]{1,9}")


def visible_devices(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the devices that a process with `environ` would see, in its order.

    As CUDA does, the list ends at the first entry that names no device.
    """
    asked = environ.get(VISIBLE)
    if asked is None:
        return tuple(name for gpu in gpus for name in _instances(gpu))
    found: list[str] = []
    for entry in asked.split(","):
        name = _named(entry.strip(), gpus, environ)
        if name is None:
            break
        found.append(name)
    return tuple(found)


def _instances(gpu: Gpu) -> tuple[str, ...]:
    return gpu.mig or (gpu.uuid,)


def _named(entry: str, gpus: Sequence[Gpu], environ: Mapping[str, str]) -> str | None:
    """Return the device that one entry of CUDA_VISIBLE_DEVICES stands for; None if it stands for none."""
    if _NUMBER.fullmatch(entry):
        index = int(entry)
        if index >= len(gpus):
            return None
        if not _orders_agree(gpus, environ):
            return entry
        return _instances(gpus[index])[0]  # CUDA shows the first instance of a divided GPU
    if entry.startswith("MIG-"):
        return _unique(entry, [name for gpu in gpus for name in gpu.mig])
    if entry.startswith("GPU-"):
        return _unique(entry, [gpu.uuid for gpu in gpus])
    return None


def _orders_agree(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> bool:
    return environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len({gpu.name for gpu in gpus}) <= 1


def _unique(prefix: str, names: Sequence[str]) -> str | None:
    matches = [name for name in names if name.startswith(prefix)]
    return matches[0] if len(matches) == 1 else None


def selected_devices(visible: Sequence[str], gpu_ids: str | None) -> tuple[str, ...]:
    """Return the devices that `gpu_ids` picks from the visible ones, by number in their order or UUID prefix.

    Raises:
        XlError: an id picks none of them, or one twice.
    """
    if gpu_ids is None or gpu_ids.strip().lower() == "all":
        return tuple(visible)
    chosen: list[str] = []
    for entry in (part.strip() for part in gpu_ids.split(",")):
        name: str | None = None
        if _NUMBER.fullmatch(entry):
            name = visible[int(entry)] if int(entry) < len(visible) else None
        elif entry:
            name = _unique(entry, visible)
        if name is None or name in chosen:
            problem = "is given twice" if name in chosen else f"is none of the {len(visible)} visible GPUs"
            raise XlError(
                f"gpu_ids={gpu_ids}: {entry!r} {problem}",
                f"numbers count the GPUs that are visible here: {', '.join(visible) or 'none'}",
                f"choose from 0 to {len(visible) - 1}, or a UUID"
                if visible
                else "remove gpu_ids, or pass --cpu",
            )
        chosen.append(name)
    return tuple(chosen)


def devices_per_worker(
    devices: Sequence[str], num_workers: int, *, one_each: bool, narrowed: bool
) -> tuple[str | None, ...]:
    """Return what CUDA_VISIBLE_DEVICES becomes for each local worker; None leaves it as it is.

    Args:
        devices: the devices of this job on this machine; empty on CPU.
        one_each: a plain script: its own device is `cuda:0` and the only one it sees.
        narrowed: `gpu_ids` left some visible device out, or changed their order.
    """
    if not devices:
        return (None,) * num_workers
    if one_each:
        return tuple(devices[rank] for rank in range(num_workers))
    return (",".join(devices) if narrowed else None,) * num_workers
