"""Keeps learning rate schedules in step with the optimizer steps that happen under accumulation."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

if TYPE_CHECKING:
    from .optimizers import Optimizers
    from .session import Session

Method = Callable[..., object]


class Schedulers:
    """Leaves out `scheduler.step()` when the optimizer's step before it was put off.

    A schedule per batch then moves once for each real step. One per epoch is called after the pass over the
    loader has ended, and is never left out.

    Args:
        session: the shim's state.
        optimizers: knows which steps were put off.
    """

    def __init__(self, session: Session, optimizers: Optimizers) -> None:
        self._session, self._optimizers = session, optimizers
        self._depth = 0  # schedulers call each other, and themselves while they are built

    def install(self) -> None:
        """Wrap every scheduler class, those of the script when they are first used; only under accumulation."""
        if self._session.settings.gradient_accumulation_steps == 1:
            return
        self._wrap_line(LRScheduler)
        initialize = cast("Callable[..., None]", LRScheduler.__init__)

        @functools.wraps(initialize)
        def __init__(scheduler: LRScheduler, *args: object, **kwargs: object) -> None:
            for owner in type(scheduler).__mro__:
                self._wrap(owner)
            self._depth += 1
            try:
                initialize(scheduler, *args, **kwargs)
            finally:
                self._depth -= 1

        self._session.patch(LRScheduler, "__init__", __init__)

    def _wrap_line(self, kind: type[LRScheduler]) -> None:
        self._wrap(kind)
        for child in kind.__subclasses__():
            self._wrap_line(child)

    def _wrap(self, owner: type) -> None:
        inner = cast("Method | None", owner.__dict__.get("step"))
        if not issubclass(owner, LRScheduler) or inner is None or getattr(inner, "wrapped_for", None) is self:
            return

        @functools.wraps(inner)
        def step(scheduler: LRScheduler, *args: object, **kwargs: object) -> object:
            if not self._depth and not self._session.passive and self._put_off(scheduler):
                return None
            self._depth += 1
            try:
                return inner(scheduler, *args, **kwargs)
            finally:
                self._depth -= 1

        step.wrapped_for = self  # type: ignore[attr-defined]
        self._session.patch(owner, "step", step)

    def _put_off(self, scheduler: LRScheduler) -> bool:
        optimizer = getattr(scheduler, "optimizer", None)
        return isinstance(optimizer, Optimizer) and self._optimizers.was_skipped(optimizer)
