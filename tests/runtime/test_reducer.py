"""Averaged gradients must equal one process's, whatever led to the backward."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportPrivateUsage=false
# pyright: reportArgumentType=false, reportUnknownLambdaType=false
from __future__ import annotations

import copy
import gc
import io
import pickle
import random
from collections.abc import Callable
from contextlib import nullcontext
from typing import TypeVar, cast

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from xl.configs.errors import XlError
from xl.runtime.collectives import Communicator
from xl.runtime.reducer import GradientReducer

from ..pool import Ranks

SIZES = pytest.mark.parametrize("size", [1, 2, 3, 4])
SMALL_BUCKETS = 600  # bytes: a few parameters each


class Net(nn.Module):
    """Linear layers that can be called by other methods than forward."""

    def __init__(self, width: int = 6, depth: int = 5) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(depth)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x

    def layer(self, index: int) -> nn.Linear:
        return cast("nn.Linear", self.layers[index])

    def first(self, x: Tensor) -> Tensor:
        return self.layer(0)(x)


M = TypeVar("M", bound=nn.Module)


def seeded(build: Callable[..., M], *args: object) -> M:
    torch.manual_seed(0)
    return build(*args).double()


def rows(comm: Communicator, step: int = 0, *, each: int = 3, width: int = 6) -> tuple[Tensor, Tensor]:
    """The whole batch and this rank's share of it."""
    generator = torch.Generator().manual_seed(step)
    whole = torch.randn(each * comm.size, width, generator=generator, dtype=torch.float64)
    return whole, whole[each * comm.rank : each * (comm.rank + 1)]


def gradients(model: nn.Module) -> list[Tensor]:
    return [torch.empty(0) if p.grad is None else p.grad.to_dense().clone() for p in model.parameters()]


def assert_same(model: nn.Module, expected: nn.Module) -> None:
    for (name, mine), theirs in zip(model.named_parameters(), expected.parameters(), strict=True):
        assert_close(mine, theirs, name)
        assert (mine.grad is None) == (theirs.grad is None), name
        if mine.grad is not None and theirs.grad is not None:
            assert_close(mine.grad.to_dense(), theirs.grad.to_dense(), f"gradient of {name}")


def assert_close(mine: Tensor, theirs: Tensor, name: str) -> None:
    torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12, msg=lambda text: f"{name}: {text}")


def tracked(comm: Communicator, model: nn.Module, bucket_bytes: int = SMALL_BUCKETS) -> GradientReducer:
    reducer = GradientReducer(comm, bucket_bytes=bucket_bytes)
    reducer.track(model.named_parameters())
    return reducer


@SIZES
@pytest.mark.parametrize("bucket_bytes", [1, SMALL_BUCKETS, 25 << 20])
def test_training_equals_one_process(ranks: Ranks, size: int, bucket_bytes: int) -> None:
    def train(comm: Communicator, bucket_bytes: int) -> tuple[int, int]:
        expected = seeded(Net)
        model = seeded(Net)
        if comm.rank:
            for parameter in model.parameters():
                parameter.data.fill_(9.0)  # rank 0's values must arrive
        reducer = tracked(comm, model, bucket_bytes)
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (model, expected)]
        for step in range(4):
            whole, mine = rows(comm, step)
            for optimizer, module, x in zip(optimizers, (model, expected), (mine, whole), strict=True):
                optimizer.zero_grad()
                module(x).square().mean().backward()
                optimizer.step()
            assert_same(model, expected)
        return reducer.traffic.exchanges, reducer.traffic.bytes

    total = sum(p.numel() * 8 for p in Net().parameters())
    assert ranks(size, train, bucket_bytes) == [(4, 4 * total)] * size


@SIZES
def test_any_way_to_a_backward_is_averaged(ranks: Ranks, size: int) -> None:
    def train(comm: Communicator) -> None:
        model, expected = seeded(Net), seeded(Net)
        reducer = tracked(comm, model)
        whole, mine = rows(comm)
        for module, x in ((model, mine), (expected, whole)):
            module.first(x).square().mean().backward()  # a method that is not forward
            (module(x).mean() + module(x + 1).mean()).backward()  # two forwards, one backward
            loss = module(x).square().mean()
            loss.backward(retain_graph=True)
            loss.backward()
            nn.functional.linear(x, module.layer(0).weight).square().mean().backward()  # a parameter alone
        assert_same(model, expected)
        assert reducer.traffic.exchanges == 5

    ranks(size, train)


