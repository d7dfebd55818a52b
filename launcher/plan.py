"""The launch as a value: what runs, where, with which variables, and why; printed by `--dry-run`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from ..configs.commands import Program, bootstrap_argv
from ..configs.env import WORKER_VARIABLE
from ..configs.errors import XlError, raise_all
from ..configs.torchrun import torchrun_variables
from ..configs.worker import ScriptKind, WorkerSettings
from .devices import VISIBLE
from .streams import Streams

ExecutorName = Literal["exec", "zygote", "fresh"]


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable that xl sets, or removes where `value` is None, and the reason."""

    name: str
    value: str | None
    why: str


@dataclass(frozen=True, slots=True)
class WorkerStart:
    """All that an executor needs to start one worker."""

    settings: WorkerSettings
    env: dict[str, str]
    unset: tuple[str, ...]
    log: str
    shown: Streams


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """Everything that a launch will do on this machine.

    Args:
        label: the profile in use and where it came from.
        kind_why: what decided `kind`.
        workers: each local worker's settings at the first attempt, in order of local rank.
        visible: CUDA_VISIBLE_DEVICES of each worker; None: unchanged.
        job_variables: changes to the environment that all processes start with.
        environment: the environment before those changes.
        direct: the program runs under plain `python`, because there is nothing for xl to do in it.
        log_folder: where the run's files go; None: it has none.
        prune_logs: old folders beside it are ours to remove.
        shown: which streams of each worker reach the terminal.
        refusals: why this plan will not be launched, if it will not.
    """

    label: str
    run_id: str
    program: Program
    python: str
    hostname: str
    kind: ScriptKind
    kind_why: str
    executor: ExecutorName
    executor_why: str
    backend: str
    precision: str
    workers: tuple[WorkerSettings, ...]
    visible: tuple[str | None, ...]
    devices: str
    job_variables: tuple[Variable, ...]
    log_folder: str | None
    prune_logs: bool
    shown: tuple[Streams, ...]
    grace_period_s: float
    environment: Mapping[str, str] = field(repr=False)
    direct: bool = False
    warnings: tuple[str, ...] = ()
    refusals: tuple[XlError, ...] = ()

    @property
    def max_restarts(self) -> int:
        return self.workers[0].max_restarts

    def check(self) -> None:
        """Raise every reason not to launch this plan, all at once."""
        raise_all(self.refusals)

    def job_environment(self) -> dict[str, str]:
        """Return the environment of the process that starts the workers."""
        removed = {variable.name for variable in self.job_variables if variable.value is None}
        kept = {name: value for name, value in self.environment.items() if name not in removed}
        return {**kept, **{v.name: v.value for v in self.job_variables if v.value is not None}}

    def worker_variables(self, settings: WorkerSettings) -> tuple[Variable, ...]:
        """Return what differs between this worker's environment and the job's."""
        found: list[Variable] = []
        device = self.visible[settings.local_rank]
        if device is not None:
            why = "its own device is the only one it sees" if self.kind == "plain" else "gpu_ids chose them"
            found.append(Variable(VISIBLE, device, why))
        if self.kind != "plain":
            why = "its place in the job, as torchrun tells it"
            found += [Variable(name, value, why) for name, value in torchrun_variables(settings).items()]
        return tuple(found)

    def worker(self, local_rank: int, attempt: int = 0) -> WorkerStart:
        """Return the start of one worker at its `attempt`-th restart (0: the first start)."""
        settings = self.workers[local_rank]
        suffix = f".attempt{attempt}" if attempt else ""
        folder = self.log_folder
        if folder is not None:
            settings = replace(
                settings,
                attempt=attempt,
                error_file=os.path.join(folder, f"rank{settings.rank}{suffix}.error.json"),
                report_file=os.path.join(folder, f"rank{settings.rank}{suffix}.report.json"),
            )
        variables = self.worker_variables(settings)
        return WorkerStart(
            settings=settings,
            env={v.name: v.value for v in variables if v.value is not None},
            unset=tuple(v.name for v in variables if v.value is None),
            log=os.path.join(folder, f"rank{settings.rank}{suffix}.log") if folder else os.devnull,
            shown=self.shown[local_rank],
        )

    @property
    def _handed_over(self) -> str:
        """How a worker gets its settings."""
        if self.executor == "zygote":
            return "told when it is forked"
        return f"in {WORKER_VARIABLE}, which is gone before the script starts"

    def command(self) -> list[str]:
        """Return the command of a worker that is an interpreter of its own."""
        target = self.program.target
        if self.direct:
            return [self.python, *(["-m"] if target.module else []), target.name, *target.args]
        return bootstrap_argv(self.python, self.program)

    def summary(self) -> str:
        """Return the one line that is printed before the start."""
        count = len(self.workers)
        parts = [
            "profile none" if self.label == "none" else f"settings from {self.label}",
            f"{count} process{'' if count == 1 else 'es'} on {self.devices}",
            f"backend {self.backend}",
            f"precision {self.precision}",
        ]
        if self.log_folder is not None:
            parts.append(f"logs {self.log_folder}")
        return "xl: " + " · ".join(parts)

    def render(self) -> str:
        """Return the plan as text: what `--dry-run` prints."""
        settings = self.workers[0]
        lines = [
            f"profile     {self.label}",
            f"script      {self.kind}: {self.kind_why}",
            f"processes   {len(self.workers)} on {self.devices} ({self.hostname})",
            f"executor    {self.executor}: {self.executor_why}",
            f"backend     {self.backend}",
            f"precision   {self.precision}",
            f"accumulate  {settings.gradient_accumulation_steps}",
            f"seed        {settings.seed}",
            f"restarts    {settings.max_restarts}",
            f"store       {settings.master_addr}:{settings.master_port}",
            f"logs        {self.log_folder or 'none: the output is the terminal’s'}",
            f"command     {shlex.join(self.command())}",
            *_table("environment of all processes", self.job_variables),
        ]
        for local_rank in range(len(self.workers)):
            start = self.worker(local_rank)
            lines += _table(
                f"environment of rank {start.settings.rank}", self.worker_variables(start.settings)
            )
            if not self.direct:
                lines.append(f"settings of rank {start.settings.rank} ({self._handed_over}):")
                lines.append(f"  {start.settings.to_json()}")
        lines += [f"warning     {text}" for text in self.warnings]
        lines += [f"refused     {problem.what}" for problem in self.refusals]
        return "\n".join(lines)


def _table(title: str, variables: tuple[Variable, ...]) -> list[str]:
    if not variables:
        return [f"{title}: unchanged"]
    reasons = dict.fromkeys(variable.why for variable in variables)
    lines = [f"{title}:"]
    for why in reasons:
        lines.append(f"  # {why}")
        lines += [
            f"  {v.name}={shlex.quote(v.value)}" if v.value is not None else f"  {v.name} removed"
            for v in variables
            if v.why == why
        ]
    return lines
