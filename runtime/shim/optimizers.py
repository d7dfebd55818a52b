"""Decides which of the script's optimizer steps happen: all, or under accumulation and fp16 only some."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...configs.errors import XlError
from ..accumulation import GradientAccumulator
from ..loss_scaling import LossScaler
from .tensor_hooks import check_hooks

if TYPE_CHECKING:
    from ..reducer import GradientReducer
    from .session import LoaderPosition, Session

Step = Callable[..., object]


@dataclass
class Window:
    """What is pending for one optimizer.

    Args:
        sums: gradients of the script batches since the last real step.
        batches: how many script batches these are.
        first: where the loaders were at the first of them.
        closed: the mean of the window is in `.grad` already, because it was clipped; its step is to come.
        skipped: the last `step()` was only gathered.
        overflows: of each backward since the last step whether fp16 overflowed.
        steps: how often the script has called `step()`.
        prints: storage and version of each gradient after the last backward, to notice changes by the script.
    """

    sums: GradientAccumulator = field(default_factory=GradientAccumulator)
    batches: int = 0
    first: Progress | None = None
    closed: bool = False
    skipped: bool = False
    overflows: list[Tensor] = field(default_factory=list[Tensor])
    steps: int = 0
    prints: dict[int, tuple[int, int]] | None = None


class Optimizers:
    """Wraps `step` of every optimizer class; schedulers and GradScalers then call the wrapper.

    Args:
        session: the shim's state.
        scaler: scales fp16 losses; None in other precisions.
    """

    def __init__(self, session: Session, scaler: LossScaler | None) -> None:
        self.reducer: GradientReducer | None = None  # made when the ranks are connected
        self._session, self._scaler = session, scaler
        self._every = session.settings.gradient_accumulation_steps
        self._windows: weakref.WeakKeyDictionary[Optimizer, Window] = weakref.WeakKeyDictionary()
        self._loaders = LoaderProgress(session)
        self._stepping = False
        self.any_known = False  # the script has made one

    def options(self) -> list[object]:
        """Return how often each optimizer has stepped, and its numbers: learning rates, momenta and so on."""
        steps: list[object] = [window.steps for window in self._windows.values()]
        return steps + [
            (name, float(value))
            for optimizer in self._windows
            for group in optimizer.param_groups
            for name, value in group.items()
            if isinstance(value, (int, float))
        ]

    def install(self) -> None:
        """Patch `Optimizer.__init__` and `add_param_group`."""
        session, wrap, watch = self._session, self._wrap, self._watch
        initialize = cast("Callable[..., None]", Optimizer.__init__)
        add_group = cast("Callable[..., None]", Optimizer.add_param_group)

        @functools.wraps(initialize)
        def __init__(optimizer: Optimizer, *args: object, **kwargs: object) -> None:
            initialize(optimizer, *args, **kwargs)
            wrap(type(optimizer))  # not before: torch itself replaces `step` of a class at its first use

        @functools.wraps(add_group)
        def add_param_group(optimizer: Optimizer, *args: object, **kwargs: object) -> None:
            add_group(optimizer, *args, **kwargs)
            watch(optimizer)

        session.patch(Optimizer, "__init__", __init__)
        session.patch(Optimizer, "add_param_group", add_param_group)

    # --- what backward, clipping and schedulers ask

    def backward_begins(self) -> None:
        """New gradients are coming: a window that was closed for a step that never came is over."""
        for window in self._windows.values():
            window.closed = False

    def backward_ended(self, overflow: Tensor | None) -> None:
        """Remember what the gradients look like, and whether they overflowed."""
        for optimizer, window in self._windows.items():
            if overflow is not None:
                window.overflows.append(overflow)
            if self._every > 1:
                window.prints = prints_of(parameters_of(optimizer))

    def was_skipped(self, optimizer: Optimizer) -> bool:
        """Whether the last `step()` of this optimizer was gathered only, in a pass that still runs."""
        window = self._windows.get(optimizer)
        return window is not None and window.skipped and self._loaders.may_continue

    def close_window(self, parameters: Sequence[Tensor]) -> bool:
        """Before clipping: bring the window's mean to `.grad` if its step comes next, else return False."""
        ids = {id(parameter) for parameter in parameters}  # all of them are alive until we return
        whole = True
        for optimizer, window in self._windows.items():
            if any(id(parameter) in ids for parameter in parameters_of(optimizer)) and not window.closed:
                whole = self._gather(optimizer, window, only_if_last=True) and whole
        return whole

    # --- step

    def _watch(self, optimizer: Optimizer) -> None:
        self._windows.setdefault(optimizer, Window())
        self.any_known = True
        if self._scaler is not None:
            check_hooks((("", parameter) for parameter in parameters_of(optimizer)), self._scaler)
            self._scaler.watch(parameters_of(optimizer))

    def _wrap(self, kind: type[Optimizer]) -> None:
        """Wrap `step` in every class of the line that defines one."""
        for owner in kind.__mro__:
            inner = owner.__dict__.get("step")
            if owner is Optimizer or inner is None or getattr(inner, "wrapped_for", None) is self:
                continue
            self._session.patch(owner, "step", self._wrapper(cast("Step", inner)))

    def _wrapper(self, inner: Step) -> Step:
        @functools.wraps(inner)
        def step(optimizer: Optimizer, *args: object, **kwargs: object) -> object:
            if self._session.aside is not None or self._stepping:
                return inner(optimizer, *args, **kwargs)
            self._stepping = True  # a subclass's step calls that of its base
            try:
                closure = args[0] if args else kwargs.get("closure")
                if self._may_step(optimizer, closure is not None):
                    return inner(optimizer, *args, **kwargs)
                return None
            finally:
                self._stepping = False

        step.wrapped_for = self  # type: ignore[attr-defined]
        return step

    def _may_step(self, optimizer: Optimizer, has_closure: bool) -> bool:
        if self._session.in_backward:
            raise XlError(
                f"{type(optimizer).__name__}.step() is called while a backward is running",
                "gradients are averaged over the processes, and accumulated, at the end of a backward",
                "call optimizer.step() after loss.backward(), not in a hook of a parameter",
            )
        if has_closure and (self._every > 1 or self._scaler is not None):
            raise self._no_closure(optimizer)
        window = self._windows.setdefault(optimizer, Window())
        window.steps += 1
        if self._every > 1:
            window.skipped = not (window.closed or self._gather(optimizer, window))
            window.closed = False
            if window.skipped:
                return False
        return self._scaler is None or self._is_finite(self._scaler, window)

    def _is_finite(self, scaler: LossScaler, window: Window) -> bool:
        overflowed = bool(window.overflows) and bool(torch.stack(window.overflows).max().item())
        window.overflows.clear()
        scaler.update(overflowed)
        return not overflowed

    def _no_closure(self, optimizer: Optimizer) -> XlError:
        if self._every > 1:
            setting, fix = f"gradient_accumulation_steps={self._every}", "--gradient-accumulation-steps 1"
        else:
            setting, fix = "mixed_precision=fp16", "--mixed-precision bf16"
        return XlError(
            f"{type(optimizer).__name__}.step(closure) is not possible with {setting}",
            "the closure computes the gradient several times in one step, so it cannot be put off or skipped",
            f"pass {fix}",
        )

    # --- accumulation

    def _gather(self, optimizer: Optimizer, window: Window, *, only_if_last: bool = False) -> bool:
        """Take the gradient of one script batch; return whether its window is full, its mean in `.grad`."""
        progress = self._loaders.look(optimizer)
        last = progress.is_last or window.batches + 1 >= self._every
        if only_if_last and not last:
            return False
        parameters = parameters_of(optimizer)
        window.first = window.first or progress
        if not progress.in_proportion_to(window.first):
            raise _out_of_proportion(self._every)
        if window.prints not in (None, prints_of(parameters)):
            raise _changed(optimizer, self._every)
        self._loaders.commit()
        window.sums.add(parameters, progress.rows)
        window.batches += 1
        if last:
            window.sums.fold()
            window.batches, window.first = 0, None
            window.closed = True
            if self.reducer is not None:
                self.reducer.flush()
        return last


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """Every parameter that the optimizer updates."""
    return [
        parameter for group in optimizer.param_groups for parameter in cast("list[Tensor]", group["params"])
    ]


