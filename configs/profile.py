"""The profile: every setting of a launch, with its type, its default and what it means."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

SCHEMA_VERSION = 1

Backend = Literal["none", "ddp", "fsdp", "deepspeed"]
Precision = Literal["no", "fp16", "bf16", "fp8"]

Count = Annotated[int, Field(ge=1)]
Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(ge=0)]


class Section(BaseModel):
    """A mapping of settings: unknown keys are an error, values are not converted silently."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Profile(Section):
    """What a launch wants. `None` means: not said here, decided from the machine."""

    schema_version: int = SCHEMA_VERSION

    num_processes: Count | None = None
    num_processes_per_machine: Count | None = None
    num_machines: Count = 1
    machine_rank: Annotated[int, Field(ge=0)] | None = None
    main_process_ip: str | None = None
    main_process_port: Port | None = None

    cpu: bool = False
    gpu_ids: str | None = None
    num_cpu_threads_per_process: Count | None = None

    backend: Backend = "ddp"
    mixed_precision: Precision = "no"
    gradient_accumulation_steps: Count = 1
    seed: Annotated[int, Field(ge=0)] | None = None

    distributed_by: Literal["auto", "script", "xl"] = "auto"
    data: Literal["replicated", "sharded", "exchanged"] = "replicated"
    start: Literal["auto", "zygote", "fresh"] = "auto"

    max_restarts: Annotated[int, Field(ge=0)] = 0
    monitor_interval: Seconds = 0.1
    grace_period_s: Seconds = 10.0
    log_dir: str | None = None
    tee: str | None = None
    env: dict[str, str] = Field(default_factory=dict)
