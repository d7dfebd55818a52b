"""Accumulation over n batches must equal one process with batches n times as large."""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from xl.configs.errors import XlError

from ...pool import Ranks
from .gradient_harness import accumulated, compare, data, loader, network, sgd, train, values


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("every", [2, 3, 10])
def test_equals_a_larger_batch(ranks: Ranks, size: int, every: int) -> None:
    """22 rows in batches of 4: the last batch and the last window are short (P60, P61)."""
    exchanges = compare(ranks, size, train, every)
    windows = {2: 3, 3: 2, 10: 1}[every] * 3
    assert exchanges == [windows if size > 1 else 0] * size, "gradients travel once for each window"


def test_evaluation_between_batches_does_not_count(ranks: Ranks) -> None:
    """A loader left by break, its iterator kept, must not turn batches into steps (P62)."""

    def script(batch: int) -> list[float]:
        torch.set_default_dtype(torch.float64)
        model = network()
        optimizer = sgd(list(model.parameters()))
        kept: list[Iterator[object]] = []
        for _ in range(2):
            for x, y in loader(batch):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                kept.append(iter(loader(11)))
                with torch.no_grad():
                    for images, _ in kept[-1]:  # type: ignore[attr-defined]
                        model(images)
                        break
        return values(model)

    compare(ranks, 2, script)


def zipped(batch: int, rows: int) -> list[float]:
    torch.set_default_dtype(torch.float64)
    model = network()
    optimizer = sgd(list(model.parameters()))
    for _ in range(2):
        for (x, y), (z, _) in zip(loader(batch, rows), loader(2 * batch, 130), strict=False):
            optimizer.zero_grad()
            (nn.functional.cross_entropy(model(x), y) + 0 * model(z).sum()).backward()
            optimizer.step()
    return values(model)


def test_loaders_in_lockstep_end_with_the_shorter(ranks: Ranks) -> None:
    compare(ranks, 2, partial(zipped, rows=28))


def test_loaders_in_changing_proportion_are_refused(ranks: Ranks) -> None:
    with pytest.raises(XlError, match="changing proportions"):
        ranks(2, accumulated, partial(zipped, rows=22), 3, 4)


def test_loaders_in_loaders(ranks: Ranks) -> None:
    """The last batch of the outer one must not close a window of the inner one."""

    def script(batch: int) -> list[float]:
        torch.set_default_dtype(torch.float64)
        model = network()
        optimizer = sgd(list(model.parameters()))
        for (task,) in DataLoader(TensorDataset(torch.tensor([1.0, 2.0, 3.0]))):
            for x, y in loader(batch):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x * task), y).backward()
                optimizer.step()
        return values(model)

    compare(ranks, 2, script)


def test_batches_that_the_script_gathers_itself(ranks: Ranks) -> None:
    """What is in .grad at step() counts as one batch: two of 4 rows by the script, three of those by xl."""

    def script(batch: int) -> list[float]:
        torch.set_default_dtype(torch.float64)
        model = network()
        optimizer = sgd(list(model.parameters()))
        each = 4 if batch == 8 else 24
        for step, (x, y) in enumerate(loader(each, 48)):
            parts = 2 if each == 4 else 1
            (nn.functional.cross_entropy(model(x), y) / parts).backward()
            if (step + 1) % parts == 0:
                optimizer.step()
                optimizer.zero_grad()
        return values(model)

    compare(ranks, 2, script, every=3, batch=8)


def test_without_a_loader_every_nth_step_is_real(ranks: Ranks) -> None:
    def script(batch: int) -> list[float]:
        torch.set_default_dtype(torch.float64)
        model = network()
        optimizer = sgd(list(model.parameters()))
        x, y = data(24)
        for start in range(0, 24, batch):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[start : start + batch]), y[start : start + batch]).backward()
            optimizer.step()
        return values(model)

    compare(ranks, 2, script)


def two_optimizers(batch: int) -> None:
    first, second = network(), network(3)
    optimizers = [sgd(list(model.parameters())) for model in (first, second)]
    for x, y in loader(batch):
        for optimizer in optimizers:
            optimizer.zero_grad()
        nn.functional.cross_entropy(second(first(x)), y).backward()
        for optimizer in optimizers:
            optimizer.step()


def changed_gradients(batch: int) -> None:
    model = network()
    optimizer = sgd(list(model.parameters()))
    for x, y in loader(batch):
        nn.functional.cross_entropy(model(x), y).backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.clamp_(-0.01, 0.01)
        optimizer.step()


def with_closure(batch: int) -> None:
    model = network()
    optimizer = torch.optim.LBFGS(model.parameters())

    def closure() -> float:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(data()[0]), data()[1])
        loss.backward()
        return loss.item()

    optimizer.step(closure)


def own_scaler(batch: int) -> None:
    torch.amp.GradScaler("cpu")


@pytest.mark.parametrize(
    ("script", "what"),
    [
        (two_optimizers, "second step of an optimizer within one batch"),
        (changed_gradients, "changes gradients before SGD.step"),
        (with_closure, r"LBFGS.step\(closure\) is not possible"),
        (own_scaler, "makes a GradScaler"),
    ],
)
def test_what_cannot_be_accumulated_is_refused(
    ranks: Ranks, script: Callable[[int], None], what: str
) -> None:
    with pytest.raises(XlError, match=what) as caught:
        ranks(2, accumulated, script, 3, 4)
    assert "--gradient-accumulation-steps 1" in caught.value.fix


def test_nothing_is_refused_without_accumulation(ranks: Ranks) -> None:
    for script in (two_optimizers, changed_gradients, with_closure, own_scaler):
        ranks(2, accumulated, script, 1, 4)
