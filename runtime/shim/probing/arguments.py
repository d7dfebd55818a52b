"""Ways in which the samples may lie in the arguments of a call, and pieces of them to try."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (torch annotates parts of itself incompletely)

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from .decision import Full


def rows_of(leaves: Sequence[object], dims: Sequence[int | None]) -> int:
    """Return the number of samples of a call, 0 if its arguments disagree."""
    sizes = {
        leaf.shape[dim]
        for leaf, dim in zip(leaves, dims, strict=True)
        if isinstance(leaf, Tensor) and dim is not None
    }
    return sizes.pop() if len(sizes) == 1 else 0


PLAIN = (int, float, bool, str, bytes, complex, type(None), torch.dtype, torch.device, torch.Size)
"""Types whose values can be compared."""


def unsuitable(leaves: Sequence[object]) -> Full | None:
    """Return why no arguments like these are divided, or None."""
    for leaf in leaves:
        if not isinstance(leaf, (Tensor, *PLAIN)):
            return Full(f"an argument is a {type(leaf).__name__}")
        if isinstance(leaf, Tensor):
            if type(leaf) not in (Tensor, nn.Parameter, nn.Buffer):
                return Full(f"an argument is a {type(leaf).__name__}")
            if leaf.layout is not torch.strided or leaf.is_quantized or leaf.is_nested:
                return Full("an argument is a sparse, nested or quantized tensor")
    if not any(isinstance(leaf, Tensor) and leaf.ndim for leaf in leaves):
        return Full("no argument is a tensor with samples")
    return None


def candidates(leaves: Sequence[object]) -> Iterator[tuple[int | None, ...]]:
    """Ways to divide the arguments, the usual first: samples in dim 0 of the first, then of others; dim 1."""
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.ndim]
    tried: set[tuple[int | None, ...]] = set()
    for dim, anchor in itertools.product((0, 1), tensors):
        if dim >= anchor.ndim or anchor.shape[dim] < 2:
            continue
        rows = anchor.shape[dim]
        choices = [_choices(leaf, dim, rows, leaf is anchor) for leaf in leaves]
        for dims in itertools.product(*choices):
            if dims not in tried:
                tried.add(dims)
                yield dims


def _choices(leaf: object, dim: int, rows: int, is_anchor: bool) -> list[int | None]:
    if not isinstance(leaf, Tensor):
        return [None]
    if is_anchor:
        return [dim]
    fitting = [d for d in range(leaf.ndim) if leaf.shape[d] == rows]
    fitting.sort(key=lambda d: d != dim)
    return [*fitting, None]


def piece_of(leaf: Tensor, dim: int | None, start: int, stop: int) -> Tensor:
    rows = leaf.detach() if dim is None else leaf.detach().narrow(dim, start, stop - start)
    piece = rows.clone()
    if not leaf.requires_grad:
        return piece
    with torch.enable_grad():
        return piece.requires_grad_().clone()  # not a leaf of the graph: like the rows of a split call


def sample_counts(leaves: Sequence[object], dims: Sequence[int | None]) -> tuple[int, int]:
    """How many samples to try, and how many in the first piece: sizes that no argument has elsewhere."""
    rows = rows_of(leaves, dims)
    others = {
        size
        for leaf, dim in zip(leaves, dims, strict=True)
        if isinstance(leaf, Tensor)
        for d, size in enumerate(leaf.shape)
        if d != dim
    }
    usable = [pair for pair in _PAIRS if pair[0] <= rows]
    distinct = [pair for pair in usable if not {pair[0], pair[1], pair[0] - pair[1]} & others]
    return (distinct or usable or [(2, 1)])[0]


_UNEQUAL = [(many, few) for many in range(5, 14) for few in range(many // 2 + 1, many - 1)]
# Of one sample other operators may run than of several: such pieces are the last choice.
_PAIRS = [*_UNEQUAL, (6, 3), (8, 4), (4, 2), (4, 3), (3, 2)]
