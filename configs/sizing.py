"""Memory arithmetic: what training a model takes on each device, and which backend that calls for.

Counted, in bytes for each parameter: the parameter (p = 4, float32), its gradient (g = 4), the optimizer's
state (s = 8 for AdamW), and under fp16 or bf16 the copy that computation uses (c = 2); autocast keeps that
for the whole model where a device holds it whole. Over k devices a strategy divides by k what it shards:

    ddp    p + g + s + c              zero2  p + c + (g + s) / k
    zero1  p + g + c + s / k          zero3, fsdp  (p + g + s) / k

Not counted: activations, buffers, the blocks that sharding gathers while it computes them, and the CUDA
context. For those 20 % of every memory stay free.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Literal

from .errors import XlError

Strategy = Literal["ddp", "zero1", "zero2", "zero3", "fsdp"]
Optimizer = Literal["adamw", "adamw-8bit", "sgd-momentum", "sgd", "adafactor"]

PARAMETER_BYTES = 4
GRADIENT_BYTES = 4
COPY_BYTES: Mapping[str, int] = {"no": 0, "fp16": 2, "bf16": 2}
STATE_BYTES: Mapping[Optimizer, int] = {
    "adamw": 8,  # two float32 moments
    "adamw-8bit": 2,  # the same moments in 8 bits
    "sgd-momentum": 4,
    "sgd": 0,
    "adafactor": 0,  # a row and a column for each matrix: under 1 % of its size
}
RESERVE_PERCENT = 20
SMALL_PARAMETERS = 100_000_000
"""What the answer "small" stands for: at most this many."""

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_LONGEST = 100
"""Characters of a size; a number of a few hundred digits is none that a float can hold."""

_SIZE = re.compile(r"([0-9]+(?:_[0-9]{3})*(?:\.[0-9]+)?)\s*([KMBT]?)", re.IGNORECASE)
_MEMORY = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(?:G|GB|GIB)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Model:
    """What is trained.

    Args:
        parameters: trainable parameters.
        mixed_precision: type of the inner computation.
    """

    parameters: int
    optimizer: Optimizer = "adamw"
    mixed_precision: Literal["no", "fp16", "bf16"] = "no"


@dataclass(frozen=True, slots=True)
class Devices:
    """What it is trained on.

    Args:
        kind: on a CPU each process's share of the RAM is its device memory.
        total: processes of the job, each with one device.
        per_machine: how many of them share a machine.
        memory_bytes: memory of one device, None: not known.
        host_bytes: RAM that the job may use on each machine, None: not known.
    """

    kind: Literal["gpu", "cpu"]
    total: int
    per_machine: int
    memory_bytes: int | None
    host_bytes: int | None


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes on one device."""

    parameters: int
    gradients: int
    states: int
    copy: int

    @property
    def total(self) -> int:
        return self.parameters + self.gradients + self.states + self.copy


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The backend that the memory calls for.

    Args:
        backend: ddp or fsdp.
        offload: keep parameters, gradients and optimizer in the machine's RAM.
        fits: whether the memory suffices; None: the device's memory is not known.
        reason: one sentence.
        lines: the sum, to show before the reason.
    """

    backend: Literal["ddp", "fsdp"]
    offload: bool
    fits: bool | None
    reason: str
    lines: tuple[str, ...]


def parse_model_size(text: str) -> int:
    """Number of parameters: `7B`, `350M`, `1.3b`, `70000000`, or `small`.

    Raises:
        XlError: it is none of these.
    """
    if text.strip().lower() == "small":
        return SMALL_PARAMETERS
    match = _SIZE.fullmatch(text.strip()) if len(text) < _LONGEST else None
    count = round(float(match[1].replace("_", "")) * _UNITS[match[2].upper()]) if match else 0
    if not 1 <= count <= 10**15:
        raise XlError(
            f"model size {text!r} is not understood",
            "it is the number of trainable parameters",
            'write it as "7B", "350M", "70000000" or "small"',
        )
    return count


def parse_memory(text: str) -> int:
    """Bytes of a memory written in GiB: `80`, `80GB`, `79.6 GiB`.

    Raises:
        XlError: it is not that.
    """
    match = _MEMORY.fullmatch(text.strip()) if len(text) < _LONGEST else None
    size = round(float(match[1]) * (1 << 30)) if match else 0
    if not 1 << 20 <= size <= 1 << 50:
        raise XlError(
            f"memory {text!r} is not understood", "it is the memory of one GPU in GiB", 'write it as "80"'
        )
    return size


def memory_need(model: Model, strategy: Strategy, devices: int = 1) -> Need:
    """Bytes that one of `devices` devices holds under the strategy."""
    shards_gradients = strategy in ("zero2", "zero3", "fsdp")
    shards_parameters = strategy in ("zero3", "fsdp")
    count = model.parameters

    def share(bytes_each: int, sharded: bool) -> int:
        return ceil(count * bytes_each / (devices if sharded else 1))

    return Need(
        parameters=share(PARAMETER_BYTES, shards_parameters),
        gradients=share(GRADIENT_BYTES, shards_gradients),
        states=share(STATE_BYTES[model.optimizer], strategy != "ddp"),
        copy=0 if shards_parameters else count * COPY_BYTES[model.mixed_precision],
    )


def usable(memory_bytes: int) -> int:
    """The memory without the reserve."""
    return memory_bytes * (100 - RESERVE_PERCENT) // 100


def host_need(model: Model, devices: Devices) -> int:
    """Bytes of RAM that offloading takes on each machine: its devices' shards."""
    return memory_need(model, "fsdp", devices.total).total * devices.per_machine


