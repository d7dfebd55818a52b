"""How a worker ends: process groups and stores are closed before the interpreter goes down."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable

FAILED_CLOSE_PATIENCE_S = 0.5
"""Closing the groups of a failed worker may wait for peers that hang in a collective: no longer than this."""


class Ending:
    """What happens in this process when the interpreter ends, after the exit handlers of the script itself.

    Args:
        failed_with: the exit code, once the script has failed.
    """

    def __init__(self) -> None:
        self.failed_with: int | None = None
        self._closers: list[Callable[[], None]] = [close_process_groups]
        atexit.register(self._run)

    def add(self, close: Callable[[], None]) -> None:
        """Have `close` called, before those that were added earlier."""
        self._closers.append(close)

    def _run(self) -> None:
        if self.failed_with is not None:
            self._leave_soon(self.failed_with)
        for close in reversed(self._closers):
            close()

    def _leave_soon(self, exit_code: int) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        timer = threading.Timer(FAILED_CLOSE_PATIENCE_S, os._exit, (exit_code,))
        timer.daemon = True
        timer.start()


def close_process_groups() -> None:
    """Close the process groups that the script left open.

    A torch 2.13 worker that ends with a gloo group open now and then aborts ("terminate called without an
    active exception", exit code 134): the group's threads outlive what they use.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    distributed.destroy_process_group()