def prints_of(parameters: Iterable[Tensor]) -> dict[int, tuple[int, int]]:
    """Storage and version of each gradient, by the place of its parameter."""
    gradients = ((place, parameter.grad) for place, parameter in enumerate(parameters))
    return {
        place: (gradient.data_ptr() if gradient.layout == torch.strided else 0, gradient._version)
        for place, gradient in gradients
        if gradient is not None
    }


def _changed(optimizer: Optimizer, every: int) -> XlError:
    return XlError(
        f"the script changes gradients before {type(optimizer).__name__}.step(),"
        f" which is not possible with gradient_accumulation_steps={every}",
        "what it changes is the gradient of one batch; the step uses the mean of several",
        "clip with torch.nn.utils.clip_grad_norm_ or clip_grad_value_; or --gradient-accumulation-steps 1",
    )


def _out_of_proportion(every: int) -> XlError:
    return XlError(
        "two loaders that are read together hand out batches of changing proportions,"
        f" which is not possible with gradient_accumulation_steps={every}",
        "a batch counts by its rows, and which loader's rows those are cannot be told",
        "pass drop_last=True to both loaders, or --gradient-accumulation-steps 1 to xl launch",
    )


@dataclass(frozen=True, slots=True)
class Progress:
    """What the loaders handed out since the last step.

    Args:
        moved: every loader that advanced, with the rows of its batches; the one that advanced last, last.
        together: those of them that always advance together.
    """

    moved: tuple[tuple[LoaderPosition, int], ...] = ()
    together: tuple[LoaderPosition, ...] = ()

    @property
    def rows(self) -> float:
        """The weight of the batch."""
        return float(self.moved[-1][1]) if self.moved else 1.0

    @property
    def is_last(self) -> bool:
        """Whether the pass is over."""
        return any(loader.is_last for loader in self.together)

    def in_proportion_to(self, first: Progress) -> bool:
        """Whether the loaders that are read together grew or shrank by one factor since `first`."""
        before = dict(first.moved)
        pairs = [
            (before[loader], now)
            for loader, now in self.moved
            if loader in self.together and loader in before
        ]
        return all(then * pairs[0][1] == now * pairs[0][0] for then, now in pairs)


