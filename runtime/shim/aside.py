"""Steps aside for scripts that turn out to distribute themselves; limits on a script's own processes."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (torch annotates parts of itself incompletely)

from __future__ import annotations

import functools
import multiprocessing
import os
import sys
from collections.abc import Callable
from functools import partial
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, cast

import torch
import torch.distributed
from torch import nn
from torch.utils._pytree import tree_leaves

from ...configs.errors import XlError
from ...configs.torchrun import torchrun_variables
from ..imports import when_imported
from ..rendezvous import connect_store

if TYPE_CHECKING:
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
"""What of each library starts distributing, by the module that defines it. Importing alone means nothing:
other libraries import these for their tools."""


class StepAside:
    """Watches for what starts distribution: torch.distributed itself, DDP, and the libraries above.

    Args:
        session: the shim's state.
        show: makes the job visible to the script, see `torchrun_variables`.
    """

    def __init__(self, session: Session, show: Callable[[], None]) -> None:
        self._session, self._show = session, show

    def install(self) -> None:
        """Patch the entry points that exist, and those of libraries once they are imported."""
        self._watch(
            torch.distributed, "init_process_group", "torch.distributed.init_process_group() was called"
        )
        self._watch(nn.parallel.DistributedDataParallel, "__init__", "DistributedDataParallel was built")
        self._watch_children()
        for name in _LIBRARIES:
            when_imported(name, partial(self._watch_library, name))

    def _watch_children(self) -> None:
        """Refuse a model that is handed to a fresh interpreter: no shim is there to see whether it trains."""
        session, start = self._session, cast("Function", BaseProcess.start)

        @functools.wraps(start)
        def begin(process: BaseProcess, *args: object) -> object:
            method = getattr(process, "_start_method", None) or multiprocessing.get_start_method()
            handed = (getattr(process, "_args", ()), getattr(process, "_kwargs", {}))
            if session.aside is None and method != "fork":
                for leaf in tree_leaves(handed):
                    if isinstance(leaf, nn.Module) and any(p.requires_grad for p in leaf.parameters()):
                        raise _training_child(session, leaf)
            return start(process, *args)

        session.patch(BaseProcess, "start", begin)

    def _watch_library(self, module_name: str) -> None:
        if self._session.closed:
            return  # imported after the session's end (tests run many in one process)
        for path in _LIBRARIES[module_name]:
            owner: object = sys.modules[module_name]
            *parents, name = path.split(".")
            for parent in parents:
                owner = getattr(owner, parent, None)
            if owner is not None and hasattr(owner, name):
                what = f"{module_name.split('.')[0]}.{parents[0] if parents else name}"
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


def refuse_training_child(session: Session, module: nn.Module) -> None:
    """In a child of the script: let it prepare data, but not train; data loader workers are exempt."""
    if session.aside is None and session.size > 1 and _trains(module):
        raise _training_child(session, module)


def _training_child(session: Session, module: nn.Module) -> XlError:
    return XlError(
        f"a process that the script started trains a module ({type(module).__name__})",
        f"under xl each of the {session.size} processes would start it, and train a model of its own",
        "run it with --num-processes 1, or leave the distribution to xl",
        exit_code=1,
    )


def _trains(module: nn.Module) -> bool:
    return (
        torch.is_grad_enabled()
        and module.training
        and torch.utils.data.get_worker_info() is None
        and any(parameter.requires_grad for parameter in module.parameters())
    )


def show_job(session: Session) -> None:
    """Give the script what torchrun would have given it: its place in the job and the store."""
    settings = session.settings
    if settings.rank == 0:
        session.kept_store = connect_store(settings)
    os.environ.update(torchrun_variables(settings))  # noqa: TID251 (the script reads them from here)
