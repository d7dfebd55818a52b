"""Reads an Accelerate config file, YAML or JSON: every key is mapped, named in a warning, or refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from .documents import Document, Entry, mapping
from .errors import XlError
from .keys import all_keys, check, parse
from .layers import printed

Status = Literal["mapped", "default", "warned", "refused"]

_SAME = {
    "mixed_precision",
    "debug",
    "num_processes",
    "machine_rank",
    "num_machines",
    "gpu_ids",
    "main_process_ip",
    "main_process_port",
    "rdzv_backend",
    "same_network",
    "enable_cpu_affinity",
}
_SECTIONS = {
    "fsdp_config": ("fsdp", "fsdp_"),
    "deepspeed_config": ("deepspeed", "deepspeed_"),
    "dynamo_config": ("dynamo", "dynamo_"),
    "parallelism_config": ("parallelism", "parallelism_config_"),
}
_TOP_LEVEL = {"deepspeed.gradient_accumulation_steps": "gradient_accumulation_steps"}
_DISTRIBUTED: dict[str, dict[str, object]] = {
    "NO": {"backend": "none"},
    "MULTI_CPU": {"backend": "ddp", "cpu": True},
    "MULTI_GPU": {"backend": "ddp", "cpu": False},
    "FSDP": {"backend": "fsdp"},
    "DEEPSPEED": {"backend": "deepspeed"},
}
_TPU = "xl does not train on TPUs: torch has no build for them"
_REFUSED = {
    "megatron_lm_config": "xl does not drive Megatron-LM; backend: fsdp shards large models",
    "mpirun_config": "xl starts CPU processes itself, without MPI; remove the section",
    "fp8_config": "xl does not train in FP8; use mixed_precision: bf16",
    "command_file": _TPU,
    "commands": _TPU,
    "tpu_name": _TPU,
    "tpu_zone": _TPU,
    "tpu_vm": _TPU,
    "tpu_env": _TPU,
    "tpu_use_cluster": _TPU,
    "tpu_use_sudo": _TPU,
    "downcast_bf16": _TPU,
    **dict.fromkeys(
        (
            "ec2_instance_type",
            "iam_role_name",
            "image_uri",
            "profile",
            "region",
            "base_job_name",
            "pytorch_version",
            "transformers_version",
            "py_version",
            "sagemaker_inputs_file",
            "sagemaker_metrics_file",
            "additional_args",
        ),
        "xl does not start SageMaker jobs; run xl launch on the machine itself",
    ),
}
"""Keys of things that xl does not do; a value that asks for nothing is no problem."""

_NOTHING: tuple[object, ...] = (None, False, "", "no", "NO", "None", "false")


@dataclass(frozen=True, slots=True)
class Row:
    """What became of one key of the file."""

    key: str
    line: int
    status: Status
    text: str


@dataclass(slots=True)
class Reading:
    """What an Accelerate file says, as settings of xl.

    Args:
        values: by xl's dotted key, with the line of the key that said it.
        rows: one for every key of the file, in its order.
    """

    shown: str
    values: dict[str, Entry] = field(default_factory=lambda: dict[str, Entry]())
    rows: list[Row] = field(default_factory=lambda: list[Row]())
    problems: list[XlError] = field(default_factory=lambda: list[XlError]())

    @property
    def warnings(self) -> list[str]:
        return [
            f"{self.shown}:{row.line}: {row.key}: {row.text}" for row in self.rows if row.status == "warned"
        ]

    def map(self, key: str, line: int, ours: str, value: object) -> None:
        """Take a value over; Accelerate's files hold numbers and switches as text, too."""
        known = all_keys().get(ours)
        place = f"{self.shown}:{line}"
        if known is None:
            self.refuse(key, line, "xl has no such setting")
            return
        try:
            if isinstance(value, str) and known.kind in ("whole", "number", "bool"):
                value = parse(known, value, place)
            wanted = check(known, value, place)
        except XlError as problem:
            self.problems.append(problem)
            self.rows.append(Row(key, line, "refused", problem.what))
            return
        self._take(key, line, ours, wanted)

    def _take(self, key: str, line: int, ours: str, wanted: object) -> None:
        before, place = self.values.get(ours), f"{self.shown}:{line}"
        if before is not None and before.value != wanted:
            self.problems.append(
                XlError(
                    f"two values for {ours}: {printed(before.value)} and {printed(wanted)}",
                    f"{self.shown}:{before.line} says the one, {place} ({key}) the other",
                    f"correct one of the two lines of {self.shown}",
                )
            )
            self.rows.append(
                Row(key, line, "refused", f"{ours}: {printed(wanted)} contradicts line {before.line}")
            )
            return
        self.values[ours] = Entry(wanted, line)
        text = f"{ours}: {printed(wanted)}"
        if self.rows and self.rows[-1].key == key:  # one key that says several things
            text = f"{self.rows.pop().text}, {text}"
        self.rows.append(Row(key, line, "mapped", text))

    def ignore(self, key: str, line: int) -> None:
        self.rows.append(Row(key, line, "default", "asks for nothing"))

    def warn(self, key: str, line: int, text: str) -> None:
        self.rows.append(Row(key, line, "warned", text))

    def refuse(self, key: str, line: int, reason: str) -> None:
        self.rows.append(Row(key, line, "refused", reason))
        self.problems.append(
            XlError(
                f"{key} of an Accelerate file cannot be taken over",
                f"{self.shown}:{line} sets it; {reason}",
                f"remove {key} from the file",
            )
        )


