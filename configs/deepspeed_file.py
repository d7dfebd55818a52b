"""Reads DeepSpeed's own JSON file: what it shares with the profile must agree or fill each other in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from . import paths
from .documents import Document, Entry, flatten
from .errors import XlError
from .keys import all_keys, check
from .layers import Origin, Value, printed

SHARED = {
    "zero_optimization.stage": "deepspeed.zero_stage",
    "zero_optimization.offload_optimizer.device": "deepspeed.offload_optimizer_device",
    "zero_optimization.offload_optimizer.nvme_path": "deepspeed.offload_optimizer_nvme_path",
    "zero_optimization.offload_param.device": "deepspeed.offload_param_device",
    "zero_optimization.offload_param.nvme_path": "deepspeed.offload_param_nvme_path",
    "zero_optimization.stage3_gather_16bit_weights_on_model_save": "deepspeed.zero3_save_16bit_model",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gradient_clipping": "deepspeed.gradient_clipping",
}
"""DeepSpeed's keys that are settings of a launch, too."""


def settings(document: Document) -> tuple[dict[str, Value], list[XlError]]:
    """What the file says about settings of a launch, without what it leaves to others by `"auto"`."""
    found: dict[str, Value] = {}
    problems: list[XlError] = []
    entries = dict(flatten(document.entries))
    for theirs, ours in SHARED.items():
        entry = entries.get(theirs)
        if entry is None or entry.value in ("auto", None):
            continue
        origin = Origin("file", f"{document.place(entry)} ({theirs})")
        try:
            found[ours] = Value(check(all_keys()[ours], _number(ours, entry.value), origin.place), origin)
        except XlError as problem:
            problems.append(problem)
    precision, more = _precision(document, entries)
    return found | precision, problems + more


def _number(name: str, value: object) -> object:
    """A number in quotes is that number: DeepSpeed takes both."""
    if isinstance(value, str) and all_keys()[name].kind in ("whole", "number"):
        try:
            return int(value) if all_keys()[name].kind == "whole" else float(value)
        except ValueError:
            return value
    return value


def _precision(document: Document, entries: Mapping[str, Entry]) -> tuple[dict[str, Value], list[XlError]]:
    switches = {kind: entries.get(f"{kind}.enabled") for kind in ("fp16", "bf16")}
    on = {kind: entry for kind, entry in switches.items() if entry and entry.value is True}
    if len(on) == 2:
        one, other = (document.place(entry) for entry in on.values())
        return {}, [
            XlError("fp16 and bf16 are both enabled", f"{one} and {other} enable them", "keep one of the two")
        ]
    for kind, entry in on.items():
        place = f"{document.place(entry)} ({kind}.enabled)"
        return {"mixed_precision": Value(kind, Origin("file", place))}, []
    return {}, []


def apply(values: dict[str, Value], cwd: Path) -> list[XlError]:
    """Fill in what the named DeepSpeed file says; what somebody else said must be the same.

    Defaults and presets give way to the file, as nobody chose them for this file.
    """
    named = values["deepspeed.config_file"]
    if not isinstance(named.value, str):
        return []
    from .files import read_document  # imports yaml

    path = cwd / named.value
    try:
        document = read_document(path, paths.shown(path, cwd), named.origin.place)
    except XlError as problem:
        return [problem]
    found, problems = settings(document)
    for name, theirs in found.items():
        ours = values[name]
        if ours.origin.kind in ("default", "preset"):
            values[name] = Value(theirs.value, theirs.origin, (Value(ours.value, ours.origin), *ours.losers))
        elif ours.value != theirs.value:
            problems.append(_conflict(name, ours, theirs))
    return [*problems, *_switched_off(document, values["mixed_precision"])]


def _switched_off(document: Document, precision: Value) -> list[XlError]:
    """A precision that somebody asked for and the file turns off; leaving it out says nothing."""
    entry = dict(flatten(document.entries)).get(f"{precision.value}.enabled")
    if entry is None or entry.value is not False:
        return []
    place = f"{document.place(entry)} ({precision.value}.enabled)"
    return [_conflict("mixed_precision", precision, Value("no", Origin("file", place)))]


def _conflict(name: str, ours: Value, theirs: Value) -> XlError:
    return XlError(
        f"two values for {name}: {printed(ours.value)} and {printed(theirs.value)}",
        f"{ours.origin.place} says {printed(ours.value)}, {theirs.origin.place} says {printed(theirs.value)}",
        f'write the same in both, or "auto" in the DeepSpeed file, or leave out {ours.origin.place}',
    )