def test_gradients_pile_up_as_in_one_process(ranks: Ranks) -> None:
    """After an averaged backward, a second one without zero_grad adds its own mean only."""

    def train(comm: Communicator) -> None:
        model, expected = seeded(Net), seeded(Net)
        tracked(comm, model)
        for step in range(3):
            whole, mine = rows(comm, step)
            model(mine).square().mean().backward()
            expected(whole).square().mean().backward()
            assert_same(model, expected)

    ranks(3, train)


@pytest.mark.parametrize("finish", ["backward", "flush"])
def test_no_sync_exchanges_once(ranks: Ranks, finish: str) -> None:
    def train(comm: Communicator, finish: str) -> tuple[int, bool]:
        model, expected = seeded(Net), seeded(Net)
        reducer = tracked(comm, model)
        for step in range(3):
            whole, mine = rows(comm, step)
            local = step < 2 or finish == "flush"
            with reducer.no_sync() if local else nullcontext():
                model(mine).square().mean().backward()
                if step == 0:
                    model.first(mine).sum().backward()
            expected(whole).square().mean().backward()
            if step == 0:
                # The sum of a share counts for the whole when it is averaged: size times as much.
                (expected.first(whole).sum() / comm.size).backward()
        before = gradients(model)
        if finish == "flush":
            assert reducer.traffic.exchanges == 0
            reducer.flush()
        assert_same(model, expected)
        changed = any(not torch.equal(a, b) for a, b in zip(before, gradients(model), strict=True))
        return reducer.traffic.exchanges, changed

    assert ranks(3, train, finish) == [(1, finish == "flush")] * 3


def test_gradients_dropped_after_no_sync_stay_dropped(ranks: Ranks) -> None:
    def train(comm: Communicator) -> list[bool]:
        model = seeded(Net)
        reducer = tracked(comm, model)
        with reducer.no_sync():
            model(rows(comm)[1]).sum().backward()
        model.zero_grad()
        reducer.flush()
        return [p.grad is None for p in model.parameters()]

    assert ranks(2, train) == [[True] * 10] * 2


