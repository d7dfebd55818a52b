"""Turns settings, script and machine into a `LaunchPlan`: pure, with no clock, socket or random number."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from operator import attrgetter

from ..configs.commands import Program
from ..configs.errors import XlError, raise_all
from ..configs.profile import Profile
from ..configs.torchrun import PLACE_VARIABLES
from ..configs.unbuilt import RUNS, unbuilt
from ..configs.worker import Precision, ScriptKind, Target, WorkerSettings
from .capacity import refusal
from .devices import VISIBLE, devices_per_worker, selected_devices, visible_devices
from .machine import Machine
from .plan import ExecutorName, LaunchPlan, Variable
from .ports import LOOPBACK
from .scan import ScriptScan
from .streams import Streams, shown_streams


def make_plan(
    profile: Profile,
    label: str,
    target: Target,
    machine: Machine,
    scan: ScriptScan,
    places: Mapping[str, str] | None = None,
) -> LaunchPlan:
    """Return the plan of a launch; what stands against running it is listed in `refusals`.

    Args:
        label: names the profile and where it came from.
        scan: what the script's text says.
        places: where each setting comes from, by its dotted key, for messages.

    Raises:
        XlError: more processes than the machine can hold, which leaves nothing to plan.
    """
    draft = _Draft(profile, target, machine, scan, places or {})
    draft.choose_devices()
    return draft.plan(label)


class _Draft:
    """A plan in the making: each method decides one matter."""

    def __init__(
        self, profile: Profile, target: Target, machine: Machine, scan: ScriptScan, places: Mapping[str, str]
    ) -> None:
        self.profile, self.target, self.machine, self.scan = profile, target, machine, scan
        self.places = places
        self.refusals: list[XlError] = []
        self.warnings: list[str] = []
        self.kind: ScriptKind
        self.kind, self.kind_why = self._choose_kind()
        self.devices: tuple[str, ...] = ()
        self.narrowed = False
        self.num_workers = 1

    def _choose_kind(self) -> tuple[ScriptKind, str]:
        said = self.profile.distributed_by
        if said == "xl":
            return ("explicit", self.scan.reason) if self.scan.explicit else ("plain", "distributed_by: xl")
        if said == "script" and self.scan.explicit is None:
            return "distributed", "distributed_by: script"
        return self.scan.kind, self.scan.reason

    def choose_devices(self) -> None:
        profile, machine = self.profile, self.machine
        visible = visible_devices(machine.gpus, machine.environment)
        if not profile.cpu:
            try:
                self.devices = selected_devices(visible, profile.gpu_ids)
            except XlError as problem:
                self.refusals.append(problem)
            self.narrowed = self.devices != visible
        wanted = _wanted_processes(profile)
        if wanted is not None:
            self.num_workers = wanted
        elif profile.backend != "none":
            self.num_workers = len(self.devices) or 1
        too_many = refusal(self.num_workers, self._whence(), machine.limits)
        if too_many is not None:  # even the plan of so many may be more than the memory holds
            raise_all([*self.refusals, too_many])
        if self.devices and self.num_workers > len(self.devices):
            self._refuse_too_many()

    def _whence(self) -> str | None:
        """Where the number of processes comes from, if somebody gave it."""
        names = ("num_processes_per_machine", "num_processes")
        said = (name for name in names if getattr(self.profile, name) is not None)
        return next(map(self.places.get, said), None)

    def _refuse_too_many(self) -> None:
        asked = self.machine.environment.get(VISIBLE)
        source = f"{VISIBLE}={asked}" if asked is not None else "as the driver reports them"
        self.refusals.append(
            XlError(
                f"num_processes={self.num_workers} does not fit this machine",
                f"each process needs a GPU of its own and {len(self.devices)} can be used ({source}, "
                f"gpu_ids={self.profile.gpu_ids or 'all'})",
                f"pass --num-processes {len(self.devices)}, or --cpu to train on the CPU",
            )
        )
        self.devices = ()

    def plan(self, label: str) -> LaunchPlan:
        profile, machine = self.profile, self.machine
        self.refusals += unbuilt({name: attrgetter(name)(profile) for name in RUNS}, self.places)
        self.refusals += self._inapplicable()
        threads = self._threads()
        self._warn()
        shown = self._shown()
        workers = tuple(self._settings(rank, threads) for rank in range(self.num_workers))
        executor, why = self._choose_executor(shown)
        visible = devices_per_worker(
            self.devices, self.num_workers, one_each=self.kind == "plain", narrowed=self.narrowed
        )
        if executor == "exec":
            folder = None
        else:
            folder = os.path.join(profile.log_dir or machine.state_folder, machine.run_id)
            workers = tuple(self._with_overlay(settings, folder) for settings in workers)
        return LaunchPlan(
            label=label,
            run_id=machine.run_id,
            program=Program(self.target, after_torch=self._early() is not None),
            python=machine.python,
            hostname=machine.hostname,
            kind=self.kind,
            kind_why=self.kind_why,
            executor=executor,
            executor_why=why,
            backend=profile.backend if self.num_workers > 1 else "none (one process)",
            precision=profile.mixed_precision,
            workers=workers,
            visible=visible,
            devices=self._describe_devices(),
            job_variables=tuple(self._job_variables(threads)),
            log_folder=folder,
            prune_logs=profile.log_dir is None,
            shown=shown,
            grace_period_s=profile.grace_period_s,
            environment=machine.environment,
            direct=executor == "exec" and self._nothing_to_apply(),
            warnings=tuple(self.warnings),
            refusals=tuple(self.refusals),
        )

    def _inapplicable(self) -> Iterator[XlError]:
        """Settings that this script or this system would silently not get."""
        profile = self.profile
        if self.kind == "distributed":
            settings = (
                ("mixed_precision", profile.mixed_precision, "no"),
                ("gradient_accumulation_steps", profile.gradient_accumulation_steps, 1),
            )
            for name, value, neutral in settings:
                if value != neutral:
                    yield XlError(
                        f"{name}={value} cannot be applied to {self.target.name}",
                        f"the script distributes itself ({self.kind_why}); xl only starts it",
                        f"set it in the script and pass --{name.replace('_', '-')} {neutral}, "
                        "or pass --distributed-by xl to have xl distribute it",
                    )
        if profile.backend == "none" and self.num_workers > 1:
            yield XlError(
                f"num_processes={self.num_workers} contradicts backend=none",
                "without a backend each process would train a model of its own",
                "pass --backend ddp, or --num-processes 1",
            )
        if profile.start == "zygote" and self.machine.platform != "linux":
            yield XlError(
                "start=zygote cannot be used here",
                f"workers are forked on Linux only, this is {self.machine.platform}",
                "pass --start auto",
            )
        if self.kind != "plain" and self.num_workers > 1 and any(d.startswith("MIG-") for d in self.devices):
            yield XlError(
                f"{self.target.name} cannot use several MIG instances",
                f"CUDA shows a process one instance, and the script expects all of them ({self.kind_why})",
                "pass --num-processes 1, or --distributed-by xl",
            )

    def _warn(self) -> None:
        cores = self.machine.usable_cores
        if self.num_workers > cores:
            self.warnings.append(f"{self.num_workers} processes share {cores} usable CPU cores")
        place = self.scan.sets_visible_devices
        if place is not None and self.devices and self.num_workers > 1:
            self.warnings.append(
                f"{place}: it overrides the devices that xl gives to each process; remove it"
            )
        said, environ = self.profile.num_cpu_threads_per_process, self.machine.environment
        if said is not None and environ.get("OMP_NUM_THREADS", str(said)) != str(said):
            self.warnings.append(
                f"num_cpu_threads_per_process={said} overrides OMP_NUM_THREADS={environ['OMP_NUM_THREADS']}"
            )

    def _threads(self) -> int | None:
        """CPU threads of a worker; None leaves them as they are."""
        said = self.profile.num_cpu_threads_per_process
        if said is not None:
            return said
        if self.num_workers == 1 or "OMP_NUM_THREADS" in self.machine.environment:
            return None
        return max(1, self.machine.usable_cores // self.num_workers)

    def _settings(self, rank: int, threads: int | None) -> WorkerSettings:
        profile, machine = self.profile, self.machine
        seed = profile.seed if profile.seed is not None else zlib.crc32(machine.run_id.encode())
        return WorkerSettings(
            run_id=machine.run_id,
            kind=self.kind,
            rank=rank,
            local_rank=rank,
            world_size=self.num_workers,
            local_world_size=self.num_workers,
            master_addr=LOOPBACK,
            master_port=machine.port,
            max_restarts=profile.max_restarts,
            cpu=not self.devices,
            mixed_precision=_inner_precision(profile),
            gradient_accumulation_steps=profile.gradient_accumulation_steps,
            seed=seed,
            num_threads=threads,
        )

    def _with_overlay(self, settings: WorkerSettings, folder: str) -> WorkerSettings:
        if self.kind != "plain" or self.num_workers == 1:
            return settings
        return replace(settings, overlay=os.path.join(folder, "overlay", f"rank{settings.rank}"))

    def _shown(self) -> tuple[Streams, ...]:
        try:
            return shown_streams(self.profile.show_ranks, self.profile.tee, self.num_workers)
        except XlError as problem:
            self.refusals.append(problem)
            return (Streams(True, True),) + (Streams(),) * (self.num_workers - 1)

    def _early(self) -> str | None:
        return str(self.scan.early_variable) if self.scan.early_variable is not None else None

    def _nothing_to_apply(self) -> bool:
        """Whether the program under `python` alone is all that the settings ask for."""
        profile = self.profile
        return (
            self.kind == "plain"
            and profile.mixed_precision == "no"
            and profile.gradient_accumulation_steps == 1
            and profile.seed is None
        )

    def _choose_executor(self, shown: tuple[Streams, ...]) -> tuple[ExecutorName, str]:
        profile = self.profile
        supervised = [
            name
            for name, there in (
                ("max_restarts", profile.max_restarts > 0),
                ("log_dir", profile.log_dir is not None),
                ("tee", profile.tee is not None),
                ("show_ranks", shown != (Streams(True, True),)),
                ("start", profile.start != "auto"),
            )
            if there
        ]
        if self.num_workers == 1 and not supervised and self.machine.platform != "win32":
            return "exec", "one process and nothing to supervise: xl becomes it"
        why = (
            f"{self.num_workers} processes"
            if self.num_workers > 1
            else f"{supervised[0]} needs a supervisor"
            if supervised
            else "this system has no exec"
        )
        if profile.start == "fresh":
            return "fresh", "start: fresh"
        if self.machine.platform != "linux":
            return "fresh", f"{why}; only Linux forks safely"
        early = self._early()
        if early is not None and profile.start == "auto":
            return "fresh", f"{early} before torch is imported"
        return "zygote", f"{why}, forked from one that imports torch once"

    def _describe_devices(self) -> str:
        if not self.devices:
            return "CPU"
        names = {name: gpu.name for gpu in self.machine.gpus for name in (gpu.uuid, *gpu.mig)}
        used = sorted({names.get(device, "GPU") for device in self.devices[: self.num_workers]})
        return ", ".join(used)

    def _job_variables(self, threads: int | None) -> Iterator[Variable]:
        profile, environ = self.profile, self.machine.environment
        for name, value in profile.env.items():
            yield Variable(name, value, "env of the profile")
        user = {**environ, **profile.env}
        if threads is not None:
            why = (
                "num_cpu_threads_per_process"
                if profile.num_cpu_threads_per_process is not None
                else f"{self.machine.usable_cores} usable cores / {self.num_workers} processes"
            )
            if "OMP_NUM_THREADS" not in profile.env:
                yield Variable("OMP_NUM_THREADS", str(threads), why)
        if self.kind == "plain":
            for name in PLACE_VARIABLES:
                if name in user:
                    yield Variable(name, None, "a plain script must not take itself for one of several")
            if self.num_workers > 1 and "PYTHONHASHSEED" not in user:
                yield Variable("PYTHONHASHSEED", "0", "sets of strings in the same order on all ranks")
        if profile.cpu and self.machine.gpus and user.get(VISIBLE) != "":
            yield Variable(VISIBLE, "", "cpu: the script sees no GPU")
        if self.machine.platform == "win32" and "USE_LIBUV" not in user:
            yield Variable("USE_LIBUV", "0", "torch for Windows is built without libuv")


def _wanted_processes(profile: Profile) -> int | None:
    """The number asked for on this machine, if any."""
    if profile.num_processes_per_machine is not None:
        return profile.num_processes_per_machine
    if profile.num_processes is not None:
        return max(1, profile.num_processes // profile.num_machines)
    return None


def _inner_precision(profile: Profile) -> Precision:
    return "no" if profile.mixed_precision == "fp8" else profile.mixed_precision
