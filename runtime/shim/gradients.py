"""The gradient half of the shim: what happens between a root call's output and the optimizer's step."""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, TypeVar, cast
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn

from ...configs.errors import XlError
from .. import flat, precision
from ..loss_scaling import LossScaler
from ..reducer import GradientReducer
from . import clipping, tensor_hooks, trees
from .backward import Backward
from .optimizers import Optimizers
from .schedulers import Schedulers

if TYPE_CHECKING:
    from ...configs.worker import Precision
    from .session import Session

T = TypeVar("T")


class GradientSide:
    """Averages gradients, scales fp16 losses and accumulates, for the calls that the other half splits.

    Usage: `install()` once before the script; then for each root call (after `session.activate`)::

        side.track(module)
        side.watch_inputs(leaves of args and kwargs)
        with side.autocast():
            output = original_call(module, *args, **kwargs)
        output = side.finish_output(output)
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self._precision: Precision = session.settings.mixed_precision
        self._device = torch.device("cpu")
        self._scaler = LossScaler(enlarged=session.size) if self._precision == "fp16" else None
        self._optimizers = Optimizers(session, self._scaler)
        self._backward = Backward(session, self._optimizers, self._scaler)
        self._seen: WeakKeyDictionary[nn.Module, list[ref[Tensor]]] = WeakKeyDictionary()
        self._ranks: flat.Ranks | None = None

    @property
    def reducer(self) -> GradientReducer | None:
        """What averages the gradients; None in a world of one and before the first root call."""
        return self._backward.reducer

    def install(self) -> None:
        """Patch backward, grad, optimizers, schedulers, clipping, GradScaler; `session.unpatch` undoes it."""
        session = self.session
        self._backward.install()
        self._optimizers.install()
        Schedulers(session, self._optimizers).install()
        clipping.install(session, self._optimizers)
        _install_scaler_check(session)
        session.on_finish.append(self._count)
        if session.size > 1:
            tensor_hooks.install(session, self._tracks, self._is_ours)

    def track(self, module: nn.Module) -> None:
        """Make parameters and buffers equal on all ranks and average gradients from now on.

        Collective for a module, or parameters of it, that were not there before. Call it at every root call.
        """
        parameters = list(module.parameters())
        self._device = parameters[0].device if parameters else self._device
        seen = self._seen.get(module, [])
        if len(seen) == len(parameters) and all(
            known() is p for known, p in zip(seen, parameters, strict=True)
        ):
            return
        self._seen[module] = [ref(parameter) for parameter in parameters]
        precision.check_precision(self._precision, self._device)
        precision.check_parameters(self._precision, parameters)
        named = list(module.named_parameters())
        new = [(name, parameter) for name, parameter in named if not self._tracks(parameter)]
        if self.session.size > 1 or self._scaler is not None:
            tensor_hooks.check_hooks(new, self._scaler)
        if self.session.comm is not None:
            if self._ranks is None:
                self._ranks = flat.Ranks(self.session.comm, "buffers")
                self._backward.reducer = self._optimizers.reducer = GradientReducer(self.session.comm)
            if self._backward.reducer is not None:
                self._backward.reducer.track(named)
            flat.broadcast(self._ranks, list(module.buffers()))
        if self._scaler is not None:
            self._scaler.watch(parameters)

    def watch_inputs(self, leaves: Iterable[object]) -> None:
        """Under fp16, keep gradients with respect to a root call's inputs from coming out scaled."""
        if self._scaler is not None:
            self._scaler.watch(t for t in leaves if isinstance(t, Tensor) and t.requires_grad and t.is_leaf)

    def autocast(self) -> AbstractContextManager[object]:
        """The context of the root's forward: the launcher's precision; nothing if the script has its own."""
        if self._precision != "no" and not precision.applies(self._precision, self._device.type):
            self.session.note(
                f"the script has its own autocast; mixed_precision={self._precision} is left out there"
            )
        return precision.autocast(self._precision, self._device.type)

    def finish_output(self, output: T) -> T:
        """Return the root's output with half-precision tensors in float32, as the script expects them."""
        if not precision.applies(self._precision, self._device.type):
            return output
        leaves, _ = trees.flatten(output)
        if all(precision.widen(leaf) is leaf for leaf in leaves):
            return output
        return cast("T", trees.map_leaves(output, precision.widen))

    def _count(self) -> None:
        if self.reducer is not None:
            self.session.report.reduced_bytes = self.reducer.traffic.bytes

    def _tracks(self, tensor: Tensor) -> bool:
        return self._backward.reducer is not None and self._backward.reducer.tracks(tensor)

    def _is_ours(self, hook: object) -> bool:
        """Whether a hook is one that the reducer or the scaler sets."""
        function = hook.func if isinstance(hook, functools.partial) else hook
        owner = getattr(function, "__self__", None)
        return owner is not None and owner in (self._backward.reducer, self._scaler)


def _install_scaler_check(session: Session) -> None:
    """Refuse a GradScaler of the script where xl would have to scale or put off steps as well."""
    settings = session.settings
    if settings.mixed_precision != "fp16" and settings.gradient_accumulation_steps == 1:
        return
    initialize = cast("Callable[..., None]", torch.amp.GradScaler.__init__)

    @functools.wraps(initialize)
    def __init__(scaler: torch.amp.GradScaler, *args: object, **kwargs: object) -> None:
        initialize(scaler, *args, **kwargs)
        if not scaler.is_enabled() or session.aside is not None:
            return
        if settings.mixed_precision == "fp16":
            raise XlError(
                "the script makes a GradScaler, and mixed_precision=fp16 was asked for",
                "the loss would be scaled twice, and steps skipped by two judges",
                "pass --mixed-precision no (the script's own autocast and GradScaler keep working)",
            )
        raise XlError(
            "the script makes a GradScaler,"
            f" and gradient_accumulation_steps={settings.gradient_accumulation_steps} was asked for",
            "whether its steps are skipped and when its scale changes would be decided batch by batch",
            "pass --gradient-accumulation-steps 1, or --mixed-precision fp16 and no GradScaler",
        )

    session.patch(torch.amp.GradScaler, "__init__", __init__)
