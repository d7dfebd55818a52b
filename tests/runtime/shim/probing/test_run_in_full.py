"""What must be run in full: samples are mixed, state is kept, the world outside is touched."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportPrivateUsage=false

from __future__ import annotations

import contextlib
import logging
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo  # pyright: ignore  # the first watched operator imports it, and it sets a variable
import torch.utils.checkpoint
from torch import Tensor
from torch.nn import functional as F

from .bodies import B, Body, decide, why


def subtract_mean(body: Body, h: Tensor) -> Tensor:
    return h - h.mean(0) if body.training else h


def weak_mean(body: Body, h: Tensor) -> Tensor:
    return h + 1e-9 * h.mean(0)  # smaller than any tolerance


def codebook(body: Body, h: Tensor) -> Tensor:
    if body.training:
        body.memory.lerp_(h.detach().mean(0), 0.1)  # type: ignore[operator]
    return h


def codebook_in_numpy(body: Body, h: Tensor) -> Tensor:
    body.memory = torch.from_numpy(h.detach().numpy().mean(0))
    return h


def balance(body: Body, h: Tensor) -> tuple[Tensor, Tensor]:
    share = h.softmax(1).mean(0)
    return h, (share * share).sum() * 6


def queue(body: Body, h: Tensor) -> Tensor:
    body.seen = [*body.seen[-3:], h.detach()]
    return h


def queue_in_place(body: Body, h: Tensor) -> Tensor:
    body.seen.append(h.detach())
    return h


def counter(body: Body, h: Tensor) -> Tensor:
    body.calls += 1
    return h


def counted_samples(body: Body, h: Tensor) -> Tensor:
    body.memory.add_(len(h))  # type: ignore[operator]
    return h


def batch_attention(body: Body, h: Tensor) -> Tensor:
    return (h @ h.T).softmax(1) @ h


def shuffled(body: Body, h: Tensor) -> Tensor:
    return h + 0.1 * h[torch.randperm(len(h))]


def python_noise(body: Body, h: Tensor) -> Tensor:
    return h + random.random()


def numpy_noise(body: Body, h: Tensor) -> Tensor:
    return h + float(np.random.rand())


def layer_drop(body: Body, h: Tensor) -> Tensor:
    return h if torch.rand(()) < 0.5 else body.linear(h)


def branch(body: Body, h: Tensor) -> Tensor:
    return h * 2 if h.mean() > 100 else h


def masked_mean(body: Body, h: Tensor) -> Tensor:
    mask = (h.detach() < 100).to(h)  # all ones today
    return (h * mask).sum() / mask.sum()


def selected_mean(body: Body, h: Tensor) -> Tensor:
    return h[h.detach() < 100].mean()


def clamped_mean(body: Body, h: Tensor) -> Tensor:
    return h.mean().clamp(min=-100)


def raw_mean_loss(body: Body, h: Tensor) -> Tensor:
    target = torch.zeros_like(h[:, 0], dtype=torch.long)
    return torch.ops.aten.nll_loss(h, target, None, 1, -100)


def maximum(body: Body, h: Tensor) -> tuple[Tensor, Tensor]:
    return h, h.max()


class ClippedGradient(torch.autograd.Function):
    """Its backward is not linear: N times the gradient, clipped, is not N times the clipped gradient."""

    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        return h.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0].clamp(-1e-3, 1e-3)


def clipped_gradient(body: Body, h: Tensor) -> Tensor:
    return ClippedGradient.apply(h) * 2  # pyright: ignore


def hooked(body: Body, h: Tensor) -> Tensor:
    h.register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3))
    return h


def retained(body: Body, h: Tensor) -> Tensor:
    h.retain_grad()
    return h


def hooked_weight(body: Body, h: Tensor) -> Tensor:
    weight = torch.ones(6, requires_grad=True).to(h) * 1
    weight.register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3))
    return h * weight


TEMPERATURE = torch.tensor(1.5, requires_grad=True)


def foreign_leaf(body: Body, h: Tensor) -> Tensor:
    return h / TEMPERATURE.to(h)


def shuffled_by_sorting(body: Body, h: Tensor) -> Tensor:
    return h[torch.rand(len(h)).argsort()]


def random_branch(body: Body, h: Tensor) -> Tensor:
    return h.flip(0) if torch.rand(1).item() < 0.4 else h


def swap_noise(body: Body, h: Tensor) -> Tensor:
    keep = torch.bernoulli(torch.full_like(h, 0.7))
    return keep * h + (1 - keep) * h.roll(1, 0)


def straight_through(body: Body, h: Tensor) -> Tensor:
    soft = h.softmax(0)
    return h.detach() + soft - soft.detach()


def hooked_node(body: Body, h: Tensor) -> Tensor:
    assert h.grad_fn is not None
    h.grad_fn.register_prehook(lambda grads: tuple(g.clamp(-0.1, 0.1) for g in grads))
    return h


def clipped_in_checkpoint(body: Body, h: Tensor) -> Tensor:
    return torch.utils.checkpoint.checkpoint(ClippedGradient.apply, h, use_reentrant=True)  # pyright: ignore


def warm_up(body: Body, h: Tensor) -> Tensor:
    return h - h.mean(0) if float(body.get_buffer("memory").sum()) > 100 else h


def gate(body: Body, h: Tensor) -> Tensor:
    return h + body.get_buffer("memory").mean() * h.softmax(0)


LOSSES: list[float] = []
CALLS = {"forward": 0}


def counts_globally(body: Body, h: Tensor) -> Tensor:
    CALLS["forward"] += 1
    return h


def keeps_globally(body: Body, h: Tensor) -> Tensor:
    LOSSES.append(h.shape[0])
    return h


def counts_on_the_class(body: Body, h: Tensor) -> Tensor:
    Body.total += 1
    return h


def draws_globally(body: Body, h: Tensor) -> Tensor:
    return h + torch.from_numpy(GENERATOR.normal(size=tuple(h.shape))).to(h.dtype)


GENERATOR = np.random.default_rng(0)


def prints(body: Body, h: Tensor) -> Tensor:
    print(h.shape)
    return h


def logs(body: Body, h: Tensor) -> Tensor:
    LOGGER.warning("%s", h.shape)
    return h


LOGGER = logging.getLogger("test_probe")


def writes(body: Body, h: Tensor) -> Tensor:
    with open("forward.log", "a") as file:
        file.write("called")
    return h


def swallows(body: Body, h: Tensor) -> Tensor:
    with contextlib.suppress(Exception):
        Path("forward.log").write_text("called")
    return h


def starts_a_program(body: Body, h: Tensor) -> Tensor:
    subprocess.run(["touch", "forward.log"], check=True)
    return h


def normalised_weights(body: Body, h: Tensor) -> Tensor:
    weight = F.batch_norm(body.linear.weight, None, None, training=True)
    return h @ weight


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        (straight_through, "gradient of a sample depends on other samples"),
        (hooked_node, "looks at gradients inside forward"),
        (clipped_in_checkpoint, "backward goes through ClippedGradient"),
        (layer_drop, "takes a decision by a random number"),
        (warm_up, "from a parameter or a buffer"),
        (gate, "not computed sample by sample"),
        (counts_globally, "changes CALLS"),
        (keeps_globally, "changes LOSSES"),
        (counts_on_the_class, "changes total"),
        (draws_globally, "a stream of its own, GENERATOR"),
        (prints, "prints something"),
        (logs, "prints something"),
        (writes, "writes the file"),
        (swallows, "writes the file"),
        (starts_a_program, "starts another program"),
        (normalised_weights, "something that all samples share"),
        (hooked_weight, "looks at gradients inside forward"),
        (foreign_leaf, "needs a gradient and is none of its parameters"),
        (shuffled_by_sorting, "orders samples by random numbers"),
        (random_branch, "takes a decision by a random number"),
        (swap_noise, "not computed sample by sample"),
        (clipped_gradient, "backward goes through ClippedGradient"),
        (hooked, "looks at gradients inside forward"),
        (retained, "looks at gradients inside forward"),
        (subtract_mean, "samples are mixed"),
        (weak_mean, "samples are mixed"),
        (codebook, "updates memory from the batch"),
        (codebook_in_numpy, "takes values of the batch out of torch"),
        (balance, "samples are mixed"),
        (queue, "values of the batch in seen"),
        (queue_in_place, "values of the batch in seen"),
        (counter, "changes calls"),
        (counted_samples, "updates memory by the number of samples"),
        (batch_attention, "not computed sample by sample"),
        (shuffled, "cannot be divided"),
        (python_noise, "Python's or numpy's"),
        (numpy_noise, "Python's or numpy's"),
        (branch, "takes a decision"),
        (masked_mean, "samples are mixed"),
        (selected_mean, "selects by their values"),
        (clamped_mean, "samples are mixed: clamp"),
        (raw_mean_loss, "samples are mixed: nll_loss"),
        (maximum, "samples are mixed: max"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_run_in_full(
    after: Callable[..., object],
    reason: str,
    dtype: torch.dtype,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    handler = logging.StreamHandler(sys.stderr)
    LOGGER.addHandler(handler)
    assert reason in why(decide(Body(after).to(dtype), torch.randn(B, 6, dtype=dtype)))
    LOGGER.removeHandler(handler)
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")
    assert (CALLS, LOSSES, Body.total) == ({"forward": 0}, [], 0)


def test_a_shown_stream_is_as_before() -> None:
    before = sys.stdout, vars(sys.__stdout__).copy()
    decide(Body(prints), torch.randn(B, 6))
    assert (sys.stdout, vars(sys.__stdout__)) == before
