"""The exchanges between outside and inside, with first and second derivatives, against one process."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from xl.runtime.collectives import Communicator
from xl.runtime.shim.report import Report
from xl.runtime.shim.session import shares
from xl.runtime.shim.split import Part, combine, exchange_rows, gather, scatter, spread, total

from ...pool import Ranks

Round = Callable[[Tensor, Tensor, Part | None], Tensor]


def rows(x: Tensor, w: Tensor, part: Part | None) -> Tensor:
    """A layer on each sample: x (B, 3), w (3, 2)."""
    if part is None:
        return torch.tanh(x @ w)
    return gather(torch.tanh(scatter(x, 0, part) @ w), 0, part)


def several_entries(x: Tensor, w: Tensor, part: Part | None) -> Tensor:
    """Two output entries for each sample, along dim 1."""
    inside = x if part is None else scatter(x, 0, part)
    y = torch.stack([inside @ w, (inside @ w) ** 2], 1).reshape(-1, 2).T
    return y if part is None else gather(y, 1, part)


def mean(x: Tensor, w: Tensor, part: Part | None) -> Tensor:
    if part is None:
        return torch.tanh(x @ w).mean() ** 2
    return combine(torch.tanh(scatter(x, 0, part) @ w).mean(), part.fraction, part) ** 2


def added(x: Tensor, w: Tensor, part: Part | None) -> Tensor:
    if part is None:
        return torch.tanh(x @ w).sum() ** 2
    return combine(torch.tanh(scatter(x, 0, part) @ w).sum(), 1.0, part) ** 2


def shared(x: Tensor, w: Tensor, part: Part | None) -> Tensor:
    """What all samples share is computed outside."""
    style = w.exp().sum(0)
    if part is None:
        return torch.tanh(x @ w) * style
    return gather(torch.tanh(scatter(x, 0, part) @ w) * spread(style, part), 0, part)


def centred(x: Tensor, w: Tensor, part: Part | None) -> Tensor:
    """A statistic of the whole batch, used by every sample."""
    if part is None:
        h = x @ w
        return torch.tanh(h - h.sum(0) / len(x))
    h = scatter(x, 0, part) @ w
    return gather(torch.tanh(h - total(h.sum(0), part) / part.total), 0, part)


def script(function: Round, part: Part | None, average: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """Values, first and second derivatives by x and w; gradients of a parameter are averaged over ranks."""
    torch.manual_seed(0)
    x = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    w = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    factor = torch.rand(function(x, w, part).shape, dtype=torch.float64)
    out = function(x, w, part)
    (slope,) = torch.autograd.grad((out * factor).sum(), x, create_graph=True)
    loss = (slope**2).sum() + (out**3).sum()
    loss.backward()
    assert x.grad is not None
    assert w.grad is not None
    return [out.detach(), slope.detach(), x.grad, average(w.grad)]


def on_ranks(comm: Communicator, function: Round) -> list[Tensor]:
    part = Part(comm, tuple(shares(7, comm.size)), Report(comm.size))
    return script(function, part, lambda grad: comm.all_reduce(grad) / comm.size)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("function", [rows, several_entries, mean, added, shared, centred])
def test_values_and_derivatives(ranks: Ranks, function: Round, size: int) -> None:
    expected = script(function, None, lambda grad: grad)
    for found in ranks(size, on_ranks, function):
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


def exchanged(comm: Communicator, dtype: torch.dtype) -> bool:
    part = Part(comm, tuple(shares(5, comm.size)), Report(comm.size))
    whole = (torch.arange(30).view(2, 5, 3) % 7).to(dtype)
    local = whole[:, part.before : part.before + part.here]
    return torch.equal(exchange_rows(local, 1, part).float(), whole.float())


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.float16])
def test_every_type_is_exchanged(ranks: Ranks, dtype: torch.dtype) -> None:
    assert ranks(3, exchanged, dtype) == [True] * 3


def exchanged_complex(comm: Communicator) -> bool:
    part = Part(comm, tuple(shares(5, comm.size)), Report(comm.size))
    whole = torch.complex(torch.arange(5.0), -torch.arange(5.0))
    return torch.equal(exchange_rows(whole[part.before : part.before + part.here], 0, part), whole)


def test_complex(ranks: Ranks) -> None:
    assert ranks(2, exchanged_complex) == [True] * 2
