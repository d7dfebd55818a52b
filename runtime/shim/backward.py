"""Replaces `torch.autograd.backward` and `grad`: gradients come out averaged, and scaled losses unscaled."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from ...configs.errors import XlError
from . import region
from .checksum import agree_on_losses

if TYPE_CHECKING:
    from ..loss_scaling import LossScaler
    from ..reducer import GradientReducer
    from .optimizers import Optimizers
    from .session import Session

Roots = Tensor | Sequence[Tensor]
Gradients = Tensor | Sequence[Tensor | None] | None


class Backward:
    """Every way from a loss to gradients.

    Args:
        session: the shim's state.
        optimizers: hears of every backward.
        scaler: scales fp16 losses; None in other precisions.
    """

    def __init__(self, session: Session, optimizers: Optimizers, scaler: LossScaler | None) -> None:
        self.reducer: GradientReducer | None = None  # made when the ranks are connected
        self._session, self._optimizers, self._scaler = session, optimizers, scaler
        self._accumulates = session.settings.gradient_accumulation_steps > 1

    def install(self) -> None:
        """Patch the two functions; `Tensor.backward` goes through the first."""
        backward = cast("Callable[..., None]", torch.autograd.backward)
        grad = cast("Callable[..., tuple[Tensor | None, ...]]", torch.autograd.grad)

        @functools.wraps(backward)
        def patched_backward(
            tensors: Roots,
            grad_tensors: Gradients = None,
            retain_graph: bool | None = None,
            create_graph: bool = False,
            grad_variables: Gradients = None,
            inputs: object = None,
        ) -> None:
            tensors = _kept(tensors)

            def run(start: Gradients) -> None:
                backward(tensors, start, retain_graph, create_graph, grad_variables, inputs)

            if self._session.aside is not None or self._session.in_backward:
                run(grad_tensors)
            else:
                self._backward(tensors, grad_tensors if grad_tensors is not None else grad_variables, run)

        @functools.wraps(grad)
        def patched_grad(
            outputs: Roots, inputs: Roots, *args: object, **kwargs: object
        ) -> tuple[Tensor | None, ...]:
            inputs = _kept(inputs)
            if self._session.passive or self._session.in_backward:
                return grad(outputs, inputs, *args, **kwargs)
            with self._running():
                gradients = grad(outputs, inputs, *args, **kwargs)
            return self._averaged(as_list(inputs), gradients)

        self._session.patch(torch.autograd, "backward", patched_backward)
        self._session.patch(torch.autograd, "grad", patched_grad)

    @contextmanager
    def _running(self) -> Generator[None]:
        """A checkpoint calls modules again, in any thread, and inner backwards: those pass through."""
        self._session.in_backward = True
        try:
            yield
        finally:
            self._session.in_backward = False

    def _backward(self, tensors: Roots, start: Gradients, run: Callable[[Gradients], None]) -> None:
        if region.current() is not None:
            raise _inside_forward("backward()")
        scaler = self._scaler if self._session.active else None  # before that nothing is computed in fp16
        reducer = self.reducer
        self._optimizers.backward_begins()
        comm = self._session.comm
        if comm is not None:
            agree_on_losses(comm, as_list(tensors), self._optimizers.options())
        if scaler is not None:
            if not self._optimizers.any_known:
                raise _needs_optimizer()
            roots = [tensors] if isinstance(tensors, Tensor) else tensors
            gradients = [None] * len(roots) if start is None else as_list(start)
            start = scaler.scaled_roots(roots, gradients)
        with ExitStack() as stack:
            stack.enter_context(self._running())
            if scaler is not None:
                stack.enter_context(scaler.backward())
            if reducer is not None:
                stack.enter_context(reducer.no_sync() if self._accumulates else reducer.backward())
            run(start)
        overflow = scaler.overflowed(self._session.comm) if scaler is not None else None
        self._optimizers.backward_ended(overflow)

    def _averaged(
        self, inputs: Sequence[Tensor | None], gradients: tuple[Tensor | None, ...]
    ) -> tuple[Tensor | None, ...]:
        """Average the gradients with respect to parameters; others are what they should be."""
        reducer = self.reducer
        if reducer is None:
            return gradients
        places = [
            place for place, tensor in enumerate(inputs) if tensor is not None and reducer.tracks(tensor)
        ]
        if not places:
            return gradients
        if region.current() is not None:
            raise _inside_forward("torch.autograd.grad() with respect to parameters")
        if any(gradient is not None and gradient.requires_grad for gradient in gradients):
            raise XlError(
                "torch.autograd.grad(..., create_graph=True) with respect to parameters of a model",
                "the average of gradients over the processes cannot be differentiated again",
                "run this script on one process (--num-processes 1)",
            )
        parameters = [cast("Tensor", inputs[place]) for place in places]
        averaged = reducer.average(parameters, [gradients[place] for place in places])
        result = list(gradients)
        for place, gradient in zip(places, averaged, strict=True):
            result[place] = gradient
        return tuple(result)


def _kept(tensors: Roots | Iterable[Tensor]) -> Roots:
    """Keep what an iterator gives, `model.parameters()` say, since it gives it only once."""
    return tensors if isinstance(tensors, Tensor | Sequence) else tuple(tensors)


def as_list(tensors: Tensor | Sequence[Tensor | None]) -> list[Tensor | None]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _inside_forward(what: str) -> XlError:
    return XlError(
        f"{what} is called inside the forward of a module whose batch is split",
        "the loss there is that of one process's rows, and which part of the whole it is cannot be told",
        "compute the loss and its gradient outside of the module",
    )


def _needs_optimizer() -> XlError:
    return XlError(
        "mixed_precision=fp16 needs a torch.optim optimizer, and the script has made none before backward()",
        "fp16 gradients overflow now and then, and only an optimizer's step can be skipped then",
        "pass --mixed-precision bf16 or no",
    )