class LoaderProgress:
    """Follows the script through its loaders from step to step."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._at_last_step: list[tuple[LoaderPosition, int, int]] = []  # with its batches and rows then
        self._moved: list[LoaderPosition] = []  # which loaders advanced before the last step
        self._ever = False

    @property
    def may_continue(self) -> bool:
        """Whether more batches may come before the script does something for a whole epoch."""
        return not self._ever or any(loader.running for loader in self._moved)

    def look(self, optimizer: Optimizer) -> Progress:
        """Return what happened since the last step.

        Raises:
            XlError: a loader is running and has not moved since, so two steps use one batch.
        """
        running = [loader for loader in self._session.loaders if loader.running and loader.batches]
        if not running:
            self._session.note(
                "no DataLoader is running: batches count alike, and a last short window is not stepped"
            )
            return Progress()
        moved = [
            (loader, loader.rows - rows)
            for loader in running
            for batches, rows in [self._before(loader)]
            if loader.batches > batches
        ]
        if not moved:
            raise XlError(
                f"{type(optimizer).__name__}.step() is the second step of an optimizer within one batch",
                "with gradient accumulation the second step would have to use the result of the first,"
                " which has not happened yet",
                "pass --gradient-accumulation-steps 1",
            )
        # The step belongs to the loader that was read last, and to those that are always read with it (zip).
        together = [loader for loader, _ in moved if loader is moved[-1][0] or loader in self._moved]
        return Progress(tuple(moved), tuple(together))

    def commit(self) -> None:
        """A step uses what `look` told."""
        running = [loader for loader in self._session.loaders if loader.running]
        self._moved = [loader for loader in running if loader.batches > self._before(loader)[0]]
        self._at_last_step = [(loader, loader.batches, loader.rows) for loader in running]
        self._ever = self._ever or bool(running)

    def _before(self, loader: LoaderPosition) -> tuple[int, int]:
        return next(
            ((batches, rows) for known, batches, rows in self._at_last_step if known is loader), (0, 0)
        )