def recommend(model: Model, devices: Devices) -> Recommendation:
    """The simplest backend that fits: ddp if one device holds all, else fsdp, else fsdp with offload."""
    whole = memory_need(model, "ddp")
    lines = _sum_lines(model, whole)
    if devices.memory_bytes is None:
        reason = "the memory of a device is not known, so nothing can be compared; ddp is the simplest"
        return Recommendation("ddp", False, None, reason, lines)
    room = usable(devices.memory_bytes)
    lines += (_room_line(devices, devices.memory_bytes),)
    if whole.total <= room:
        return Recommendation("ddp", False, True, "it fits one device, so ddp: the fastest", lines)
    sharded = memory_need(model, "fsdp", devices.total)
    if devices.total > 1:
        lines += (
            f"fsdp over {devices.total} devices: {_sharded_sum(model, devices.total)} = {gib(sharded.total)}",
        )
        if sharded.total <= room:
            return Recommendation(
                "fsdp", False, True, "it does not fit one device, sharded it does, so fsdp", lines
            )
    return _offload(model, devices, lines)


def _offload(model: Model, devices: Devices, lines: tuple[str, ...]) -> Recommendation:
    """The last resort, where even the shards exceed the devices."""
    over = "it does not fit one device" if devices.total == 1 else "even sharded it does not fit"
    if devices.kind == "cpu":
        return Recommendation(
            "fsdp", False, False, f"{over}, and a CPU has no other memory. {_remedy(model, devices)}", lines
        )
    if model.optimizer == "adamw-8bit":
        why = "8-bit AdamW works on GPUs only, so it cannot be offloaded"
        return Recommendation("fsdp", False, False, f"{over}, and {why}. {_remedy(model, devices)}", lines)
    needed = host_need(model, devices)
    if devices.host_bytes is None:
        lines += (f"fsdp with offload: {gib(needed)} of RAM on each machine, whose RAM is not known",)
        return Recommendation("fsdp", True, None, f"{over}, so fsdp with offload; check the RAM", lines)
    room = usable(devices.host_bytes)
    lines += (f"fsdp with offload: {gib(needed)} of RAM on each machine, {gib(room)} may be used",)
    if needed <= room:
        return Recommendation(
            "fsdp", True, True, f"{over}, in the machine's RAM it does, so fsdp with offload", lines
        )
    return Recommendation(
        "fsdp", True, False, f"{over}, nor does the RAM suffice. {_remedy(model, devices)}", lines
    )


def _remedy(model: Model, devices: Devices) -> str:
    """What would fit instead."""
    if devices.memory_bytes is None:
        raise AssertionError("nothing was compared")
    room = usable(devices.memory_bytes)
    each = memory_need(model, "fsdp").total / model.parameters
    count = ceil(memory_need(model, "fsdp").total / room)
    largest = int(room * devices.total / each)
    kind = "devices" if devices.kind == "gpu" else "machines"
    if devices.kind == "cpu":  # processes of one machine share its memory: only machines add some
        count = ceil(count / devices.per_machine)
    return (
        f"It would fit {count} such {kind} under fsdp, or a model of about {short_count(largest)} parameters."
    )


def _sum_lines(model: Model, need: Need) -> tuple[str, ...]:
    rows = (
        ("parameters, float32", PARAMETER_BYTES, need.parameters),
        ("gradients, float32", GRADIENT_BYTES, need.gradients),
        (f"{OPTIMIZER_NAMES[model.optimizer]} state", STATE_BYTES[model.optimizer], need.states),
        (f"copy in {model.mixed_precision}", COPY_BYTES[model.mixed_precision], need.copy),
    )
    shown = [row for row in rows if row[1]]
    total = sum(row[1] for row in shown)
    return (
        f"{short_count(model.parameters)} parameters on one device:",
        *(f"  {label:22s} {each:2d} B each  {gib(size):>11s}" for label, each, size in shown),
        f"  {'sum':22s} {total:2d} B each  {gib(need.total):>11s}",
    )


def _sharded_sum(model: Model, devices: int) -> str:
    each = PARAMETER_BYTES + GRADIENT_BYTES + STATE_BYTES[model.optimizer]
    return f"{each} B / {devices} each"


def _room_line(devices: Devices, memory_bytes: int) -> str:
    whose = "memory of a GPU" if devices.kind == "gpu" else "RAM for each process"
    kept = f"{RESERVE_PERCENT} % for activations"
    return f"{whose}: {gib(memory_bytes)}, {gib(usable(memory_bytes))} without {kept}"


OPTIMIZER_NAMES: Mapping[Optimizer, str] = {
    "adamw": "AdamW",
    "adamw-8bit": "8-bit AdamW",
    "sgd-momentum": "SGD momentum",
    "sgd": "SGD",
    "adafactor": "Adafactor",
}


def gib(size: int) -> str:
    """Bytes as GiB with one digit, or MiB below one GiB."""
    return f"{size / (1 << 30):,.1f} GiB" if size >= 1 << 30 else f"{size / (1 << 20):.0f} MiB"


def short_count(count: int) -> str:
    """A number of parameters as people write it: 7B, 350M, 1.3B."""
    for unit in ("T", "B", "M", "K"):
        if count >= _UNITS[unit]:
            return f"{count / _UNITS[unit]:.3g}{unit}"
    return str(count)
