"""The gradient half of the shim: what happens between a root call's output and the optimizer's step."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TypeVar

from torch import nn

from .session import Session

T = TypeVar("T")


class GradientSide:
    """Averages gradients, scales fp16 losses and accumulates, for the calls that the other half splits.

    Usage: `install()` once before the script; then for each root call (after `session.activate`)::

        side.track(module)
        with side.autocast():
            output = original_call(module, ...)
        output = side.finish_output(output)
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def install(self) -> None:
        """Patch backward, grad, optimizers, schedulers, clipping, GradScaler; `session.unpatch` undoes it."""
        raise NotImplementedError

    def track(self, module: nn.Module) -> None:
        """Make parameters and buffers equal on all ranks and average gradients from now on.

        Collective. Cheap when nothing was registered anywhere since the last call: call it at every root call.
        """
        raise NotImplementedError

    def autocast(self) -> AbstractContextManager[object]:
        """The context of the root's forward: the launcher's precision; nothing if the script has its own."""
        raise NotImplementedError

    def finish_output(self, output: T) -> T:
        """Return the root's output with half-precision tensors in float32, as the script expects them."""
        raise NotImplementedError
