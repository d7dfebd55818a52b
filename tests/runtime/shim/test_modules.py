"""Root calls: what is split and reported, and what is refused."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
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


class Body(nn.Module):
    """Two layers and what a test does with their output."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.body(x))

    def after(self, h: Tensor) -> Tensor:
        return h


def check_equal(ranks: Ranks, script: Callable[[], list[float]], share: float, reason: str = "") -> None:
    alone = ranks(1, plain, script)[0].value
    for seen in ranks(2, plain, script):
        assert seen.value == pytest.approx(alone, rel=1e-9)
        assert seen.report.share == pytest.approx(share), reasons(seen.report)
        assert reason in reasons(seen.report)


@pytest.mark.parametrize("size", [17, 23, 40])
def test_another_way_for_many_samples(ranks: Ranks, size: int) -> None:
    """A module is tried on few samples; what it does with more is tried at the real size."""

    def script() -> list[float]:
        class Net(Body):
            def after(self, h: Tensor) -> Tensor:
                return h - h.mean(0) if len(h) > 16 else h

        return step(Net(), torch.randn(size, 6))

    check_equal(ranks, script, 0, "a whole batch is not that of its parts")


def test_batch_norm_of_ghost_batches(ranks: Ranks) -> None:
    def script() -> list[float]:
        class Net(Body):
            def __init__(self) -> None:
                super().__init__()
                self.norm = nn.BatchNorm1d(6)

            def after(self, h: Tensor) -> Tensor:
                return torch.cat([self.norm(part) for part in h.split(16)])

        model = Net()
        return step(model, torch.randn(40, 6)) + step(model, torch.randn(40, 6))

    check_equal(ranks, script, 0, "different conclusions")


def test_sizes_between_those_tried_are_trusted(ranks: Ranks) -> None:
    def script() -> list[float]:
        model = mlp(6, 8, 3)
        return [float(model(torch.randn(n, 6)).sum()) for n in (*range(4, 44, 5), 17, 18, 22, 39, 90)]

    check_equal(ranks, script, 1)


def test_a_share_of_one_row(ranks: Ranks) -> None:
    def script() -> list[float]:
        class Net(Body):
            def after(self, h: Tensor) -> Tensor:
                return h.squeeze()

        model = Net()
        return step(model, torch.randn(2, 6)) + step(model, torch.randn(8, 6))

    check_equal(ranks, script, 0.5)


PHASES: dict[str, Any] = {"mix": False}


@pytest.mark.parametrize("where", ["object", "global", "closure", "class", "negative"])
def test_settings_outside_of_the_module(ranks: Ranks, where: str) -> None:
    def script() -> list[float]:
        PHASES["mix"], captured = False, {"mix": False}

        class Net(Body):
            mix = False

            def __init__(self) -> None:
                super().__init__()
                self.settings, self.phase = SimpleNamespace(mix=False), -1

            def after(self, h: Tensor) -> Tensor:
                mix = {
                    "object": self.settings.mix,
                    "global": PHASES["mix"],
                    "closure": captured["mix"],
                    "class": type(self).mix,
                    "negative": self.phase == -2,
                }
                return h - h.mean(0) if mix[where] else h

        model = Net()
        first = step(model)
        model.settings.mix = where == "object"
        PHASES["mix"] = where == "global"
        captured["mix"] = where == "closure"
        Net.mix = where == "class"
        model.phase = -2 if where == "negative" else -1
        found = first + step(model)
        PHASES["mix"] = False
        return found

    check_equal(ranks, script, 0.5, "samples are mixed")


def test_outputs_that_are_one_tensor_stay_one(ranks: Ranks) -> None:
    def script() -> list[float]:
        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.body = mlp(6, 6)

            def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
                h = self.body(x)
                return h, h, x

        model, x = Net(), torch.randn(12, 6)
        with torch.no_grad():
            first, second, given = model(x)
        first.mul_(2)
        given.add_(1)
        return [float(second.sum()), float(x.sum())]

    check_equal(ranks, script, 1)


def test_a_failing_call_tells_its_own_reason_only(ranks: Ranks, capfd: pytest.CaptureFixture[str]) -> None:
    def script() -> list[float]:
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            mlp(6, 8, 3)(torch.randn(12, 5))
        return [1.0]

    check_equal(ranks, script, 0)
    assert "runs in full" not in capfd.readouterr().err
