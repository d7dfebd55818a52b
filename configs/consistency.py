"""Checks that need more than one value: what contradicts, what has no effect, what a DeepSpeed file says."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

from .errors import XlError
from .layers import OriginKind, Value
from .wrong_value import shortened

Values = dict[str, Value]
Ranks = Mapping[OriginKind, int]

_NUMBER = "[0-9]{1,9}"
_RANK_LIST = re.compile(rf"all|{_NUMBER}(-{_NUMBER})?(,{_NUMBER}(-{_NUMBER})?)*")
_TEE = re.compile(rf"[0-3]|{_NUMBER}:[0-3](,{_NUMBER}:[0-3])*")
_GPU_IDS = re.compile(r"all|[A-Za-z0-9/_-]{1,100}(,[A-Za-z0-9/_-]{1,100})*")
_RDZV_CONF = re.compile(r"[^=,]+=[^,]*(,[^=,]+=[^,]*)*")


def settle(values: Values, ranks: Ranks, cwd: Path) -> tuple[list[XlError], list[str]]:
    """Fill in what a DeepSpeed file says and drop a total that a higher source overruled.

    Returns:
        Contradictions, and warnings of settings without effect. `values` is changed in place.
    """
    problems = [*_forms(values), *_totals(values, ranks), *_machines(values), *_devices(values, ranks)]
    if values["backend"].value == "deepspeed":
        from . import deepspeed_file

        problems += deepspeed_file.apply(values, cwd)
        problems += _offload(values)
    return problems, list(_without_effect(values))


def _forms(values: Values) -> Iterator[XlError]:
    """Texts that have a form of their own."""
    forms: tuple[tuple[str, re.Pattern[str], str], ...] = (
        ("show_ranks", _RANK_LIST, "global ranks such as 0,2,4-7, or all"),
        ("tee", _TEE, "0, 1, 2 or 3 for all ranks, or local_rank:stream such as 0:3,1:2"),
        ("gpu_ids", _GPU_IDS, "GPU numbers or UUIDs with commas between, or all"),
        ("rdzv_conf", _RDZV_CONF, "key=value,key=value"),
    )
    for name, pattern, form in forms:
        found = values[name]
        if isinstance(found.value, str) and not pattern.fullmatch(found.value.replace(" ", "")):
            yield XlError(
                f"{name}: {shortened(repr(found.value))} cannot be read",
                f"{found.origin.place} sets it, and it does not have the form of this setting",
                f"write {form}",
            )


def _totals(values: Values, ranks: Ranks) -> Iterator[XlError]:
    """Total and number for each machine are two words for one wish: the higher source's holds."""
    total, each, machines = (
        values[k] for k in ("num_processes", "num_processes_per_machine", "num_machines")
    )
    if not (isinstance(total.value, int) and isinstance(each.value, int) and isinstance(machines.value, int)):
        return
    product = each.value * machines.value
    if total.value == product:
        return
    if ranks[total.origin.kind] < ranks[each.origin.kind]:
        values["num_processes_per_machine"] = _overruled(each, total)
    elif ranks[each.origin.kind] < ranks[total.origin.kind]:
        values["num_processes"] = _overruled(total, each)
    else:
        yield XlError(
            f"num_processes={total.value} does not fit num_machines={machines.value} with "
            f"num_processes_per_machine={each.value}",
            f"{total.origin.place} sets the total, {each.origin.place} sets the number for each machine, "
            + _whence("num_machines", machines),
            f"write num_processes: {product}, or leave one of the two out",
        )


def _whence(what: str, value: Value) -> str:
    if value.origin.kind == "default":
        return f"{what} is the default"
    return f"{what} comes from {value.origin.place}"


def _overruled(loser: Value, winner: Value) -> Value:
    return Value(None, winner.origin, (Value(loser.value, loser.origin), *loser.losers))


def _machines(values: Values) -> Iterator[XlError]:
    machines, rank, hosts = (values[k] for k in ("num_machines", "machine_rank", "hosts"))
    count = machines.value
    if isinstance(rank.value, int) and isinstance(count, int) and rank.value >= count:
        yield XlError(
            f"machine_rank={rank.value} does not fit num_machines={count}",
            f"{rank.origin.place} sets the rank, {_whence('num_machines', machines)}",
            f"pass --machine-rank with 0 to {count - 1}, or --num-machines {rank.value + 1}",
        )
    named = len(cast("tuple[str, ...]", hosts.value or ()))
    if named and machines.origin.kind != "default" and named != count:
        yield XlError(
            f"num_machines={count} does not fit {named} hosts",
            f"{machines.origin.place} sets num_machines, {hosts.origin.place} lists the hosts",
            f"write num_machines: {named}, or leave it out",
        )


def _devices(values: Values, ranks: Ranks) -> Iterator[XlError]:
    cpu, gpus = values["cpu"], values["gpu_ids"]
    if cpu.value is True and gpus.value is not None and ranks[gpus.origin.kind] <= ranks[cpu.origin.kind]:
        yield XlError(
            f"gpu_ids={gpus.value} and cpu=true contradict each other",
            f"{gpus.origin.place} asks for GPUs, {cpu.origin.place} asks for the CPU",
            "pass --no-cpu to train on the GPUs, or leave gpu_ids out",
        )


def _offload(values: Values) -> Iterator[XlError]:
    stage = values["deepspeed.zero_stage"]
    param = values["deepspeed.offload_param_device"]
    if param.value not in ("none", None) and stage.value != 3:
        yield XlError(
            f"offload_param_device={param.value} needs ZeRO stage 3",
            f"{param.origin.place} sets the device, {_whence(f'stage {stage.value}', stage)}",
            "pass --zero-stage 3, or --offload-param-device none",
        )
    optimizer = values["deepspeed.offload_optimizer_device"]
    if optimizer.value not in ("none", None) and stage.value == 0:
        yield XlError(
            f"offload_optimizer_device={optimizer.value} needs ZeRO stage 1 or more",
            f"{optimizer.origin.place} sets the device, {_whence('stage 0', stage)}",
            "pass --zero-stage 2, or --offload-optimizer-device none",
        )
    if values["deepspeed.config_file"].value is None:
        yield from _nvme(values)


def _nvme(values: Values) -> Iterator[XlError]:
    for what in ("optimizer", "param"):
        device, path = (
            values[f"deepspeed.offload_{what}_device"],
            values[f"deepspeed.offload_{what}_nvme_path"],
        )
        if device.value == "nvme" and path.value is None:
            yield XlError(
                f"offload_{what}_device=nvme needs a folder",
                f"{device.origin.place} asks for nvme, nothing names the folder",
                f"pass --offload-{what}-nvme-path FOLDER",
            )


def _without_effect(values: Values) -> Iterator[str]:
    """Flags and variables that nothing will read, though who typed them expects it."""
    backend = values["backend"]
    idle = {section: backend for section in ("fsdp", "deepspeed") if backend.value != section}
    if values["dynamo.backend"].value == "no":
        idle["dynamo"] = values["dynamo.backend"]
    for name, found in values.items():
        reason = idle.get(name.partition(".")[0])
        if reason and name != "dynamo.backend" and found.origin.kind in ("flag", "variable"):
            what = "dynamo.backend" if name.startswith("dynamo.") else "backend"
            place = found.origin.place
            yield f"{name} ({place}) has no effect: {what} is {reason.value} ({reason.origin.place})"
