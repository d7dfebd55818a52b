"""Precision, loss scaling and averaging under the whole shim, on real ranks."""

# pyright: reportUnknownMemberType=false, reportUnknownLambdaType=false
from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from xl.configs.errors import XlError
from xl.runtime.collectives import Communicator

from ...pool import Ranks
from .gradient_harness import data, network, shim, values

Half = Literal["bf16", "fp16"]
HALVES = pytest.mark.parametrize("half", ["bf16", "fp16"])


class Watched(nn.Module):
    """Says in which types it computes."""

    def __init__(self, types: set[str]) -> None:
        super().__init__()
        self.inner = network()
        self._types = types

    def forward(self, x: Tensor) -> Tensor:
        out = self.inner(x)
        self._types.add(str(out.dtype))
        return out


def train(
    types: set[str], scale: float = 1.0, steps: int = 12, watched: bool = True
) -> tuple[list[float], str, float]:
    """A plain script: trained values, the type of the output that it saw, the last loss."""
    model = Watched(types) if watched else network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2 / scale, momentum=0.9)
    x, y = data(24)
    output = loss = torch.zeros(())
    for _ in range(steps):
        optimizer.zero_grad()
        output = model(x)
        loss = nn.functional.cross_entropy(output, y) * scale
        loss.backward()
        optimizer.step()
    return values(model), str(output.dtype), loss.item() / scale


@HALVES
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_mixed_precision_equals_one_process(ranks: Ranks, size: int, half: Half) -> None:
    def script(comm: Communicator, half: Half) -> tuple[list[float], str, float, set[str], float]:
        types: set[str] = set()
        with shim(comm, precision=half) as side:
            result = train(types)
            return *result, types, side.reducer.traffic.gradients if side.reducer else 0

    def exact(comm: Communicator) -> float:
        return train(set())[2]

    [full] = ranks(1, exact)
    [(expected, _, loss, _, _)] = ranks(1, script, half)
    for found, seen, last, types, gradients in ranks(size, script, half):
        assert found == pytest.approx(expected, abs=2e-2)
        assert seen == "torch.float32"
        assert types == {"torch.bfloat16" if half == "bf16" else "torch.float16"}
        assert last == pytest.approx(loss, abs=2e-2)
        assert last == pytest.approx(full, abs=2e-2)
        assert last != full, "computed in half precision"
        assert gradients == (12 * 4 if size > 1 else 0)


class Pair(NamedTuple):
    logits: Tensor
    best: Tensor


@dataclass(frozen=True)
class Answer:
    pair: Pair
    complex: Tensor
    name: str


