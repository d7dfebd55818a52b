"""How a worker ends: process groups and stores are closed before the interpreter goes down."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable

FAILED_EXIT_PATIENCE_S = 5.0
"""A failed worker whose clean-up takes longer is ended without it, so that its peers do not wait for ever."""


def close_at_exit(close: Callable[[], None]) -> None:
    """Run `close` when the interpreter ends, after what the script itself registered."""
    atexit.register(close)


def close_process_groups() -> None:
    """Close the process groups that the script left open.

    A torch 2.13 worker that ends with a gloo group open now and then aborts ("terminate called without an active
    exception", exit code 134): the group's threads outlive what they use.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    distributed.destroy_process_group()


def leave_soon(exit_code: int) -> None:
    """End this process with `exit_code` in `FAILED_EXIT_PATIENCE_S` at the latest.

    Closing a group whose peers are stuck in a collective can block for as long as the collective's timeout.
    """
    timer = threading.Timer(FAILED_EXIT_PATIENCE_S, os._exit, (exit_code,))
    timer.daemon = True
    timer.start()
