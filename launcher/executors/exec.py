"""Runs a world of one by becoming it: the same process, its terminal, its signals, its exit code."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import replace
from typing import NoReturn

from ...configs.env import WORKER_VARIABLE
from ..plan import LaunchPlan


def run(plan: LaunchPlan, listener: socket.socket) -> NoReturn:
    """Replace this process by the plan's only worker, as `exec python train.py` in a shell would."""
    start = plan.worker(0)
    environ = {n: v for n, v in plan.job_environment().items() if n not in start.unset} | start.env
    if plan.direct:
        listener.close()
    else:
        listener.set_inheritable(True)
        settings = replace(start.settings, store_fd=listener.fileno())
        environ[WORKER_VARIABLE] = settings.to_json()
    sys.stdout.flush()
    sys.stderr.flush()
    command = plan.command()
    os.execve(command[0], command, environ)
