"""Refuses hooks of the script on parameters: they would see a part of the gradient, or a scaled one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, cast

from torch import Tensor

from ...configs.errors import XlError

if TYPE_CHECKING:
    from ..loss_scaling import LossScaler
    from .session import Session

Register = Callable[..., object]


def install(session: Session, tracks: Callable[[Tensor], bool], ours: Callable[[object], bool]) -> None:
    """Refuse hooks that come after a parameter was tracked.

    Args:
        session: the shim's state.
        tracks: whether the gradient of a tensor is averaged.
        ours: whether a hook is one of xl's own.
    """
    for name in ("register_hook", "register_post_accumulate_grad_hook"):
        session.patch(Tensor, name, _wrapper(session, cast("Register", getattr(Tensor, name)), tracks, ours))


def _wrapper(
    session: Session, inner: Register, tracks: Callable[[Tensor], bool], ours: Callable[[object], bool]
) -> Register:
    @functools.wraps(inner)
    def register(tensor: Tensor, hook: object) -> object:
        if not session.passive and not ours(hook) and tracks(tensor):
            raise _refusal("a parameter")
        return inner(tensor, hook)

    return register


def check_hooks(parameters: Iterable[tuple[str, Tensor]], scaler: LossScaler | None) -> None:
    """Refuse parameters on which the script has set hooks already.

    Raises:
        XlError: names the first such parameter.
    """
    for name, parameter in parameters:
        for attribute in ("_backward_hooks", "_post_accumulate_grad_hooks"):
            hooks = cast("Mapping[int, object] | None", getattr(parameter, attribute, None)) or {}
            if any(
                scaler is None or getattr(hook, "__self__", None) is not scaler for hook in hooks.values()
            ):
                raise _refusal(f"the parameter {name}" if name else "a parameter")


def _refusal(which: str) -> XlError:
    return XlError(
        f"the script sets a gradient hook on {which}",
        "the hook would see the gradient of one process's rows before it is averaged (in fp16: a scaled one)",
        "change gradients after loss.backward() instead: clip_grad_value_, clip_grad_norm_, or p.grad.mul_(mask)",
    )