class Structured(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Answer:
        out = self.layer(x)
        return Answer(Pair(out, out.argmax(1)), torch.complex(out.float(), out.float()), "answer")


@HALVES
def test_outputs_come_back_in_float32(ranks: Ranks, half: Half) -> None:
    def script(comm: Communicator, half: Half) -> tuple[str, ...]:
        with shim(comm, precision=half):
            torch.manual_seed(0)
            answer = Structured()(data()[0])
            assert isinstance(answer, Answer)
            assert isinstance(answer.pair, Pair)
            return (*(str(t.dtype)[6:] for t in (*answer.pair, answer.complex)), answer.name)

    assert ranks(2, script, half) == [("float32", "int64", "complex64", "answer")] * 2


def test_the_autocast_of_the_script_is_kept(ranks: Ranks) -> None:
    def script(comm: Communicator) -> tuple[set[str], str]:
        types: set[str] = set()
        model = Watched(types)
        with shim(comm, precision="fp16"), torch.autocast("cpu", dtype=torch.bfloat16):
            output = model(data()[0])
        return types, str(output.dtype)

    assert ranks(2, script) == [({"torch.bfloat16"}, "torch.bfloat16")] * 2


@pytest.mark.parametrize("size", [1, 2])
def test_small_gradients_survive_in_fp16(ranks: Ranks, size: int) -> None:
    """Without loss scaling they would all be below the smallest float16."""

    def gradient(comm: Communicator, half: Literal["no", "fp16"]) -> list[float]:
        with shim(comm, precision=half):
            model = network()
            kept = torch.optim.SGD(model.parameters())
            x, y = data(24)
            (nn.functional.cross_entropy(model(x), y) * 1e-5).backward()
            kept.step()
            return [p.grad.norm().item() for p in model.parameters() if p.grad is not None]

    [expected] = ranks(1, gradient, "no")
    assert max(expected) < 1e-5
    for found in ranks(size, gradient, "fp16"):
        assert found == pytest.approx(expected, rel=2e-2), "and .grad is not scaled"


@pytest.mark.parametrize("size", [1, 2])
def test_gradients_of_inputs_are_not_scaled(ranks: Ranks, size: int) -> None:
    """As an adversarial attack takes them."""

    def gradient(comm: Communicator, half: Literal["no", "fp16"]) -> float:
        with shim(comm, precision=half):
            model = network()
            optimizer = torch.optim.SGD(model.parameters())
            x, y = data(24)
            nn.functional.cross_entropy(model(x.requires_grad_()), y).backward()
            optimizer.step()
            assert x.grad is not None
            return float(x.grad.norm())  # pyright: ignore[reportUnknownArgumentType]

    [expected] = ranks(1, gradient, "no")
    for found in ranks(size, gradient, "fp16"):
        assert found == pytest.approx(expected, rel=2e-2)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_overflows_skip_the_step_on_all_ranks(ranks: Ranks, accumulation: int) -> None:
    """The rows of one rank overflow at first; all skip alike, and later steps are taken."""

    def script(comm: Communicator, accumulation: int) -> tuple[list[bool], list[float]]:
        with shim(comm, precision="fp16", accumulation=accumulation):
            model = network()
            optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
            x, y = data(24)
            weights = torch.ones(24)
            weights[-1] = 1e3  # times the first scale it is more than a float16 can hold
            moved: list[bool] = []
            for _ in range(14 * accumulation):
                optimizer.zero_grad()
                (nn.functional.cross_entropy(model(x), y, reduction="none") * weights).mean().backward()
                before = values(model)
                optimizer.step()
                moved.append(values(model) != before)
            return moved[accumulation - 1 :: accumulation], values(model)

    first, *others = ranks(3, script, accumulation)
    assert all(other == first for other in others)
    moved = first[0]
    assert not moved[0]
    assert moved[-1]
    assert moved == sorted(moved)
    assert all(abs(value) < 10 for value in first[1])


def test_fp16_with_a_schedule_and_clipping(ranks: Ranks) -> None:
    """Clipping by value must not hide an overflow."""

    def script(comm: Communicator) -> list[float]:
        with shim(comm, precision="fp16"):
            model = network()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            x, y = data(24)
            before = values(model)
            optimizer.zero_grad()
            (nn.functional.cross_entropy(model(x), y) * 1e6).backward()
            nn.utils.clip_grad_value_(model.parameters(), 1.0)
            optimizer.step()
            return [float(before == values(model))]

    assert ranks(2, script) == [[1.0]] * 2


def test_a_scaler_of_the_script_works_as_in_one_process(ranks: Ranks) -> None:
    def script(comm: Communicator, patched: bool) -> tuple[list[float], float]:
        with shim(comm) if patched else nullcontext():
            model = network()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
            scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, growth_interval=3)
            x, y = data(24)
            for _ in range(40):
                optimizer.zero_grad()
                with torch.autocast("cpu", dtype=torch.float16):
                    output = model(x)
                loss = nn.functional.cross_entropy(output.float(), y)
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                scaler.step(optimizer)
                scaler.update()
            return values(model), scaler.get_scale()

    [(expected, scale)] = ranks(1, script, False)
    assert scale < 2.0**40
    for found, other in ranks(2, script, True):
        assert other == scale
        assert found == pytest.approx(expected, abs=2e-2)


def closure_step() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters())
    optimizer.step(lambda: model(data()[0]).sum().item())


def scaler_made() -> None:
    torch.amp.GradScaler("cpu")


def no_optimizer() -> None:
    network()(data()[0]).sum().backward()


def clamped(gradient: Tensor) -> Tensor:
    return gradient.clamp(-1, 1)


def hook_before() -> None:
    model = network()
    next(model.parameters()).register_hook(clamped)
    torch.optim.SGD(model.parameters())
    model(data()[0])


def hook_after() -> None:
    model = network()
    model(data()[0])
    next(model.parameters()).register_post_accumulate_grad_hook(lambda _: None)


def step_in_hook() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters())
    output = model(data()[0])
    output.register_hook(lambda _: optimizer.step())
    output.sum().backward()


def graph_of_parameters() -> None:
    model = network()
    torch.autograd.grad(model(data()[0]).sum(), list(model.parameters()), create_graph=True)


