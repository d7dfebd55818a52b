"""What the probe decides about modules, in the mode of the call, and that it leaves no trace."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportPrivateUsage=false

from __future__ import annotations

import collections
import dataclasses
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch._dynamo  # pyright: ignore  # the first watched operator imports it, and it sets a variable
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence

from xl.configs.worker import WorkerSettings
from xl.runtime.shim import losses, norms, region
from xl.runtime.shim.probing.decision import Full, Output, Split
from xl.runtime.shim.probing.probe import probe
from xl.runtime.shim.probing.snapshot import Snapshot
from xl.runtime.shim.report import Report
from xl.runtime.shim.session import Session
from xl.runtime.shim.trees import flatten

B = 12


@pytest.fixture(autouse=True)
def _patched() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    def connect(_: torch.device) -> Any:
        raise AssertionError("a probe talks to nobody")

    session = Session(WorkerSettings("test", "plain", world_size=2), connect, Report(2))
    for part in (losses, norms, region):
        part.install(session)
    torch.manual_seed(0)
    yield
    session.close()


def decide(module: nn.Module, *args: object, **kwargs: object) -> Split | Full:
    """Probe a call and check that module, streams and arguments are as before."""
    tree = (args, kwargs)
    before = Snapshot(module)
    state = {key: value.clone() for key, value in module.state_dict().items()}
    storages = [parameter.data_ptr() for parameter in module.parameters()]
    streams = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tobytes()  # pyright: ignore
    arguments = [leaf.clone() for leaf in flatten(tree)[0] if isinstance(leaf, Tensor)]
    found = probe(nn.Module.__call__, module, tree, flatten(tree)[0])
    assert before.changed() == []
    assert all(torch.equal(value, module.state_dict()[key]) for key, value in state.items())
    assert storages == [parameter.data_ptr() for parameter in module.parameters()]
    assert torch.equal(streams[0], torch.get_rng_state())
    assert streams[1:] == (random.getstate(), np.random.get_state()[1].tobytes())  # pyright: ignore
    now = [leaf for leaf in flatten(tree)[0] if isinstance(leaf, Tensor)]
    assert all(torch.equal(a, b) for a, b in zip(arguments, now, strict=True))
    return found


class Body(nn.Module):
    """A linear layer and what a test adds to its output."""

    def __init__(self, after: Callable[..., object] | None = None, size: int = 6) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)
        self.register_buffer("memory", torch.zeros(size))
        self.seen: list[object] = []
        self.calls = 0
        self.after = after

    def forward(self, x: Tensor, *more: object) -> object:
        hidden = self.linear(x)
        return hidden if self.after is None else self.after(self, hidden, *more)


def rows(split: Split | Full) -> list[tuple[str, int]]:
    assert isinstance(split, Split), split
    return [(output.how, output.dim) for output in split.outputs]


def why(full: Split | Full) -> str:
    assert isinstance(full, Full), full
    return full.reason


# What must be run in full: the samples are mixed, in training only.


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


def in_place(body: Body, h: Tensor) -> Tensor:
    return h


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


@pytest.mark.parametrize(
    ("after", "reason"),
    [
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
        (counter, "changes the attribute calls"),
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
def test_run_in_full(after: Callable[..., object], reason: str, dtype: torch.dtype) -> None:
    assert reason in why(decide(Body(after).to(dtype), torch.randn(B, 6, dtype=dtype)))


def test_faint_mixing() -> None:
    class Scaled(Body):
        def __init__(self) -> None:
            super().__init__(lambda _, h: h)
            self.gamma = nn.Parameter(torch.full((6,), 1e-5))

        def forward(self, x: Tensor, *_: object) -> Any:
            return x + self.gamma * ((x @ x.T).softmax(-1) @ x)

    assert isinstance(decide(Scaled(), torch.randn(B, 6)), Full)


def test_a_shared_argument_that_needs_a_gradient() -> None:
    class Prompted(Body):
        def forward(self, x: Tensor, *prompt: Tensor) -> Any:  # pyright: ignore
            return super().forward(x + prompt[0])

    module = Prompted(lambda _, h: h)
    prompt = torch.zeros(6, requires_grad=True)
    assert "needs a gradient" in why(decide(module, torch.randn(B, 6), prompt))
    assert isinstance(decide(module, torch.randn(B, 6), torch.zeros(6)), Split)


@pytest.mark.parametrize("stream", [random.Random(0), np.random.default_rng(0), itertools.count()])
def test_streams_of_its_own(stream: object) -> None:
    module = Body(lambda _, h: h)
    module.stream = stream  # pyright: ignore
    assert "a stream of its own, stream" in why(decide(module, torch.randn(B, 6)))


def test_gradients_scaled_by_counts() -> None:
    module = nn.Embedding(5, 3, scale_grad_by_freq=True)
    assert "scales gradients by counts" in why(decide(module, torch.randint(0, 5, (B,))))


def test_mixing_only_in_training_is_split_in_evaluation() -> None:
    module = Body(subtract_mean)
    assert isinstance(decide(module, torch.randn(B, 6)), Full)
    with torch.no_grad():
        assert rows(decide(module.eval(), torch.randn(B, 6))) == [("rows", 0)]


def test_mixing_behind_a_parameter_that_is_still_zero() -> None:
    class Gated(Body):
        def __init__(self) -> None:
            super().__init__(lambda body, h: h + body.gate * ((h @ h.T).softmax(1) @ h))
            self.gate = nn.Parameter(torch.zeros(6))

    assert isinstance(decide(Gated(), torch.randn(B, 6)), Full)


def test_inference_mode() -> None:
    module = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)).eval()
    with torch.inference_mode():
        x = module(torch.randn(B, 6))
        assert rows(decide(module, x)) == [("rows", 0)]


def test_changed_arguments() -> None:
    class Net(Body):
        def forward(self, x: Tensor, *more: object) -> object:
            return self.linear(x.mul_(2))

    assert "arguments in place" in why(decide(Net(), torch.randn(B, 6)))


# What can be split, and how.


def test_plain_layers() -> None:
    module = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.BatchNorm2d(4), nn.GELU(), nn.Dropout(0.5), nn.Flatten(),
        nn.LazyLinear(3), nn.Softmax(1),
    )  # fmt: skip
    x = torch.randn(B, 2, 6, 6)
    module(x)
    assert rows(decide(module, x)) == [("rows", 0)]
    assert rows(decide(module.eval(), x)) == [("rows", 0)]


def test_losses_inside() -> None:
    def mean(body: Body, h: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {"loss": F.cross_entropy(h, y, ignore_index=2), "logits": h}

    y = torch.randint(6, (B,))
    assert rows(decide(Body(mean), torch.randn(B, 6), y)) == [("mean", 0), ("rows", 0)]
    total = Body(lambda _, h: (h**2).sum())
    assert rows(decide(total, torch.randn(B, 6))) == [("sum", 0)]
    mse = Body(lambda _, h, y: F.mse_loss(h, y) + 0.1 * F.smooth_l1_loss(h, y))
    assert rows(decide(mse, torch.randn(B, 6), torch.randn(B, 6))) == [("mean", 0)]


def test_a_zero_loss_is_decided_later() -> None:
    found = decide(Body(lambda _, h: (0 * h).sum()), torch.randn(B, 6))
    assert isinstance(found, Full)
    assert found.undecided


def test_sequence_first_with_state() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.LSTM(6, 6, 2, dropout=0.2)

        def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> object:
            return self.rnn(x, state)

    state = (torch.zeros(2, B, 6), torch.zeros(2, B, 6))
    found = decide(Net(), torch.randn(7, B, 6), state)
    assert isinstance(found, Split)
    assert found.dims == (1, 1, 1)
    assert rows(found) == [("rows", 1)] * 3


@pytest.mark.parametrize("size", [4, 5, 6, 7, 12])
def test_a_matrix_as_wide_as_the_batch_is_not_divided(size: int) -> None:
    """x is (size, size), and so is the matrix that all samples share."""
    module = Body(lambda _, h, w: h @ w, size)
    found = decide(module, torch.randn(size, size), torch.randn(size, size))
    assert isinstance(found, Split)
    assert found.dims == (0, None)


def test_causal_mask_as_wide_as_the_batch() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(6, 2, batch_first=True)

        def forward(self, mask: Tensor, x: Tensor) -> Tensor:
            return self.attention(x, x, x, attn_mask=mask)[0]

    mask = torch.triu(torch.full((B, B), float("-inf")), diagonal=1)
    found = decide(Net(), mask, torch.randn(B, B, 6))
    assert isinstance(found, Split)
    assert found.dims == (None, 0)


class Pair(NamedTuple):
    x: Tensor
    scale: float


@dataclasses.dataclass
class Result:
    logits: Tensor
    hidden: list[Tensor]


def test_nested_arguments_and_outputs() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 6)

        def forward(self, pair: Pair, *, more: dict[str, list[Tensor]], flag: bool) -> Result:
            h = self.linear(pair.x * pair.scale)
            return Result(h, [h + more["a"][0], more["a"][1].expand(len(h), -1)] if flag else [])

    x = torch.randn(B, 6)
    found = decide(Net(), Pair(x, 2.0), more={"a": [x, torch.ones(1, 6)]}, flag=True)
    assert isinstance(found, Split)
    assert found.dims == (0, None, 0, None, None)
    assert rows(found) == [("rows", 0)] * 3


def test_flattened_output() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(9, 6)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.embed(tokens).view(-1, 6)

    assert rows(decide(Net(), torch.randint(9, (B, 4)))) == [("rows", 0)]


def test_caches_are_no_changes() -> None:
    def cached(body: Body, h: Tensor) -> Tensor:
        if not body.seen:
            body.seen.append(torch.ones(h.shape[1]))
        return h * body.seen[0]  # type: ignore[operator]

    assert rows(decide(Body(cached), torch.randn(B, 6))) == [("rows", 0)]


def test_recomputation() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.2))

        def forward(self, x: Tensor) -> Tensor:
            return torch.utils.checkpoint.checkpoint(self.body, x, use_reentrant=False)

    assert rows(decide(Net(), torch.randn(B, 6))) == [("rows", 0)]


def test_a_gradient_inside_forward() -> None:
    class Energy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1))

        def forward(self, x: Tensor) -> Tensor:
            x = x.requires_grad_()
            return torch.autograd.grad(self.net(x).sum(), x, create_graph=True)[0]

    assert rows(decide(Energy(), torch.randn(B, 6))) == [("rows", 0)]


def test_draws() -> None:
    dropped = decide(nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5)), torch.randn(B, 6))
    assert isinstance(dropped, Split)
    assert [(draw.kind, draw.dim) for draw in dropped.draws] == [("rows", 0)]
    noise = decide(Body(lambda _, h: h + torch.randn_like(h) + torch.rand(6)), torch.randn(B, 6))
    assert isinstance(noise, Split)
    assert [draw.kind for draw in noise.draws] == ["rows", "common"]
    poisson = decide(Body(lambda _, h: h + 0 * torch.poisson(h.abs())), torch.randn(B, 6))
    assert isinstance(poisson, Split)
    assert [draw.kind for draw in poisson.draws] == ["own"]


# Arguments that are not looked into.


def test_unsuitable_arguments() -> None:
    module = Body()
    assert "PackedSequence" in why(decide(nn.LSTM(6, 6), pack_sequence([torch.randn(3, 6)])))
    assert "ndarray" in why(decide(module, np.zeros((B, 6))))
    leaves: list[object] = [torch.eye(6).to_sparse()]
    assert "sparse" in why(probe(nn.Module.__call__, module, ((leaves[0],), {}), leaves))
    assert "no argument is a tensor" in why(decide(module, 3))
    assert "no argument has two samples" in why(decide(nn.Linear(1, 1), torch.randn(1, 1)))


def test_packed_inside() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(6, 6, batch_first=True)

        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            return pad_packed_sequence(self.rnn(packed)[0], batch_first=True)[0]

    lengths = torch.tensor([5] * B)  # equal here; later ones would give outputs of unequal length
    assert isinstance(decide(Net(), torch.randn(B, 5, 6), lengths), Full)


def test_outputs_that_cannot_be_put_together() -> None:
    for output in ("text", collections.Counter("a")):
        assert isinstance(decide(Body(lambda _, h, o=output: (h, o)), torch.randn(B, 6)), Split)
    assert isinstance(decide(Body(lambda _, h: (h, len(h))), torch.randn(B, 6)), Full)
    assert isinstance(decide(Body(lambda _, h: (h, np.ones(2))), torch.randn(B, 6)), Full)
    assert isinstance(decide(Body(lambda _, h: torch.zeros(3)), torch.randn(B, 6)), Full)
    assert Output("rows").dim == 0