class Branches(nn.Module):
    """Parts that a rank may use, or not, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(6, 6) for _ in range(4)])

    def forward(self, x: Tensor, order: list[int]) -> Tensor:
        return sum((self.parts[part](x) * (part + 1) for part in order), torch.zeros_like(x)).square().mean()


@pytest.mark.parametrize("bucket_bytes", [1, SMALL_BUCKETS, 25 << 20])
def test_parts_used_on_some_ranks_only(ranks: Ranks, bucket_bytes: int) -> None:
    """Unused parameters count as zeros where another rank used them, and stay None where none did (P100)."""

    def train(comm: Communicator, bucket_bytes: int) -> list[bool]:
        orders = [[0, 1, 2], [2, 0], [1]]
        model, expected = seeded(Branches), seeded(Branches)
        reducer = tracked(comm, model, bucket_bytes)
        for step in range(3):
            model.zero_grad()
            expected.zero_grad()
            whole, mine = rows(comm, step)
            with reducer.backward():
                model(mine, orders[comm.rank]).backward()
            for rank, order in enumerate(orders):
                (expected(whole[3 * rank : 3 * rank + 3], order) / comm.size).backward()
            assert_same(model, expected)
        return [p.grad is None for p in model.parameters()]

    assert ranks(3, train, bucket_bytes) == [[False] * 6 + [True] * 2] * 3


def test_a_rank_without_any_gradient_takes_part(ranks: Ranks) -> None:
    def train(comm: Communicator) -> float:
        model = seeded(Net)
        reducer = tracked(comm, model)
        x = rows(comm)[1]
        with reducer.backward():
            if comm.rank == 1:
                model(x).mean().backward()
        gradient = model.layer(0).weight.grad
        assert gradient is not None
        return float(gradient.abs().sum())

    first, second = ranks(2, train)
    assert first == second > 0


def test_hooks_in_different_orders(ranks: Ranks) -> None:
    def train(comm: Communicator) -> None:
        model, expected = seeded(Branches), seeded(Branches)
        tracked(comm, model, 1)
        order = [0, 1, 2, 3]
        for step in range(3):
            whole, mine = rows(comm, step)
            model(mine, order if comm.rank else order[::-1]).backward()
            expected(whole, order).backward()
            assert_same(model, expected)

    ranks(2, train)


def test_sparse_gradients(ranks: Ranks) -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(11, 4, sparse=True)
            self.tied = nn.Embedding(11, 4, sparse=True)
            self.head = nn.Linear(4, 11, bias=False)

        def forward(self, words: Tensor, use: bool, tie: bool) -> Tensor:
            x = self.words(words) if use else torch.ones(len(words), 4, dtype=torch.float64)
            x = x + self.tied(words)
            return (self.head(x) if not tie else x @ self.tied.weight.t()).square().mean()

    def train(comm: Communicator) -> list[str]:
        model, expected = seeded(Words), seeded(Words)
        tracked(comm, model)
        layouts: list[str] = []
        for step in range(3):
            model.zero_grad()
            expected.zero_grad()
            generator = torch.Generator().manual_seed(step)
            words = torch.randint(0, 11, (4 * comm.size,), generator=generator)
            plans = [(rank != 0, step == 1 and rank == 0) for rank in range(comm.size)]
            model(words[4 * comm.rank : 4 * comm.rank + 4], *plans[comm.rank]).backward()
            for rank, plan in enumerate(plans):
                (expected(words[4 * rank : 4 * rank + 4], *plan) / comm.size).backward()
            assert_same(model, expected)
            layouts.append(" ".join(str(p.grad.layout) for p in model.parameters() if p.grad is not None))
        return layouts

    sparse, dense = "torch.sparse_coo", "torch.strided"
    steps = [f"{sparse} {sparse} {dense}", f"{sparse} {dense} {dense}", f"{sparse} {sparse} {dense}"]
    assert ranks(3, train) == [steps] * 3


def test_mixed_types(ranks: Ranks) -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            kinds = [
                torch.float32,
                torch.bfloat16,
                torch.float64,
                torch.float16,
                torch.complex64,
                torch.float32,
            ]
            self.scales = nn.ParameterList(
                [nn.Parameter(torch.full((3,), 2.0, dtype=kind)) for kind in kinds]
            )

        def forward(self, x: float) -> Tensor:
            return sum(
                ((scale * x).sum().abs().double() for scale in self.scales),
                torch.zeros((), dtype=torch.float64),
            )

    def train(comm: Communicator) -> list[list[float]]:
        model = Mixed()
        tracked(comm, model, 1)
        model(float(comm.rank + 1)).backward()
        assert [p.grad.dtype for p in model.parameters() if p.grad is not None] == [
            p.dtype for p in model.parameters()
        ]
        return [p.grad.abs().tolist() for p in model.parameters() if p.grad is not None]

    assert ranks(2, train) == [[[1.5] * 3] * 6] * 2


class Tied(nn.Module):
    """One layer used inside a checkpoint and outside."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.layer = nn.Linear(6, 6)
        self.other = nn.Linear(6, 6)
        self.other.bias = self.layer.bias

    def forward(self, x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        inner = cast("Tensor", checkpoint(self.layer, x, use_reentrant=self.reentrant))
        return self.layer(torch.tanh(self.other(torch.tanh(inner))))


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("inside", [True, False])
def test_checkpoints_and_tied_parameters(ranks: Ranks, reentrant: bool, inside: bool) -> None:
    def train(comm: Communicator, reentrant: bool, inside: bool) -> None:
        model, expected = seeded(Tied, reentrant), seeded(Tied, reentrant)
        reducer = tracked(comm, model, 1)
        for step in range(3):
            whole, mine = rows(comm, step)
            with reducer.backward() if inside else nullcontext():
                model(mine).square().mean().backward()
            expected(whole).square().mean().backward()
            assert_same(model, expected)
        assert not inside or reducer.traffic.exchanges == 3

    ranks(3, train, reentrant, inside)


def test_frozen_parameters_may_thaw(ranks: Ranks) -> None:
    def train(comm: Communicator) -> list[bool]:
        model, expected = seeded(Net), seeded(Net)
        for module in (model, expected):
            for parameter in module.layer(1).parameters():
                parameter.requires_grad_(False)
        tracked(comm, model)
        untouched: list[bool] = []
        for step in range(2):
            whole, mine = rows(comm, step)
            model(mine).square().mean().backward()
            expected(whole).square().mean().backward()
            assert_same(model, expected)
            untouched.append(model.layer(1).weight.grad is None)
            for module in (model, expected):
                for parameter in module.layer(1).parameters():
                    parameter.requires_grad_(True)
        return untouched

    assert ranks(2, train) == [[True, False]] * 2


def test_parameters_added_and_converted_later(ranks: Ranks) -> None:
    def train(comm: Communicator) -> list[int]:
        model, expected = seeded(Net).float(), seeded(Net).float()
        reducer = tracked(comm, model)
        new: list[int] = []
        for step in range(5):
            whole, mine = rows(comm, step)
            if step == 1:
                for module in (model, expected):
                    torch.manual_seed(comm.rank if module is model else 0)
                    module.layers.append(nn.Linear(6, 6))
            if step == 3:
                model.double()
                expected.double()
            new.append(reducer.track(model.named_parameters()))
            kind = next(model.parameters()).dtype
            model(mine.to(kind)).square().mean().backward()
            expected(whole.to(kind)).square().mean().backward()
            for mine_, theirs in zip(model.parameters(), expected.parameters(), strict=True):
                torch.testing.assert_close(mine_.grad, theirs.grad, rtol=1e-5, atol=1e-7)
            model.zero_grad()
            expected.zero_grad()
        assert len([b for b in reducer._buckets if b.dtype == torch.float64]) == len(reducer._buckets)
        return new

    assert ranks(2, train) == [[0, 2, 0, 0, 0]] * 2


def test_copies_are_left_alone(ranks: Ranks) -> None:
    def train(comm: Communicator) -> list[bool]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6)).double()
        reducer = tracked(comm, model)
        stored = io.BytesIO()
        torch.save(model, stored)
        stored.seek(0)
        copies = [
            copy.deepcopy(model),
            pickle.loads(pickle.dumps(model)),
            torch.load(stored, weights_only=False),
        ]
        for module in copies:
            module(rows(comm)[1]).square().mean().backward()
        assert reducer.traffic.exchanges == 0
        model(rows(comm)[1]).square().mean().backward()
        return [torch.equal(gradients(module)[0], gradients(model)[0]) for module in copies]

    assert ranks(2, train) == [[False] * 3] * 2


