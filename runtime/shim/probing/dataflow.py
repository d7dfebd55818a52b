"""Proves from two watched forwards how their outputs depend on the samples: one by one, or by plain sums."""

from __future__ import annotations

from collections.abc import Sequence

from ..randomness import Draw, classify
from .watch import Operation, Shape

_SUMS = {
    "sum", "mean", "dot", "vdot", "mm", "bmm", "addmm", "baddbmm", "mv", "matmul",
    "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss", "binary_cross_entropy",
    "binary_cross_entropy_with_logits", "kl_div", "multi_margin_loss", "multilabel_margin_loss_forward",
    "index_add",
    "scatter_add",
}  # fmt: skip
"""Operators that add up over samples; whether as sum or as mean is found by their numbers."""

_LINEAR = {
    "add", "sub", "rsub", "neg", "mul", "div", "sum", "mean", "view", "reshape", "_unsafe_view", "squeeze",
    "unsqueeze", "expand", "permute", "transpose", "t", "clone", "detach", "alias", "_to_copy", "to", "copy",
    "stack", "cat", "select", "slice", "unbind", "split", "positive", "lift_fresh", "_reshape_alias",
}  # fmt: skip
"""Operators after which a sum over samples is still a sum over samples."""


def same_operations(first: Sequence[Operation], second: Sequence[Operation]) -> bool:
    """Whether two forwards ran the same operators in the same order."""
    return [op.name for op in first] == [op.name for op in second]


def mixing(many: Sequence[Operation], few: Sequence[Operation]) -> str | None:
    """Return why a sample's result depends on other samples, judged by the operators alone, or None.

    A value whose shape does not change with the number of samples, though it comes from the batch, is taken
    over all of them. It must be a sum, and may only go on to be added up.
    """
    for op, other in zip(many, few, strict=True):
        summed = [_is_whole(pair) for pair in zip(op.inputs, other.inputs, strict=False)]
        if any(summed) and not _keeps_a_sum(op, summed):
            return f"samples are mixed: {_base(op)} is applied to a value taken over the whole batch"
        # Further results are by-products (a seed, a work space): they count if they are used.
        first = list(zip(op.outputs[:1], other.outputs[:1], strict=False))
        if not any(summed) and any(map(_is_whole, first)) and not _is_sum(op):
            return f"samples are mixed: {_base(op)} is taken over the whole batch"
    return None


def takes_whole(many: Sequence[Operation], few: Sequence[Operation]) -> bool:
    """Whether any value is taken over all samples."""
    pairs = zip(many, few, strict=True)
    return any(
        _is_whole(pair) for op, other in pairs for pair in zip(op.outputs, other.outputs, strict=False)
    )


def selects(operations: Sequence[Operation]) -> bool:
    """Whether values of the batch decide how many entries something has."""
    return any(op.selects and op.inputs for op in operations)


def draws(many: Sequence[Operation], few: Sequence[Operation]) -> tuple[Draw, ...] | str:
    """Return how each random operator is to be drawn in a split call, or why that is impossible."""
    found: list[Draw] = []
    for op, other in zip(many, few, strict=True):
        if op.sizes is None or other.sizes is None:
            continue
        same_rank = len(op.sizes) == len(other.sizes)
        draw = classify(op.name, op.sizes, other.sizes, op.order) if same_rank else None
        if draw is None:
            return f"its random operator {op.name} cannot be divided over the samples"
        found.append(draw)
    return tuple(found)


def _base(op: Operation) -> str:
    return op.name.rstrip("_")


def _is_whole(pair: tuple[Shape, Shape]) -> bool:
    return pair[0] == pair[1] and 0 not in pair[0]


def _is_sum(op: Operation) -> bool:
    if _base(op).startswith("nll_loss"):
        return op.reduction == 2  # as a mean it divides by a count of its own
    return _base(op) in _SUMS


def _keeps_a_sum(op: Operation, summed: Sequence[bool]) -> bool:
    name = _base(op)
    if name not in _LINEAR or not all(summed):
        return False
    if name == "div":
        return not op.divides_by_batch
    return name != "mul" or len(summed) == 1
