"""Accumulation over n batches under the shim must equal one process with batches n times as large."""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import cast

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import (
    CosineAnnealingWarmRestarts,
    LRScheduler,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)
from torch.utils.data import DataLoader, TensorDataset

from xl.configs.errors import XlError
from xl.runtime.collectives import Communicator

from ...pool import Ranks
from .gradient_harness import data, network, shim, values

Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
Schedule = Callable[[torch.optim.Optimizer], LRScheduler]


def loader(batch: int, rows: int = 22) -> DataLoader[tuple[Tensor, ...]]:
    return DataLoader(TensorDataset(*data(rows)), batch_size=batch)


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.3, momentum=0.9, weight_decay=1e-2)


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.05)


class Renamed(torch.optim.SGD):
    """A script's own optimizer, with a step of its own that calls its parent's."""

    def step(self, closure: object = None) -> None:
        super().step()
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.mul_(0.99)


def own(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return Renamed(parameters, lr=0.3)


def train(
    batch: int,
    make: Make = sgd,
    clip: str = "",
    per_batch: Schedule | None = None,
    per_epoch: Schedule | None = None,
    set_to_none: bool = True,
) -> list[float]:
    """A plain script."""
    torch.set_default_dtype(torch.float64)
    model = network()
    optimizer = make(list(model.parameters()))
    schedulers = [maker(optimizer) if maker else None for maker in (per_batch, per_epoch)]
    rates: list[float] = []
    for _ in range(3):
        for x, y in loader(batch):
            optimizer.zero_grad(set_to_none=set_to_none)
            nn.functional.cross_entropy(model(x), y).backward()
            if clip == "norm":
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            if clip == "value":
                torch.nn.utils.clip_grad.clip_grad_value_(model.parameters(), 0.02)
            optimizer.step()
            if schedulers[0] is not None:
                schedulers[0].step()
        if isinstance(schedulers[1], ReduceLROnPlateau):
            schedulers[1].step(1.0)
        elif schedulers[1] is not None:
            schedulers[1].step()
        rates.append(cast("float", optimizer.param_groups[0]["lr"]))
    return values(model) + rates


def accumulated(
    comm: Communicator, script: Callable[[int], object], every: int, batch: int
) -> tuple[object, int]:
    with shim(comm, accumulation=every) as side:
        result = script(batch)
        return result, 0 if side.reducer is None else side.reducer.traffic.exchanges


def compare(
    ranks: Ranks, size: int, script: Callable[[int], list[float]], every: int = 3, batch: int = 4
) -> list[int]:
    """Return how often each rank exchanged gradients."""

    def alone(comm: Communicator) -> list[float]:
        return script(batch * every)

    [expected] = ranks(1, alone)
    found = ranks(size, accumulated, script, every, batch)
    for result, _ in found:
        assert cast("list[float]", result) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    return [exchanges for _, exchanges in found]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("every", [2, 3, 10])
def test_equals_a_larger_batch(ranks: Ranks, size: int, every: int) -> None:
    """22 rows in batches of 4: the last batch and the last window are short (P60, P61)."""
    exchanges = compare(ranks, size, train, every)
    windows = {2: 3, 3: 2, 10: 1}[every] * 3
    assert exchanges == [windows if size > 1 else 0] * size, "gradients travel once for each window"


@pytest.mark.parametrize("clip", ["", "norm", "value"])
@pytest.mark.parametrize("make", [sgd, adamw, own])
def test_clipping_and_optimizers(ranks: Ranks, make: Make, clip: str) -> None:
    compare(ranks, 2, lambda batch: train(batch, make, clip, set_to_none=clip != "norm"))


SCHEDULES: dict[str, Schedule] = {
    "step": lambda optimizer: StepLR(optimizer, 2, 0.7),
    "one cycle": lambda optimizer: OneCycleLR(optimizer, 0.5, total_steps=7),
    "restarts": lambda optimizer: CosineAnnealingWarmRestarts(optimizer, 4),
    "plateau": lambda optimizer: ReduceLROnPlateau(optimizer, patience=0),
    "sequence": lambda optimizer: SequentialLR(
        optimizer, [StepLR(optimizer, 1, 0.5), StepLR(optimizer, 1, 0.8)], [2]
    ),
}


@pytest.mark.parametrize("name", [name for name in SCHEDULES if name != "plateau"])
def test_a_schedule_per_batch_follows_the_real_steps(ranks: Ranks, name: str) -> None:
    schedule = SCHEDULES[name]
    compare(ranks, 2, lambda batch: train(batch, per_batch=schedule))


@pytest.mark.parametrize("name", [name for name in SCHEDULES if name != "one cycle"])
def test_a_schedule_per_epoch_is_never_left_out(ranks: Ranks, name: str) -> None:
    schedule = SCHEDULES[name]
    compare(ranks, 2, lambda batch: train(batch, per_epoch=schedule))


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


def test_a_norm_to_print_is_the_same_on_all_ranks(ranks: Ranks) -> None:
    def script(batch: int) -> list[float]:
        torch.set_default_dtype(torch.float64)
        model = network()
        optimizer = sgd(list(model.parameters()))
        norms: list[float] = []
        for x, y in loader(batch):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1).item())
            optimizer.step()
        return norms

    [expected] = ranks(1, lambda comm: script(12))
    (first, _), (second, _) = ranks(2, accumulated, script, 3, 4)
    assert first == second
    assert [cast("list[float]", first)[place] for place in (2, 5)] == pytest.approx(expected, rel=1e-9)


def test_a_step_left_out_after_clipping_drops_the_window(ranks: Ranks) -> None:
    """As a script does that skips a batch whose norm is not finite."""

    def script(batch: int) -> list[float]:
        torch.set_default_dtype(torch.float64)
        model = network()
        optimizer = sgd(list(model.parameters()))
        for epoch in range(2):
            for x, y in loader(batch):
                optimizer.zero_grad()
                (nn.functional.cross_entropy(model(x), y) * (float("inf") if epoch == 0 else 1.0)).backward()
                if nn.utils.clip_grad_norm_(model.parameters(), 0.1).isfinite():
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
