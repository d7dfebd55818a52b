"""What the probe decides about modules, in the mode of the call, and that it leaves no trace."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportPrivateUsage=false

from __future__ import annotations

import collections
import dataclasses
import itertools
import random
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch._dynamo  # pyright: ignore  # the first watched operator imports it, and it sets a variable
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence

from xl.runtime.shim.probing.decision import Full, Output, Split
from xl.runtime.shim.probing.probe import probe
from xl.runtime.shim.probing.surroundings import Surroundings

from .bodies import B, Body, decide, rows, why


def test_an_argument_that_is_returned_stays_itself() -> None:
    def after(body: Body, h: Tensor) -> Tensor:
        return h

    class Net(Body):
        def forward(self, x: Tensor, *_: object) -> Any:
            return super().forward(x), x

    assert rows(decide(Net(after), torch.randn(B, 6))) == [("rows", 0), ("argument", 0)]


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
    module = Body(lambda body, h: h - h.mean(0) if body.training else h)
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


def test_lengths_that_a_trial_could_be_taken_for() -> None:
    model = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)
    mask = nn.Transformer.generate_square_subsequent_mask(4)
    split = decide(model, torch.randn(8, 5, 8), torch.randn(8, 4, 8), tgt_mask=mask)
    assert rows(split) == [("rows", 0)]


class MaskedBySequence(nn.Module):
    """Keeps a mask for the length of the sequence, which comes before the samples."""

    def __init__(self) -> None:
        super().__init__()
        self.mask: Tensor | None = None
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        if self.mask is None or len(self.mask) != len(x):
            self.mask = torch.ones(len(x), len(x)).tril()
        return self.linear(torch.einsum("st,tbd->sbd", self.mask, x))


def test_a_mask_kept_for_the_length_of_the_sequence() -> None:
    model = MaskedBySequence()
    assert rows(decide(model, torch.randn(7, B, 6))) == [("rows", 1)]
    assert model.mask is None


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


def test_what_watches_torch_is_no_part_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    linear, log_softmax = nn.Linear.forward, F.log_softmax

    def watched_linear(self: nn.Linear, x: Tensor) -> Tensor:
        with open(tmp_path / "rows.txt", "a") as file:
            file.write("row")
        return linear(self, x)

    def watched_softmax(*args: Any, **kwargs: Any) -> Tensor:
        print("called")
        return log_softmax(*args, **kwargs)

    monkeypatch.setattr(nn.Linear, "forward", watched_linear)
    monkeypatch.setattr(F, "log_softmax", watched_softmax)
    assert rows(decide(nn.Sequential(nn.Linear(6, 6), nn.LogSoftmax(1)), torch.randn(B, 6))) == [("rows", 0)]
    assert capsys.readouterr().out.count("called") == 3


def test_code_that_sees_sizes() -> None:
    class Plain(Body):
        def forward(self, x: Tensor, *_: object) -> Any:
            return self.linear(x) * 2

    class Sized(Plain):
        def forward(self, x: Tensor, *_: object) -> Any:
            return super().forward(x).view(x.shape[0], -1)

    class Sliced(Plain):
        def forward(self, x: Tensor, *_: object) -> Any:
            return helper(super().forward(x))

    assert (
        not Surroundings().find(nn.Sequential(nn.Linear(6, 6), nn.TransformerEncoderLayer(6, 2))).sees_sizes
    )
    assert [Surroundings().find(kind()).sees_sizes for kind in (Plain, Sized, Sliced)] == [False, True, True]


def helper(h: Tensor) -> Tensor:
    return torch.cat([h[:16], h[16:] * 3])
