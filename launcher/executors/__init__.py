"""The ways of running a plan, one file each; none is imported before it is used."""

from __future__ import annotations

import socket
from importlib import import_module
from typing import TYPE_CHECKING

from ..plan import ExecutorName, LaunchPlan

if TYPE_CHECKING:
    from .base import Run

_MODULES: dict[ExecutorName, str] = {"exec": "exec", "zygote": "supervised", "fresh": "supervised"}


def execute(plan: LaunchPlan, listener: socket.socket) -> int:
    """Run `plan` to its end and return the launch's exit code.

    Args:
        listener: the socket that rank 0 serves the store on.
    """
    run: Run = import_module(f".{_MODULES[plan.executor]}", __name__).run
    return run(plan, listener)