def test_a_failed_backward_leaves_no_trace(ranks: Ranks) -> None:
    def train(comm: Communicator) -> None:
        model, expected = seeded(Net), seeded(Net)
        tracked(comm, model, 1)

        def fail(gradient: Tensor) -> None:
            raise MemoryError

        whole, mine = rows(comm)
        hidden = model.layer(1)(model.layer(0)(mine))
        hidden.register_hook(fail)
        with pytest.raises(MemoryError):
            model.layer(3)(model.layer(2)(hidden)).sum().backward()
        model.zero_grad()
        for _ in range(2):
            model(mine).square().mean().backward()
            expected(whole).square().mean().backward()
            assert_same(model, expected)

    ranks(2, train)


def test_double_backward(ranks: Ranks) -> None:
    """A gradient penalty, over the gradient to the input, is a backward like any other."""

    def train(comm: Communicator) -> None:
        model, expected = seeded(Net), seeded(Net)
        tracked(comm, model)
        whole, mine = rows(comm)
        for module, x in ((model, mine.clone().requires_grad_()), (expected, whole.clone().requires_grad_())):
            slope = torch.autograd.grad(module(x).sum(), x, create_graph=True)[0]
            slope.square().sum(1).mean().backward()
        assert_same(model, expected)
        with pytest.raises(XlError, match="create_graph=True"):
            model(mine).sum().backward(create_graph=True)

    ranks(2, train)


