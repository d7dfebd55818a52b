"""Stepping aside for scripts that turn out to distribute themselves, and the limits on their own processes."""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable, MutableMapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed
from torch import nn

from ...configs.errors import XlError

if TYPE_CHECKING:
    from ...configs.worker import WorkerSettings
    from .session import Session

Function = Callable[..., object]

_LIBRARIES: dict[str, tuple[str, ...]] = {
    "accelerate.state": ("PartialState.__init__",),
    "lightning.pytorch.trainer.trainer": ("Trainer.__init__",),
    "pytorch_lightning.trainer.trainer": ("Trainer.__init__",),
    "lightning.fabric.fabric": ("Fabric.__init__",),
    "lightning_fabric.fabric": ("Fabric.__init__",),
    "deepspeed": ("initialize", "init_distributed"),
    "horovod.torch": ("init",),
    "ray": ("init",),
    "colossalai": ("launch", "launch_from_torch"),
}
"""What of each library starts distributing, by the module that defines it. Importing alone means nothing: other
libraries import these for their tools."""


def torchrun_variables(settings: WorkerSettings) -> dict[str, str]:
    """Return the variables by which a script that distributes itself finds the others."""
    return {
        "RANK": str(settings.rank),
        "LOCAL_RANK": str(settings.local_rank),
        "WORLD_SIZE": str(settings.world_size),
        "LOCAL_WORLD_SIZE": str(settings.local_world_size),
        "GROUP_RANK": str(settings.node_rank),
        "MASTER_ADDR": settings.master_addr,
        "MASTER_PORT": str(settings.master_port),
        "TORCHELASTIC_RUN_ID": settings.run_id,
        "TORCHELASTIC_RESTART_COUNT": str(settings.attempt),
        "TORCHELASTIC_MAX_RESTARTS": str(settings.max_restarts),
        # Rank 0's store of the launcher already listens on that port.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }


class StepAside:
    """Watches for what starts distribution: torch.distributed itself, DDP, and the libraries above.

    Args:
        session: the shim's state.
        show: makes the job visible to the script, see `torchrun_variables`.
    """

    def __init__(self, session: Session, show: Callable[[], None]) -> None:
        self._session, self._show = session, show

    def install(self) -> None:
        """Patch the entry points that exist, and those of libraries when they are imported."""
        self._watch(torch.distributed, "init_process_group", "torch.distributed.init_process_group() was called")
        self._watch(nn.parallel.DistributedDataParallel, "__init__", "DistributedDataParallel was built")
        finder = _Finder(self._watch_library)
        for name in _LIBRARIES:
            module = sys.modules.get(name)
            if module is not None:
                self._watch_library(module)
        self._session.patch(sys, "meta_path", [finder, *sys.meta_path])

    def _watch_library(self, module: ModuleType) -> None:
        for path in _LIBRARIES[module.__name__]:
            owner: object = module
            *parents, name = path.split(".")
            for parent in parents:
                owner = getattr(owner, parent, None)
            if owner is not None and hasattr(owner, name):
                what = f"{module.__name__.split('.')[0]}.{parents[0] if parents else name}"
                self._watch(owner, name, f"{what}() was called")

    def _watch(self, owner: object, name: str, why: str) -> None:
        inner = cast("Function", getattr(owner, name))
        process = os.getpid()

        @functools.wraps(inner)
        def begin(*args: object, **kwargs: object) -> object:
            if os.getpid() == process and self._session.aside is None and self._session.size > 1:
                self._session.step_aside(why)
                self._session.report.steps_aside = why
                self._show()
            return inner(*args, **kwargs)

        self._session.patch(owner, name, begin)


class _Finder(importlib.abc.MetaPathFinder):
    """Calls back after one of the libraries was imported."""

    def __init__(self, after: Callable[[ModuleType], None]) -> None:
        self._after = after
        self._searching = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _LIBRARIES or self._searching:
            return None
        self._searching = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._searching = False
        if spec is None or spec.loader is None:
            return None
        loader, after = cast("Any", spec.loader), self._after
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            after(module)

        loader.exec_module = exec_module
        return spec


def refuse_training_children(session: Session) -> None:
    """Let child processes prepare data, and refuse those that train a module: xl cannot follow into them.

    A forked child has the patched `nn.Module.__call__`; data loader workers are exempt.
    """
    inner = cast("Function", nn.Module.__call__)
    process = os.getpid()

    def call(module: nn.Module, *args: object, **kwargs: object) -> object:
        if os.getpid() != process and session.aside is None and _trains(module):
            raise XlError(
                f"a process that the script started trains a module ({type(module).__name__})",
                f"under xl each of the {session.size} processes would start it, and each would train a model "
                "of its own",
                "run it with --num-processes 1, or leave the distribution to xl",
                exit_code=1,
            )
        return inner(module, *args, **kwargs)

    session.patch(nn.Module, "__call__", call)


def _trains(module: nn.Module) -> bool:
    return (
        torch.is_grad_enabled()
        and module.training
        and torch.utils.data.get_worker_info() is None
        and any(parameter.requires_grad for parameter in module.parameters())
    )


def show_job(settings: WorkerSettings, environment: MutableMapping[str, str]) -> None:
    """Set the variables of `torchrun_variables` that a plain script does not see."""
    environment.update(torchrun_variables(settings))
