"""Whether results are equal up to the rounding of their type."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (torch annotates parts of itself incompletely)

from __future__ import annotations

import torch
from torch import Tensor


def row_dim(whole: Tensor, first: Tensor, second: Tensor) -> int | None:
    """Return the only dim whose size differs, if two pieces have together the size of the whole."""
    if not whole.ndim == first.ndim == second.ndim:
        return None
    sizes = list(zip(whole.shape, first.shape, second.shape, strict=True))
    differing = [dim for dim, size in enumerate(sizes) if len(set(size)) > 1]
    if len(differing) != 1:
        return None
    size = sizes[differing[0]]
    return differing[0] if size[0] == size[1] + size[2] and size[1] and size[2] else None


def same_values(first: Tensor | None, second: Tensor | None) -> bool:
    """Whether both are there and equal."""
    return first is not None and second is not None and close(first, second)


TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}


def close(first: Tensor, second: Tensor, *, exact: bool = False) -> bool:
    """Whether two results are equal up to rounding; `exact`: of a sum that is known to be of equal terms."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    if first.is_complex():
        return close(torch.view_as_real(first), torch.view_as_real(second), exact=exact)
    if not first.is_floating_point():
        return bool(torch.equal(first, second))
    tolerance = TOLERANCE.get(first.dtype, 3e-2)
    if exact:
        tolerance = min(tolerance, 1e-5) if first.dtype in (torch.float32, torch.float64) else tolerance
    a, b = first.detach().double(), second.detach().double()
    finite = a[a.isfinite()]
    scale = float(finite.abs().max()) if finite.numel() else 1.0
    return bool(
        torch.allclose(a, b, rtol=tolerance, atol=tolerance * (scale if not exact else 1e-3), equal_nan=True)
    )
