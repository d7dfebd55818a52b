"""What a forward leaves for backward: functions of the script's own, whose gradients need not be linear."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.autograd.function import BackwardCFunction


def custom_function(outputs: Iterable[object]) -> str | None:
    """Return the name of an autograd function of the script that the outputs were computed with, or None.

    Inside a split call gradients are larger by the number of processes. Every function of torch passes that
    factor on; one written by hand (a clipped or sign gradient, say) may not.
    """
    waiting: list[Any] = [o.grad_fn for o in outputs if isinstance(o, Tensor) and o.grad_fn is not None]
    seen: set[Any] = set()
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, BackwardCFunction):
            function: Any = getattr(type(node), "_forward_cls", type(node))
            if str(function.__module__).partition(".")[0] not in ("torch", "xl"):
                return str(function.__name__)
        waiting += [parent for parent, _ in node.next_functions if parent is not None]
    return None
