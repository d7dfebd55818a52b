"""What the wizard can offer on this machine: its devices, their memory, their abilities."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ...configs.sizing import gib
from ...launcher.devices import visible_devices
from ...launcher.hardware.snapshot import Hardware
from ...launcher.hardware.software import Software

DeviceKind = Literal["gpu", "cpu"]


@dataclass(frozen=True, slots=True)
class Offer:
    """What was found here.

    Args:
        cpu: its model.
        usable_cores: CPU cores that the job may use.
        ram_bytes: RAM that the job may use.
        gpus: the names of the GPUs that CUDA_VISIBLE_DEVICES leaves, MIG instances one by one.
        hidden_gpus: how many more it hides.
        no_gpu: why there are none; empty if there are.
        gpu_memory_bytes: of the smallest of them, None if not told.
        capability: compute capability of the oldest of them.
        address: of this machine towards others.
        tpu: what shows that this is a TPU machine.
        deepspeed: whether it is installed.
    """

    cpu: str
    usable_cores: int
    ram_bytes: int | None
    gpus: tuple[str, ...] = ()
    hidden_gpus: int = 0
    no_gpu: str = ""
    gpu_memory_bytes: int | None = None
    capability: tuple[int, int] | None = None
    address: str | None = None
    tpu: str | None = None
    deepspeed: bool = False

    def lines(self) -> tuple[str, ...]:
        """What was found, for people."""
        cores = f"{self.usable_cores} usable cores" if self.usable_cores != 1 else "1 usable core"
        ram = gib(self.ram_bytes) if self.ram_bytes else "unknown"
        found = [f"CPU: {self.cpu}, {cores}, {ram} of RAM"]
        if self.gpus:
            memory = f", {gib(self.gpu_memory_bytes)} each" if self.gpu_memory_bytes else ""
            if len(set(self.gpus)) > 1 and memory:
                memory = f", {gib(self.gpu_memory_bytes or 0)} in the smallest"
            found.append(f"GPU: {_counted(self.gpus)}{memory}")
            if self.hidden_gpus:
                found.append(f"     CUDA_VISIBLE_DEVICES hides {self.hidden_gpus} more")
        else:
            found.append(f"GPU: none ({self.no_gpu})")
        if self.tpu:
            found.append(f"TPU: {self.tpu}; it cannot be used: {NO_TPU}")
        return tuple(found)


NO_TPU = "there is no torch_xla for torch 2.13"


def make_offer(hardware: Hardware, software: Software, environ: Mapping[str, str]) -> Offer:
    """What the facts mean for the wizard's questions."""
    facts = hardware.gpus
    memory_of: dict[str, int] = {}
    name_of: dict[str, str] = {}
    capability_of: dict[str, tuple[int, int] | None] = {}
    for gpu, detail in zip(facts.gpus, facts.details, strict=True):
        whole = ((gpu.uuid, gpu.memory_total_bytes),)
        instances = zip(gpu.mig, detail.mig_memory_bytes, strict=True) if gpu.mig else whole
        for uuid, size in instances:
            memory_of[uuid], capability_of[uuid] = size, detail.compute_capability
            name_of[uuid] = f"{gpu.name} (MIG)" if gpu.mig else gpu.name
    # CUDA_VISIBLE_DEVICES may count in an order that is not known here; then any of them may be meant.
    visible = visible_devices(facts.gpus, environ)
    shown = [uuid if uuid in name_of else None for uuid in visible]
    pool = list(name_of) if None in shown else [uuid for uuid in shown if uuid]
    names = tuple(name_of[uuid] if uuid else "GPU" for uuid in shown)
    sizes = [memory_of[uuid] for uuid in pool]
    capabilities = [found for uuid in pool if (found := capability_of[uuid])]
    outward = hardware.network.outward
    return Offer(
        cpu=hardware.cpu.model,
        usable_cores=hardware.cpu.usable_cores,
        ram_bytes=hardware.memory.usable_bytes,
        gpus=names,
        hidden_gpus=len(name_of) - len(names),
        no_gpu=_why_no_gpu(hardware, environ),
        gpu_memory_bytes=min(sizes) if sizes and all(sizes) else None,
        capability=min(capabilities, default=None),
        address=outward[0].addresses[0] if outward else None,
        tpu=hardware.tpu,
        deepspeed=software.version("deepspeed") is not None,
    )


def _why_no_gpu(hardware: Hardware, environ: Mapping[str, str]) -> str:
    if hardware.gpus.gpus:
        return f"CUDA_VISIBLE_DEVICES={environ.get('CUDA_VISIBLE_DEVICES', '')} hides all"
    return hardware.gpus.problems[0] if hardware.gpus.problems else "the driver lists none"


def _counted(names: tuple[str, ...]) -> str:
    kinds = list(dict.fromkeys(names))
    return ", ".join(f"{names.count(name)} x {name}" for name in kinds)
