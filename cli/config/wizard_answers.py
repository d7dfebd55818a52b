"""The wizard's answers as a value, and what they mean: the memory they take and the settings they become."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ...configs.sizing import (
    OPTIMIZER_NAMES,
    SMALL_PARAMETERS,
    Devices,
    Model,
    Optimizer,
    Recommendation,
    Strategy,
    recommend,
    short_count,
)
from .wizard_machine import DeviceKind, Offer

BackendChoice = Literal["none", "ddp", "fsdp", "fsdp-offload", "zero2", "zero3", "zero3-offload"]
"""A backend with the options that matter for memory; the names are those of the presets."""

STRATEGIES: Mapping[BackendChoice, Strategy] = {
    "none": "ddp",
    "ddp": "ddp",
    "fsdp": "fsdp",
    "fsdp-offload": "fsdp",
    "zero2": "zero2",
    "zero3": "zero3",
    "zero3-offload": "zero3",
}

BACKEND_SETTINGS: Mapping[BackendChoice, Mapping[str, object]] = {
    "none": {"backend": "none"},
    "ddp": {"backend": "ddp"},
    "fsdp": {"backend": "fsdp"},
    "fsdp-offload": {"backend": "fsdp", "fsdp.offload_params": True},
    "zero2": {"backend": "deepspeed", "deepspeed.zero_stage": 2},
    "zero3": {"backend": "deepspeed", "deepspeed.zero_stage": 3},
    "zero3-offload": {
        "backend": "deepspeed",
        "deepspeed.zero_stage": 3,
        "deepspeed.offload_optimizer_device": "cpu",
        "deepspeed.offload_param_device": "cpu",
    },
}


@dataclass(frozen=True, slots=True)
class Answers:
    """One field for each question.

    Args:
        gpu_memory_bytes: None: what the GPUs here tell.
        machine_rank: None: one machine, or said at each launch.
        main_process_ip: None: one machine; the port as well.
    """

    device: DeviceKind = "cpu"
    gpu_memory_bytes: int | None = None
    num_machines: int = 1
    machine_rank: int | None = None
    main_process_ip: str | None = None
    main_process_port: int | None = None
    num_processes_per_machine: int = 1
    model_parameters: int = SMALL_PARAMETERS
    optimizer: Optimizer = "adamw"
    mixed_precision: Literal["no", "fp16", "bf16"] = "no"
    backend: BackendChoice = "ddp"
    gradient_accumulation_steps: int = 1
    name: str = "default"

    @property
    def num_processes(self) -> int:
        """Processes of the whole job."""
        return self.num_machines * self.num_processes_per_machine

    @property
    def model(self) -> Model:
        return Model(self.model_parameters, self.optimizer, self.mixed_precision)


def devices_of(answers: Answers, offer: Offer) -> Devices:
    """The devices that the answers use."""
    here = answers.device == "cpu" or bool(
        offer.gpus
    )  # a profile for GPUs elsewhere knows nothing of their machine
    ram = offer.ram_bytes if here else None
    if answers.device == "gpu":
        memory = answers.gpu_memory_bytes or offer.gpu_memory_bytes
    else:
        memory = ram // answers.num_processes_per_machine if ram else None
    return Devices(answers.device, answers.num_processes, answers.num_processes_per_machine, memory, ram)


def recommendation(answers: Answers, offer: Offer) -> Recommendation:
    """The backend that the answers so far call for, with the sum behind it."""
    return recommend(answers.model, devices_of(answers, offer))


def total_line(answers: Answers) -> str:
    """The number of processes of the whole job, and how it comes about."""
    machines, each = answers.num_machines, answers.num_processes_per_machine
    total = _count(answers.num_processes, "process")
    if machines == 1:
        return f"Total: {total} on one machine"
    return f"Total: {_count(machines, 'machine')} x {_count(each, 'process')} each = {total}"


def settings(answers: Answers) -> dict[str, object]:
    """The profile's settings, by dotted key."""
    values: dict[str, object] = {
        "num_machines": answers.num_machines,
        "num_processes_per_machine": answers.num_processes_per_machine,
    }
    optional = {
        "machine_rank": answers.machine_rank,
        "main_process_ip": answers.main_process_ip,
        "main_process_port": answers.main_process_port,
    }
    values.update({key: value for key, value in optional.items() if value is not None})
    values["cpu"] = answers.device == "cpu"
    values["mixed_precision"] = answers.mixed_precision
    values.update(BACKEND_SETTINGS[answers.backend])
    values["gradient_accumulation_steps"] = answers.gradient_accumulation_steps
    return values


def header(answers: Answers) -> str:
    """What the file's first lines say."""
    bound = "at most " if answers.model_parameters == SMALL_PARAMETERS else ""
    model = f"{bound}{short_count(answers.model_parameters)} parameters"
    return f"Made by xl config for {model} and {OPTIMIZER_NAMES[answers.optimizer]}.\n{total_line(answers)}."


def _count(number: int, noun: str) -> str:
    plural = {"process": "processes"}.get(noun, f"{noun}s")
    return f"{number} {noun if number == 1 else plural}"
