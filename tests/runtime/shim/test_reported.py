"""Faults that were found by trying to break the shim; each program must give the numbers of one process."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportFunctionMemberAccess=false, reportUnknownParameterType=false
# pyright: reportCallIssue=false, reportArgumentType=false, reportOptionalSubscript=false
# (torch takes iterators where its annotations do not)

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.checkpoint import checkpoint

from xl.configs.errors import XlError

from ...pool import Ranks
from .harness import plain


class Net(nn.Module):
    """A linear layer, and what a program does with its output."""

    def __init__(self, after: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.l = nn.Linear(4, 4).double()
        self.after = after

    def forward(self, x: Any, *more: Any) -> Any:
        return self.l(x) if self.after is None else self.after(self, x, *more)


def batch(number: int = 0, rows: int = 7) -> Tensor:
    return torch.randn(rows, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(number))


def gradients_of_a_generator() -> list[float]:
    model = Net()
    found = torch.autograd.grad(model(batch()).pow(2).mean(), model.parameters())
    found += torch.autograd.grad((value.mean() for value in [model(batch(1))]), list(model.parameters()))
    return [gradient.abs().sum().item() for gradient in found]


def dict_that_is_written() -> list[float]:
    def after(model: Net, given: dict[str, Tensor]) -> Tensor:
        given["f"] = model.l(given["x"])
        return given["f"].mean()

    model, given = Net(after), {"x": batch()}
    return [model(given).item(), *given["f"].flatten().tolist()]


def list_that_grows() -> list[float]:
    def after(model: Net, x: Tensor, log: list[Any]) -> Tensor:
        log.append(1.0)
        return model.l(x) * len(log)

    model: Net = Net(after)
    log: list[Any] = []
    return [model(batch(step), log).pow(2).mean().item() for step in range(3)] + log


def frozen_later() -> list[float]:
    def after(model: Net, x: Tensor) -> Tensor:
        y = model.l(x)
        return y if model.l.weight.requires_grad else y - y.mean(0)

    return over_steps(after, lambda model: model.l.weight.requires_grad_(False))


def argument_needs_a_gradient() -> list[float]:
    def after(model: Net, x: Tensor) -> Tensor:
        y = model.l(x)
        return y - y.mean(0) if x.requires_grad else y

    model = Net(after)
    return [model(x).abs().sum().item() for x in (batch(), batch(), batch().requires_grad_())]


def default_type() -> list[float]:
    def after(model: Net, x: Tensor) -> Tensor:
        y = model.l(x)
        return y if torch.get_default_dtype() == torch.float32 else y - y.mean(0)

    try:
        return over_steps(after, lambda _: torch.set_default_dtype(torch.float64))
    finally:
        torch.set_default_dtype(torch.float32)


def mixing(y: Tensor) -> Tensor:
    return y - y.mean(0) if mixing.on else y


def attribute_of_a_function() -> list[float]:
    def after(model: Net, x: Tensor) -> Tensor:
        return mixing(model.l(x))

    mixing.on = False
    return over_steps(after, lambda _: setattr(mixing, "on", True))


def default_of_an_argument() -> list[float]:
    def after(model: Net, x: Tensor, *, kept: list[int] = [0]) -> Tensor:  # noqa: B006
        y = model.l(x)
        return y - y.mean(0) if kept[0] else y

    def change(_: Net) -> None:
        after.__kwdefaults__["kept"][0] = 1

    return over_steps(after, change)


def over_steps(after: Callable[..., Tensor], change: Callable[[Net], object]) -> list[float]:
    """What a module gives before and after `change`."""
    model = Net(after)
    found = [model(batch(step)).abs().sum().item() for step in range(2)]
    change(model)
    return found + [model(batch(step)).abs().sum().item() for step in range(2)]


def batch_norm_held_outside() -> list[float]:
    norm = nn.BatchNorm1d(4, momentum=None).double()

    def after(model: Net, x: Tensor) -> Tensor:
        return model.l(x) - norm(x)

    model = Net(after)
    found = [model(batch(step)).abs().sum().item() for step in range(3)]
    assert norm.num_batches_tracked is not None
    assert norm.running_mean is not None
    return [*found, norm.num_batches_tracked.item(), *norm.running_mean.tolist()]


def arrays_as_arguments() -> list[float]:
    def after(model: Net, x: Any, mask: Any = None) -> Tensor:
        y = model.l(torch.from_numpy(x) if isinstance(x, np.ndarray) else x)
        return y if mask is None else y * torch.from_numpy(mask)

    model = Net(after)
    found = [model(batch(step).numpy()).sum().item() for step in range(3)]
    return found + [model(batch(step), np.ones(4)).sum().item() for step in range(3)]


def packed_argument() -> list[float]:
    def after(model: Net, x: PackedSequence) -> Tensor:
        return model.l(x.data)

    model = Net(after)
    packed = [pack_sequence([batch(step, 3), batch(step, 2)]) for step in range(3)]
    return [model(sequences).sum().item() for sequences in packed]


def checkpoint_around_the_model() -> list[float]:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1)).double()
    found: list[float] = []
    for step in range(3):
        loss = checkpoint(model, batch(step), use_reentrant=False).pow(2).mean()
        loss.backward()
        found += [loss.item(), *(p.grad.sum().item() for p in model.parameters() if p.grad is not None)]
    return found


PROGRAMS = [
    gradients_of_a_generator, dict_that_is_written, list_that_grows, frozen_later, argument_needs_a_gradient,
    default_type, attribute_of_a_function, default_of_an_argument, batch_norm_held_outside,
    arrays_as_arguments, packed_argument, checkpoint_around_the_model,
]  # fmt: skip


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_numbers_of_one_process(ranks: Ranks, program: Callable[[], list[float]], size: int) -> None:
    alone = ranks(1, plain, program)[0].value
    for seen in ranks(size, plain, program):
        assert seen.value == pytest.approx(alone, rel=1e-9, abs=1e-12)


def steps_by_chance() -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(40):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        if os.urandom(1)[0] < 128:
            continue
        optimizer.step()


def test_a_step_that_only_some_processes_make_stops_the_run(ranks: Ranks) -> None:
    with pytest.raises(XlError, match="how often it has stepped"):
        ranks(2, plain, steps_by_chance)
