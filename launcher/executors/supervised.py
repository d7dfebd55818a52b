"""Runs a plan with a supervisor: workers from the zygote on Linux, plain subprocesses elsewhere."""

from __future__ import annotations

import socket
import sys

from ...configs.processes import become_subreaper
from ..plan import LaunchPlan
from ..runs import RunFolder
from ..supervisor import Supervisor
from .base import Happenings, Starter


def run(plan: LaunchPlan, listener: socket.socket) -> int:
    """Run the plan; when this returns, nothing that the job started is left."""
    assert plan.log_folder is not None
    folder = RunFolder(plan.log_folder, prune=plan.prune_logs)
    become_subreaper()
    happenings = Happenings()
    starter = _starter(plan, listener, happenings)
    try:
        return Supervisor(plan, starter, happenings).run()
    finally:
        starter.close()
        folder.close()


def _starter(plan: LaunchPlan, listener: socket.socket, happenings: Happenings) -> Starter:
    if sys.platform == "linux":
        from .zygote import ZygoteStarter

        return ZygoteStarter(plan, listener, happenings)
    from .fresh import SubprocessStarter

    return SubprocessStarter(plan, listener, happenings)
