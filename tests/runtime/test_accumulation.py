"""The weighted mean of gradients."""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import torch
from torch import nn

from xl.runtime.accumulation import GradientAccumulator


def test_the_mean_is_weighted() -> None:
    first, second, unused = (nn.Parameter(torch.zeros(2)) for _ in range(3))
    sums = GradientAccumulator()
    for value, weight in ((1.0, 3.0), (5.0, 1.0)):
        first.grad = torch.full((2,), value)
        second.grad = None if weight == 1 else torch.ones(2)
        kept = first.grad
        sums.add([first, second, unused], weight)
        kept.zero_()  # what a script does with .grad afterwards must not matter
    sums.fold()
    assert first.grad is not None
    assert second.grad is not None
    assert first.grad.tolist() == [2.0, 2.0]
    assert second.grad.tolist() == [0.75, 0.75], "a batch without a gradient counts as zeros"
    assert unused.grad is None
    assert sums.weight == 0


def test_sparse_and_dense_gradients_add_up() -> None:
    parameter = nn.Parameter(torch.zeros(3, 1))
    sparse = torch.sparse_coo_tensor(
        torch.tensor([[1]]), torch.tensor([[2.0]]), (3, 1), check_invariants=True
    )
    for gradients in ((sparse, sparse), (sparse, torch.ones(3, 1)), (torch.ones(3, 1), sparse)):
        sums = GradientAccumulator()
        for gradient in gradients:
            parameter.grad = gradient
            sums.add([parameter], 1.0)
        sums.fold()
        assert parameter.grad is not None
        expected = sum(gradient.to_dense() for gradient in gradients) / 2
        torch.testing.assert_close(parameter.grad.to_dense(), expected)


def test_clear_drops_the_window() -> None:
    parameter = nn.Parameter(torch.zeros(1))
    sums = GradientAccumulator()
    parameter.grad = torch.ones(1)
    sums.add([parameter], 1.0)
    sums.clear()
    parameter.grad = torch.full((1,), 4.0)
    sums.add([parameter], 2.0)
    sums.fold()
    assert parameter.grad.item() == 4.0