@pytest.mark.parametrize(
    ("half", "script", "what"),
    [
        ("fp16", closure_step, r"step\(closure\) is not possible with mixed_precision=fp16"),
        ("fp16", scaler_made, "makes a GradScaler, and mixed_precision=fp16"),
        ("fp16", no_optimizer, "needs a torch.optim optimizer"),
        ("fp16", hook_before, "gradient hook on a parameter"),
        ("no", hook_before, "gradient hook on the parameter 0.weight"),
        ("no", hook_after, "gradient hook on a parameter"),
        ("no", step_in_hook, "while a backward is running"),
        ("no", graph_of_parameters, "create_graph=True"),
    ],
)
def test_refused(ranks: Ranks, half: Literal["no", "fp16"], script: Callable[[], None], what: str) -> None:
    def run(comm: Communicator) -> None:
        with shim(comm, precision=half):
            script()

    with pytest.raises(XlError, match=what):
        ranks(2, run)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_modules_that_grow(ranks: Ranks, size: int) -> None:
    """Parameters that appear after the first call are averaged as well."""

    def script(comm: Communicator, patched: bool) -> tuple[list[float], float]:
        torch.set_default_dtype(torch.float64)
        with shim(comm) if patched else nullcontext():
            model = network()
            x, y = data(24)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for step in range(4):
                if step == 2:
                    torch.manual_seed(5)
                    model.append(nn.Linear(3, 3))
                    optimizer.add_param_group({"params": model[-1].parameters()})
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
            return values(model), len(values(model))

    [expected] = ranks(1, script, False)
    for found in ranks(size, script, True):
        assert found[0] == pytest.approx(expected[0], rel=1e-9)


def test_gradients_of_parameters_by_grad(ranks: Ranks) -> None:
    def script(comm: Communicator, patched: bool) -> list[float]:
        torch.set_default_dtype(torch.float64)
        with shim(comm) if patched else nullcontext():
            model = network()
            x, y = data(24)
            unused = nn.Parameter(torch.ones(2))
            for _ in range(3):
                leaf = x.clone().requires_grad_()
                loss = nn.functional.cross_entropy(model(leaf), y)
                wanted = [leaf, *model.parameters(), unused]
                slopes = torch.autograd.grad(loss, wanted, allow_unused=True)
                assert len(slopes) == len(wanted)
                with torch.no_grad():
                    for parameter, slope in zip(wanted, slopes, strict=True):
                        if parameter is not unused:
                            parameter -= 0.1 * slope
                x = leaf.detach()
            return values(model) + x.flatten().tolist()

    [expected] = ranks(1, script, False)
    for found in ranks(3, script, True):
        assert found == pytest.approx(expected, rel=1e-9)


class Inner(nn.Module):
    """Learns inside its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(self.layer(x), y)
        if torch.is_grad_enabled():
            loss.backward()
        return loss.detach()


def test_a_backward_inside_a_forward_is_run_in_full(ranks: Ranks) -> None:
    def script(comm: Communicator, patched: bool) -> tuple[list[float], int]:
        torch.set_default_dtype(torch.float64)
        with shim(comm) if patched else nullcontext() as side:
            torch.manual_seed(0)
            model = Inner()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            x, y = data(23)
            for _ in range(3):
                optimizer.zero_grad()
                model(x, y)
                optimizer.step()
            return values(model), 0 if side is None else side.session.report.split_calls.total()

    [(expected, _)] = ranks(1, script, False)
    for found, split in ranks(2, script, True):
        assert found == pytest.approx(expected, rel=1e-9)
        assert split == 0


def test_buffers_and_parameters_start_equal(ranks: Ranks) -> None:
    def script(comm: Communicator) -> list[float]:
        with shim(comm):
            model = nn.BatchNorm1d(6)
            nn.init.constant_(model.weight, float(comm.rank))
            model.running_mean = torch.full((6,), float(comm.rank))
            model.eval()(data()[0])
            return [float(model.weight[0]), float(model.running_mean[0])]

    assert ranks(2, script) == [[0.0, 0.0]] * 2


def test_everything_is_put_back(ranks: Ranks) -> None:
    """The pool would report a patched attribute; an optimizer and a scheduler made under the shim work on."""

    def script(comm: Communicator) -> None:
        with shim(comm, accumulation=2):
            model = network()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
            model(data()[0]).sum().backward()
            optimizer.step()
            scheduler.step()

    ranks(2, script)
