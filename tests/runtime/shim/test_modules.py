"""Root calls: what is split and reported, and what is refused."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from xl.configs.errors import XlError
from xl.runtime.collectives import Communicator
from xl.runtime.shim.report import Report

from ...pool import Ranks
from .harness import plain
from .loops import digits, mlp, train


def reasons(report: Report) -> str:
    return "; ".join(report.full_calls)


def step(model: nn.Module, x: Tensor | None = None) -> list[float]:
    """One training step on twelve samples."""
    x = torch.randn(12, 6) if x is None else x
    out = cast("Tensor", model(x))
    loss = (out**2).mean()
    loss.backward()
    grads = [float(p.grad.sum()) for p in model.parameters() if p.grad is not None]
    return [loss.item(), *grads, *digits(model)]


def check_full(ranks: Ranks, script: Callable[[], list[float]], reason: str) -> None:
    """The numbers of one process, not split, with the reason given."""
    alone = ranks(1, plain, script)[0].value
    for seen in ranks(2, plain, script):
        assert seen.value == pytest.approx(alone, rel=1e-9)
        assert seen.report.share == 0
        assert reason in reasons(seen.report)


def test_a_hook_sees_the_whole_batch(ranks: Ranks) -> None:
    def script() -> list[float]:
        model, seen = mlp(6, 8, 3), list[float]()
        model[0].register_forward_hook(lambda *a: seen.append(a[2].shape[0]))
        return step(model) + seen

    check_full(ranks, script, "a hook on Linear")


def test_training_only_mixing_is_run_in_full(ranks: Ranks) -> None:
    def script() -> list[float]:
        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.body = mlp(6, 6)
                self.register_buffer("center", torch.zeros(6))

            def forward(self, x: Tensor) -> Tensor:
                h = self.body(x)
                if self.training:
                    self.center = 0.9 * self.center + 0.1 * h.detach().mean(0)
                return h - self.center

        model = Net()
        return step(model) + step(model)

    check_full(ranks, script, "updates center from the batch")


def test_computed_parameters(ranks: Ranks) -> None:
    def script() -> list[float]:
        model = nn.Linear(6, 3)
        scale = torch.ones((), requires_grad=True)
        parameters = {name: p * scale for name, p in model.named_parameters()}
        out = torch.func.functional_call(model, parameters, (torch.randn(12, 6),))
        out.pow(2).sum().backward()
        assert scale.grad is not None
        return [out.sum().item(), scale.grad.item()]

    check_full(ranks, script, "functional_call")


def test_lazy_parameters_then_split(ranks: Ranks) -> None:
    def script() -> list[float]:
        model = nn.Sequential(nn.LazyLinear(4), nn.Tanh())
        return step(model) + step(model)

    alone = ranks(1, plain, script)[0].value
    for seen in ranks(2, plain, script):
        assert seen.value == pytest.approx(alone, rel=1e-9)
        assert seen.report.share == 0.5


def test_calls_from_a_thread(ranks: Ranks) -> None:
    def script() -> list[float]:
        model, found = mlp(6, 8, 3), list[float]()

        def evaluate() -> None:
            with torch.no_grad():
                found.append(float(model(torch.ones(12, 6)).sum()))

        thread = threading.Thread(target=evaluate)
        thread.start()
        thread.join()
        return found

    check_full(ranks, script, "from a thread")


def test_settings_changed_by_the_script_are_tried_again(ranks: Ranks) -> None:
    def script() -> list[float]:
        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.body, self.mix = mlp(6, 6), False

            def forward(self, x: Tensor) -> Tensor:
                h = self.body(x)
                return h - h.mean(0) if self.mix else h

        model = Net()
        first = step(model)
        model.mix = True
        return first + step(model)

    alone = ranks(1, plain, script)[0].value
    for seen in ranks(2, plain, script):
        assert seen.value == pytest.approx(alone, rel=1e-9)
        assert seen.report.share == 0.5


def test_a_batch_smaller_than_the_job(ranks: Ranks) -> None:
    def script() -> list[float]:
        return step(mlp(6, 8, 3), torch.randn(2, 6))

    seen = ranks(3, plain, script)[0]
    assert seen.value == pytest.approx(ranks(1, plain, script)[0].value, rel=1e-9)
    assert "batch of 2 is smaller than the number of processes" in reasons(seen.report)


def test_buffers_that_come_out_differently(ranks: Ranks) -> None:
    """A write that no operator shows: the first split call finds it, puts it back and runs in full."""

    def script() -> list[float]:
        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.body = nn.Sequential(mlp(6, 6), nn.Dropout(0.5))
                self.register_buffer("rows", torch.zeros(1))
                MEMORY["rows"] = self.get_buffer("rows").numpy()

            def forward(self, x: Tensor) -> Tensor:
                if x.shape[0] > 5:  # not while it is tried on a few samples
                    MEMORY["rows"][0] = x.shape[0]
                return self.body(x)

        model = Net()
        return step(model, torch.randn(13, 6)) + step(model, torch.randn(13, 6))

    alone = ranks(1, plain, script)[0].value
    for seen in ranks(2, plain, script):
        assert seen.value == pytest.approx(alone, rel=1e-9)
        assert "its buffers came out differently" in reasons(seen.report)


MEMORY: dict[str, Any] = {}


def test_inputs_that_differ_between_processes(ranks: Ranks) -> None:
    def script() -> list[float]:
        x = torch.from_numpy(np.random.default_rng().normal(size=(12, 6)))
        return step(mlp(6, 8, 3), x)

    with pytest.raises(XlError, match="different inputs") as caught:
        ranks(2, plain, script)
    assert "default_rng(0)" in caught.value.fix
    assert "processes [1] differ from process 0" in caught.value.why


def test_exchanged_samples_are_different_inputs(ranks: Ranks) -> None:
    def script(comm: Communicator) -> object:
        def inner() -> list[float]:
            x = torch.randn(12, 6)
            return step(mlp(6, 8, 3), x.flip(0) if comm.rank else x)

        return plain(comm, inner)

    with pytest.raises(XlError, match="different inputs"):
        ranks(2, script)


def test_processes_at_different_calls(ranks: Ranks) -> None:
    def script(comm: Communicator) -> object:
        def inner() -> list[float]:
            model, x = mlp(6, 8, 3), torch.randn(12, 6)
            if comm.rank:
                return step(model, x)
            return [float(model(x).sum())]

        return plain(comm, inner)

    with pytest.raises(XlError, match="not at the same point"):
        ranks(2, script)


def test_a_metric_that_synchronises_when_it_sees_a_group(ranks: Ranks) -> None:
    def script() -> list[float]:
        right = [0.0]

        def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            logits = model(x)
            right[0] += float((logits.argmax(1) == y).sum())
            if dist.is_available() and dist.is_initialized():
                right[0] *= dist.get_world_size()
            return F.cross_entropy(logits, y)

        return train(mlp(6, 8, 3), loss_of) + right

    alone = ranks(1, plain, script)[0].value
    for seen in ranks(2, plain, script):
        assert seen.value == pytest.approx(alone, rel=1e-9)


def test_too_many_kinds_of_calls_end_in_full_runs(ranks: Ranks) -> None:
    def script() -> list[float]:
        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.body = mlp(6, 6)

            def forward(self, x: Tensor, time: float) -> Tensor:
                return self.body(x) * time

        model, x = Net(), torch.randn(12, 6)
        return [float(model(x, 0.01 * i).sum()) for i in range(70)]

    alone = ranks(1, plain, script)[0].value
    seen = ranks(2, plain, script)[0]
    assert seen.value == pytest.approx(alone, rel=1e-9)
    assert seen.report.probes == 64
    assert "too many different sizes or settings" in reasons(seen.report)


def test_lengths_are_trusted_after_a_few(ranks: Ranks) -> None:
    def script() -> list[float]:
        model = nn.Sequential(nn.Embedding(9, 6), nn.Linear(6, 6))
        return [float(model(torch.ones(12, n, dtype=torch.long)).sum()) for n in range(2, 40) if n != 12]

    seen = ranks(2, plain, script)[0]
    assert seen.report.share == 1
    assert seen.report.probes <= 4


def test_inference_mode(ranks: Ranks) -> None:
    def script() -> list[float]:
        model = mlp(6, 8, 3).eval()
        with torch.inference_mode():
            return [float(model(torch.randn(12, 6)).sum())]

    alone = ranks(1, plain, script)[0].value
    seen = ranks(2, plain, script)[0]
    assert seen.value == pytest.approx(alone, rel=1e-9)
    assert seen.report.share == 1
