"""The digest of a call's inputs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from xl.runtime.shim.checksum import digest

CPU = torch.device("cpu")
X = torch.arange(24.0).view(4, 6)


def number(*tensors: Tensor) -> int:
    return int(digest(tensors, CPU))


@pytest.mark.parametrize(
    "other",
    [X.flip(0), X.flip(1), X.T, X + 1e-6, X[:3], torch.cat([X, X]), -X],
    ids=["samples swapped", "features swapped", "transposed", "rounding", "shorter", "longer", "sign"],
)
def test_differs(other: Tensor) -> None:
    assert number(X) != number(other)


def test_is_the_same_for_the_same_bits() -> None:
    assert number(X) == number(X.clone()) == number(X.T.contiguous().T)
    assert number(torch.tensor([float("nan")])) == number(torch.tensor([float("nan")]))


def test_order_of_tensors_counts() -> None:
    assert number(X, X + 1) != number(X + 1, X)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.float16, torch.complex128])
def test_every_type_and_size(dtype: torch.dtype) -> None:
    seen = {number((torch.arange(n) % 2 + 1).to(dtype)) for n in range(1, 20)}
    assert len(seen) == 19
    assert number(torch.zeros(0)) == number(torch.zeros(0))
    assert isinstance(number(X[:, 1:]), int)
    assert isinstance(number(torch.eye(3).to_sparse()), int)
