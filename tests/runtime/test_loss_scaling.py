"""The loss scaler on its own: gradients come out unscaled, and the scale moves as GradScaler's does."""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import pytest
import torch
from torch import Tensor

from xl.runtime.collectives import Communicator
from xl.runtime.loss_scaling import LossScaler

from ..pool import Ranks


def backward(scaler: LossScaler, root: Tensor, gradient: Tensor | None = None) -> float:
    with scaler.backward():
        torch.autograd.backward([root], scaler.scaled_roots([root], [gradient]))
    return scaler.overflowed(None).item()


def test_gradients_are_true_and_only_the_graph_is_scaled() -> None:
    scaler = LossScaler(1024.0)
    x = torch.ones(3, requires_grad=True)
    inside: list[Tensor] = []
    scaler.watch([x, x])
    for step in range(2):  # the second adds to the first
        y = x * 2
        y.register_hook(inside.append)
        scaler.scale *= 2
        assert backward(scaler, y.sum()) == 0
        assert x.grad is not None
        assert x.grad.tolist() == [2.0 * (step + 1)] * 3
    assert [gradient[0].item() for gradient in inside] == [2048.0, 4096.0]


def test_roots_may_have_gradients_of_their_own() -> None:
    scaler = LossScaler()
    x = torch.ones(2, requires_grad=True)
    scaler.watch([x])
    backward(scaler, x * 3, torch.tensor([1.0, 2.0]))
    assert x.grad is not None
    assert x.grad.tolist() == [3.0, 6.0]


def test_other_backwards_are_left_alone() -> None:
    scaler = LossScaler()
    x = torch.ones(2, requires_grad=True)
    scaler.watch([x])
    (x * 3).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [3.0, 3.0]
    assert scaler.overflowed(None).item() == 0, "nothing was scaled"


def test_frozen_parameters_may_thaw() -> None:
    scaler = LossScaler()
    x = torch.ones(1)
    scaler.watch([x])
    assert not x.requires_grad
    x.requires_grad_(True)
    backward(scaler, x.sum())
    assert x.grad is not None
    assert x.grad.item() == 1.0


def test_sparse_gradients() -> None:
    scaler = LossScaler()
    words = torch.nn.Embedding(4, 2, sparse=True)
    scaler.watch(words.parameters())
    assert backward(scaler, words(torch.tensor([1, 1])).sum()) == 0
    assert words.weight.grad is not None
    assert words.weight.grad.to_dense()[1].tolist() == [2.0, 2.0]


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_overflow_of_one_rank_is_known_to_all(ranks: Ranks, value: float) -> None:
    def run(comm: Communicator, value: float) -> float:
        scaler = LossScaler()
        x = torch.ones(2, requires_grad=True)
        scaler.watch([x])
        with scaler.backward():
            root = (x * (value if comm.rank == 1 else 1.0)).sum()
            root.backward(scaler.scaled_roots([root], [None])[0])
        return scaler.overflowed(comm).item()

    assert ranks(3, run, value) == [1.0] * 3


def test_the_scale_moves_as_that_of_gradscaler() -> None:
    pattern = [False, False, True, False, False, False, False, True, True, False, False, False]
    ours = LossScaler(8.0, growth_interval=3)
    theirs = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)
    x = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([x], lr=0.0)
    for overflowed in pattern:
        optimizer.zero_grad()
        (theirs.scale(x.sum()) * (float("inf") if overflowed else 1.0)).backward()
        theirs.step(optimizer)
        theirs.update()
        ours.update(overflowed)
        assert ours.scale == theirs.get_scale()