def test_differing_models_are_refused(ranks: Ranks) -> None:
    def build(comm: Communicator) -> str:
        model = seeded(Net)
        if comm.rank == 1:
            model.layers = nn.ModuleList([*model.layers[:3], nn.Linear(6, 7), *model.layers[4:]])
        with pytest.raises(XlError) as caught:
            tracked(comm, model)
        return caught.value.what

    message = (
        "the model differs: parameter 6 is layers.3.weight: float64[6, 6] on rank 0,"
        " layers.3.weight: float32[7, 6] on rank 1"
    )
    assert ranks(3, build) == [message] * 3


def test_buckets_leave_during_backward(ranks: Ranks) -> None:
    def train(comm: Communicator) -> list[int]:
        model = seeded(Net)
        reducer = tracked(comm, model, 1)
        under_way: list[int] = []
        model.layer(0).weight.register_hook(
            lambda _: under_way.append(sum(b.pending is not None for b in reducer._buckets))
        )
        for step in range(3):
            model(rows(comm, step)[1]).square().mean().backward()
        return under_way

    # Nine of ten; the first backward teaches the order.
    assert [counts[1:] for counts in ranks(2, train)] == [[9, 9], [9, 9]]


def test_dropped_models_are_freed(ranks: Ranks) -> None:
    def train(comm: Communicator) -> int:
        reducer = GradientReducer(comm, bucket_bytes=SMALL_BUCKETS)
        for trial in range(3):
            model, expected = seeded(Net, 6, 2 + trial), seeded(Net, 6, 2 + trial)
            reducer.track(model.named_parameters())
            whole, mine = rows(comm)
            model(mine).square().mean().backward()
            expected(whole).square().mean().backward()
            assert_same(model, expected)
            del model
            gc.collect()
        return len(reducer._slots)

    assert ranks(2, train) == [8, 8]


def test_two_networks_in_turn(ranks: Ranks) -> None:
    """As in a GAN: the backward of one reaches both, that of the other only its own."""

    def train(comm: Communicator) -> None:
        pairs = [(seeded(Net), seeded(Net, 6, 3)) for _ in range(2)]
        reducer = GradientReducer(comm)
        for network in pairs[0]:
            reducer.track(network.named_parameters())
        for step in range(4):
            whole, mine = rows(comm, step)
            for (generator, critic), x in zip(pairs, (mine, whole), strict=True):
                critic.zero_grad()
                critic(generator(x).detach()).square().mean().backward()
                generator.zero_grad()
                critic(generator(x)).mean().backward()
            for mine_, theirs in zip(*pairs, strict=True):
                assert_same(mine_, theirs)

    ranks(3, train)


@pytest.mark.parametrize("seed", range(4))
def test_random_backwards(ranks: Ranks, seed: int) -> None:
    """Any parts in any order on any rank, averaged or held back, equal the mean of the ranks' gradients."""

    def train(comm: Communicator, seed: int) -> None:
        common, own = random.Random(seed), random.Random(1000 * seed + comm.rank)
        model, local = seeded(Branches), seeded(Branches)
        reducer = tracked(comm, model, common.choice([1, SMALL_BUCKETS, 10**6]))
        for step in range(25):
            x = rows(comm, step)[1]
            order = own.sample(range(4), own.randint(0, 4))
            held_back = common.random() < 0.3
            with reducer.no_sync() if held_back else reducer.backward():
                for module in (model, local):
                    loss = module(x, order)
                    if loss.requires_grad:
                        loss.backward()
            if held_back and common.random() < 0.5:
                continue
            if held_back:
                reducer.flush()
            for mine, theirs in zip(model.parameters(), local.parameters(), strict=True):
                present = torch.tensor([theirs.grad is not None], dtype=torch.float64)
                gradient = torch.zeros_like(theirs) if theirs.grad is None else theirs.grad.clone()
                comm.all_reduce(gradient).div_(comm.size)
                if comm.all_reduce(present):
                    theirs.grad = gradient
                    torch.testing.assert_close(mine.grad, gradient, rtol=1e-10, atol=1e-12)
                else:
                    assert mine.grad is None
            if common.random() < 0.5:
                model.zero_grad()
                local.zero_grad()

    ranks(3, train, seed)
