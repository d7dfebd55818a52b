"""What a forward leaves for backward that a split call would get wrong."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from torch import Tensor
from torch.autograd.function import BackwardCFunction

from .watch import is_torch


def obstacle(
    outputs: Iterable[object], parameters: Iterable[Tensor], arguments: Collection[Tensor]
) -> str | None:
    """Return why gradients through these outputs would be wrong if the call were split, or None.

    Inside a split call gradients are those of one process's rows, times the number of processes. The average
    over the processes mends the module's own parameters, and nothing else that needs a gradient. Every
    function of torch passes the factor on; one written by hand (a clipped or sign gradient, say) may not.

    Args:
        parameters: of the module.
        arguments: the call's own tensors, whose history is the script's business.
    """
    waiting: list[Any] = [o.grad_fn for o in outputs if isinstance(o, Tensor) and o.grad_fn is not None]
    seen: set[Any] = {tensor.grad_fn for tensor in arguments}
    own = {id(tensor) for tensor in (*parameters, *arguments)}
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable") and id(node.variable) not in own:
            return "it uses a tensor that needs a gradient and is none of its parameters"
        if isinstance(node, BackwardCFunction):
            function: Any = getattr(type(node), "_forward_cls", type(node))
            if not is_torch(str(function.__module__)):
                return f"its backward goes through {function.__name__}, which may not be linear"
        waiting += [parent for parent, _ in node.next_functions if parent is not None]
    return None
