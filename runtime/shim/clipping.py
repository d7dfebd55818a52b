"""Lets gradient clipping see whole gradients: under accumulation those of the window, not of one batch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, cast

from torch import Tensor
from torch.nn import utils
from torch.nn.utils import clip_grad

if TYPE_CHECKING:
    from .optimizers import Optimizers
    from .session import Session

Clip = Callable[..., object]


def install(session: Session, optimizers: Optimizers) -> None:
    """Patch `clip_grad_norm_` and `clip_grad_value_`; needed only under accumulation."""
    if session.settings.gradient_accumulation_steps == 1:
        return
    for name in ("clip_grad_norm_", "clip_grad_value_"):
        wrapper = _wrapper(session, optimizers, cast("Clip", getattr(clip_grad, name)))
        for module in (utils, clip_grad):
            session.patch(module, name, wrapper)


def _wrapper(session: Session, optimizers: Optimizers, inner: Clip) -> Clip:
    @functools.wraps(inner)
    def clip(parameters: Tensor | Iterable[Tensor], *args: object, **kwargs: object) -> object:
        if session.passive:
            return inner(parameters, *args, **kwargs)
        listed = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        if optimizers.close_window(listed):
            return inner(listed, *args, **kwargs)
        if inner.__name__ == "clip_grad_value_":
            return None
        norm_type = args[1] if len(args) > 1 else kwargs.get("norm_type", 2.0)
        return _norm_so_far(session, listed, cast("float", norm_type))

    return clip


def _norm_so_far(session: Session, parameters: list[Tensor], norm_type: float) -> Tensor:
    """A norm for the script to print while the window is open: the ranks' mean, because all must see one value."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = utils.get_total_norm(gradients, norm_type)
    if session.comm is not None:
        norm = session.comm.all_reduce(norm.clone().to(session.comm.device)) / session.size
    return norm
