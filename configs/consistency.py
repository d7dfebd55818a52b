"""Checks that need more than one value: what contradicts, what has no effect, what a DeepSpeed file says."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from . import deepspeed_file
from .errors import XlError
from .keys import all_keys
from .layers import OriginKind, Value

Values = dict[str, Value]
Ranks = Mapping[OriginKind, int]

_RANK_LIST = re.compile(r"all|\d+(-\d+)?(,\d+(-\d+)?)*")
_TEE = re.compile(r"[0-3]|\d+:[0-3](,\d+:[0-3])*")
_GPU_IDS = re.compile(r"all|[A-Za-z0-9/_-]+(,[A-Za-z0-9/_-]+)*")
_RDZV_CONF = re.compile(r"[^=,]+=[^,]*(,[^=,]+=[^,]*)*")
_SECTION_OF_BACKEND = {"fsdp": "fsdp", "deepspeed": "deepspeed"}


def settle(
    values: Values, ranks: Ranks, cwd: Path, environ: Mapping[str, str]
) -> tuple[list[XlError], list[str]]:
    """Fill in what a DeepSpeed file says and drop a total that a higher source overruled.

    Returns:
        Contradictions, and warnings of settings without effect. `values` is changed in place.
    """
    problems = [*_forms(values), *_totals(values, ranks), *_machines(values), *_devices(values, ranks)]
    if values["backend"].value == "deepspeed":
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
                f"{name}: {found.value!r} cannot be read", f"{found.origin.place} sets it", f"write {form}"
            )


def _totals(values: Values, ranks: Ranks) -> Iterator[XlError]:
    """The total and the number for each machine are two words for one wish: the higher source's word holds."""
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
            f"num_processes={total.value} does not fit {each.value} processes on each of {machines.value} machines",
            f"{total.origin.place} sets the total, {each.origin.place} sets the number for each machine, "
            f"num_machines comes from {machines.origin.place}",
            f"write num_processes: {product}, or leave one of the two out",
        )


def _overruled(loser: Value, winner: Value) -> Value:
    return Value(None, winner.origin, (Value(loser.value, loser.origin), *loser.losers))


def _machines(values: Values) -> Iterator[XlError]:
    machines, rank, hosts = (values[k] for k in ("num_machines", "machine_rank", "hosts"))
    count = machines.value
    if isinstance(rank.value, int) and isinstance(count, int) and rank.value >= count:
        yield XlError(
            f"machine_rank={rank.value} does not fit {count} machines",
            f"{rank.origin.place} sets the rank, num_machines comes from {machines.origin.place}",
            f"ranks go from 0 to {count - 1}; write num_machines: {rank.value + 1} if there are more machines",
        )
    if isinstance(hosts.value, tuple) and hosts.value:
        named = len(hosts.value)
        if machines.origin.kind != "default" and named != count:
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
            f"{param.origin.place} sets the device, stage {stage.value} comes from {stage.origin.place}",
            "pass --zero-stage 3, or --offload-param-device none",
        )
    optimizer = values["deepspeed.offload_optimizer_device"]
    if optimizer.value not in ("none", None) and stage.value == 0:
        yield XlError(
            f"offload_optimizer_device={optimizer.value} needs ZeRO stage 1 or more",
            f"{optimizer.origin.place} sets the device, stage 0 comes from {stage.origin.place}",
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
    """Settings of the command line or of variables that nothing will read: their writer expects something of them."""
    backend = values["backend"]
    checks: tuple[tuple[str, Callable[[], bool], str], ...] = (
        *(
            (s, lambda b=b: backend.value != b, f"backend is {backend.value}")
            for b, s in _SECTION_OF_BACKEND.items()
        ),
        ("dynamo", lambda: values["dynamo.backend"].value == "no", "dynamo.backend is no"),
    )
    for section, idle, reason in checks:
        for name in all_keys():
            found = values.get(name)
            typed = found is not None and found.origin.kind in ("flag", "variable")
            if found and typed and name.startswith(f"{section}.") and name != f"{section}.backend" and idle():
                yield f"{name} ({found.origin.place}) has no effect: {reason} ({backend.origin.place})"