def read(document: Document) -> Reading:
    """The file's settings in xl's words, with a row for every key."""
    reading = Reading(document.shown)
    for key, entry in document.entries.items():
        _read_key(reading, key, entry)
    _settle(reading)
    return reading


def _read_key(reading: Reading, key: str, entry: Entry) -> None:
    value, line = entry.value, entry.line
    special: dict[str, Callable[[Reading, Entry], None]] = {
        "compute_environment": _environment,
        "distributed_type": _distributed_type,
        "num_processes": _num_processes,
        "main_training_function": _main_function,
        "fp16": _fp16,
    }
    if key in special:
        special[key](reading, entry)
    elif key in _SECTIONS:
        _section(reading, key, entry)
    elif key in _SAME:
        reading.map(key, line, key, value)
    elif key == "use_cpu":
        reading.map(key, line, "cpu", value)
    elif key == "dynamo_backend":
        reading.map(key, line, "dynamo.backend", value)
    elif key in _REFUSED:
        if value in _NOTHING or value in ([], {}):
            reading.ignore(key, line)
        else:
            reading.refuse(key, line, _REFUSED[key])
    else:
        reading.refuse(key, line, "neither Accelerate nor xl has such a setting")


def _environment(reading: Reading, entry: Entry) -> None:
    if entry.value == "LOCAL_MACHINE":
        reading.ignore("compute_environment", entry.line)
    else:
        reading.refuse("compute_environment", entry.line, f"xl does not start jobs on {entry.value}")


def _distributed_type(reading: Reading, entry: Entry) -> None:
    # Unquoted, `no` is YAML's False.
    word = "NO" if entry.value is False else str(entry.value).upper().removeprefix("DISTRIBUTEDTYPE.")
    settings = _DISTRIBUTED.get(word)
    if settings is None:
        reason = _TPU if word in ("TPU", "XLA") else "xl trains on CPUs and on GPUs that torch calls cuda"
        if word == "MEGATRON_LM":
            reason = _REFUSED["megatron_lm_config"]
        reading.refuse(f"distributed_type: {entry.value}", entry.line, reason)
        return
    for ours, value in settings.items():
        reading.map("distributed_type", entry.line, ours, value)


def _num_processes(reading: Reading, entry: Entry) -> None:
    if entry.value in (-1, "-1"):
        reading.values["num_processes"] = Entry(None, entry.line)
        reading.rows.append(Row("num_processes", entry.line, "mapped", "-1: decided from the machine"))
    else:
        reading.map("num_processes", entry.line, "num_processes", entry.value)


def _main_function(reading: Reading, entry: Entry) -> None:
    if entry.value in (None, "main"):
        reading.ignore("main_training_function", entry.line)
    else:
        reading.warn("main_training_function", entry.line, "only TPUs used it; the script runs as it is")


def _fp16(reading: Reading, entry: Entry) -> None:
    """Accelerate's word before mixed_precision."""
    reading.map("fp16", entry.line, "mixed_precision", "fp16" if entry.value in (True, "true") else "no")


def _section(reading: Reading, key: str, entry: Entry) -> None:
    section, prefix = _SECTIONS[key]
    if entry.value is None:
        reading.ignore(key, entry.line)
        return
    inner_entries = mapping(entry)
    if inner_entries is None:
        reading.refuse(key, entry.line, "it is not a mapping of settings")
        return
    for name, inner in inner_entries.items():
        ours = f"{section}.{name.removeprefix(prefix)}"
        value = _none_word(ours, inner.value)
        reading.map(f"{key}.{name}", inner.line, _TOP_LEVEL.get(ours, ours), value)


def _none_word(ours: str, value: object) -> object:
    """Accelerate writes the text `none` for a path or class list that is not there, and numbers as `auto`."""
    key = all_keys().get(ours)
    words = ("none", "None", "auto") if key and not key.choices else ()
    return None if isinstance(value, str) and value in words else value


def _settle(reading: Reading) -> None:
    """What several keys say together; a row of it takes the place of the key's own."""
    for new in (*_one_process(reading), *_gpus_beside_cpu(reading)):
        reading.rows = [new if row.key == new.key else row for row in reading.rows]


def _gpus_beside_cpu(reading: Reading) -> Iterator[Row]:
    """Accelerate writes `gpu_ids: all` in any case, and does not look at it where `use_cpu` is true."""
    cpu, gpus = (reading.values.get(name) for name in ("cpu", "gpu_ids"))
    if cpu and cpu.value is True and gpus and gpus.value is not None:
        del reading.values["gpu_ids"]
        status: Status = "default" if gpus.value == "all" else "warned"
        yield Row("gpu_ids", gpus.line, status, f"{gpus.value} is left out: line {cpu.line} asks for the CPU")


def _one_process(reading: Reading) -> Iterator[Row]:
    backend, count = (reading.values.get(name) for name in ("backend", "num_processes"))
    if backend and backend.value == "none" and count and isinstance(count.value, int) and count.value > 1:
        reading.values["backend"] = Entry("ddp", backend.line)
        yield Row(
            "num_processes",
            count.line,
            "warned",
            f"Accelerate ran one process under distributed_type NO, xl runs {count.value} by ddp",
        )
