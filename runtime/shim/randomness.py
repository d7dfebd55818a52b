"""Random numbers inside a split call: every rank draws for the whole batch and keeps its own rows.

The common stream so advances exactly as in one process, and dropout masks are those of one process.
Operators whose draws depend on their input's values (rejection sampling, fused attention) get a stream of
their own for each rank, started from the common one: the result then agrees in distribution.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportPrivateUsage=false
# (torch annotates parts of itself incompletely, and not all that a shim needs is public)

from __future__ import annotations

import random
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal, cast

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from ...configs.errors import XlError

_EXACT = {
    "bernoulli", "bernoulli_", "normal", "normal_", "uniform_", "exponential_", "random_", "cauchy_",
    "log_normal_", "geometric_", "rand", "randn", "randint", "randperm", "rand_like", "randn_like",
    "randint_like", "native_dropout", "multinomial",
}  # fmt: skip
"""Operators that take as many numbers from the stream as they return elements, whatever the values."""


@contextmanager
def preserved_streams(device: torch.device) -> Generator[None]:
    """Put back the streams of torch (CPU and `device`), Python and numpy at the end."""
    states, torch_states = stream_states(), torch_streams(device)
    try:
        yield
    finally:
        set_stream_states(states)
        set_torch_streams(torch_states)


def torch_streams(device: torch.device) -> tuple[Tensor, Tensor | None]:
    """The states of torch's CPU stream and of that of `device`."""
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None


def set_torch_streams(states: tuple[Tensor, Tensor | None]) -> None:
    """Set what `torch_streams` returned."""
    torch.set_rng_state(states[0])
    if states[1] is not None:
        torch.cuda.set_rng_state(states[1])


def stream_states() -> tuple[object, object]:
    """The states of Python's and numpy's streams; comparable by `==` after `repr`."""
    numpy = _numpy()
    return random.getstate(), numpy.random.get_state() if numpy is not None else None


def set_stream_states(states: tuple[object, object]) -> None:
    """Set the streams of Python and numpy to what `stream_states` returned."""
    random.setstate(cast("Any", states[0]))
    numpy = _numpy()
    if numpy is not None and states[1] is not None:
        numpy.random.set_state(states[1])


def same_states(first: tuple[object, object], second: tuple[object, object]) -> bool:
    """Whether nothing was drawn between two calls of `stream_states`."""
    return first[0] == second[0] and _words(first[1]) == _words(second[1])


def _words(state: object) -> bytes:
    if state is None:
        return b""
    name, key, *rest = cast("tuple[Any, ...]", state)
    return repr((name, *rest)).encode() + cast("bytes", key.tobytes())


def _numpy() -> Any:
    module: ModuleType | None = sys.modules.get("numpy")
    return module


def is_random(func: Any, args: Sequence[object], kwargs: dict[str, object]) -> bool:
    """Whether this call of an operator draws from a stream."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    for index, argument in enumerate(func._schema.arguments):
        given = args[index] if index < len(args) else kwargs.get(argument.name, argument.default_value)
        if argument.name == "dropout_p" and given == 0:
            return False
        if argument.name == "train" and given is False:
            return False
    return True


def name_of(func: Any) -> str:
    """`aten::bernoulli_` -> `bernoulli_`."""
    return str(func._schema.name).split("::")[-1]


def constant_instead(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a random operator so that it gives the same value for every sample, however many there are."""
    name = name_of(func)
    kwargs = {key: value for key, value in kwargs.items() if key != "generator"}
    if name in _EXACT and name.endswith("_"):
        return args[0].fill_(_constant(name, args[0]))
    if name == "native_dropout":
        return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
    if name not in _EXACT:
        # Fused attention: the same without dropout. Others differ between runs, and the probe then sees it.
        index = next((i for i, a in enumerate(func._schema.arguments) if a.name == "dropout_p"), None)
        if index is not None:
            if index < len(args):
                args = (*args[:index], 0.0, *args[index + 1 :])
            else:
                kwargs["dropout_p"] = 0.0
        return func(*args, **kwargs)
    out = func(*args, **kwargs)
    if name == "randperm":
        return out.copy_(torch.arange(out.numel() - 1, -1, -1, dtype=out.dtype, device=out.device))
    return out.fill_(_constant(name, out))


def _constant(name: str, like: Tensor) -> float | int:
    # A bernoulli's 1 would hide what is multiplied by 1 minus it.
    if name.startswith("bernoulli") and not like.is_floating_point():
        return 1
    return 0.5 if like.is_floating_point() or like.is_complex() else 0


DrawKind = Literal["common", "rows", "own"]


@dataclass(frozen=True, slots=True)
class Draw:
    """One random operator of a module's forward, as the probe saw it.

    Args:
        name: the operator. kind: common: one draw for all samples; rows: taken from the whole batch's draw;
        own: a stream per rank. dim: under `rows`, the dim of the result along which the samples lie. order:
        its dims by memory, the outermost first: numbers are drawn in that order.
    """

    name: str
    kind: DrawKind
    dim: int = 0
    order: tuple[int, ...] = ()


def memory_order(tensor: Tensor) -> tuple[int, ...]:
    """Return the dims of `tensor` from the largest stride to the smallest."""
    return tuple(sorted(range(tensor.ndim), key=lambda dim: (-tensor.stride(dim), dim)))


def classify(name: str, full: tuple[int, ...], piece: tuple[int, ...], order: tuple[int, ...]) -> Draw | None:
    """Describe a draw by its result's shape for many samples and for fewer; None: it cannot be split."""
    varying = [dim for dim, (a, b) in enumerate(zip(full, piece, strict=True)) if a != b]
    if not varying:
        return Draw(name, "common") if name in _EXACT else None
    if len(varying) > 1 or name == "randperm":
        return None
    return Draw(name, "rows", varying[0], order) if name in _EXACT else Draw(name, "own")


class WholeBatchDraws(TorchDispatchMode):
    """While active, random operators draw for the whole batch and return this rank's rows.

    Args:
        draws: what the probe saw, in order.
        position: how many of them were made before.
        rows: rows on the ranks before this one, on this rank, and in the whole batch.
        rank: this rank, for streams of its own.
    """

    def __init__(self, draws: Sequence[Draw], position: int, rows: tuple[int, int, int], rank: int) -> None:
        super().__init__()
        self._draws, self.position = draws, position
        self._before, self._here, self._total = rows
        self._rank = rank

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not is_random(func, args, kwargs):
            return func(*args, **kwargs)
        draw = self._take(name_of(func))
        if draw.kind == "common":
            return func(*args, **kwargs)
        if draw.kind == "own":
            return self._draw_own(func, args, kwargs)
        return self._draw_rows(func, args, kwargs, draw)

    def _take(self, name: str) -> Draw:
        draw = self._draws[self.position] if self.position < len(self._draws) else None
        if draw is None or draw.name != name:
            raise XlError(
                f"a module drew random numbers ({name}) that it did not draw when it was first tried",
                "inside a split call each draw must be known in advance to give the numbers of one process",
                "run it on one process, or keep the order of random operations in forward() fixed",
                exit_code=1,
            )
        self.position += 1
        return draw

    def _draw_own(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        device = next((a.device for a in args if isinstance(a, Tensor)), torch.device("cpu"))
        seed = int(torch.randint(2**40, (), device=device))  # from the common stream: the same on all ranks
        with preserved_streams(device):
            torch.manual_seed(seed + self._rank)
            return func(*args, **kwargs)

    def _draw_rows(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], draw: Draw) -> Any:
        name, dim = draw.name, draw.dim
        if not any(isinstance(a, Tensor) for a in args):
            size = list(args[self._size_argument(func)])
            size[dim] = self._whole(size[dim])
            index = self._size_argument(func)
            whole = func(*args[:index], size, *args[index + 1 :], **kwargs)
            return self._rows(whole, dim).clone()
        shape = next(a.shape for a in args if isinstance(a, Tensor))
        whole_args = tree_map(
            lambda a: self._embed(a, draw, shape[dim]) if isinstance(a, Tensor) else a, args
        )
        whole = func(*whole_args, **kwargs)
        if name.endswith("_"):
            return args[0].copy_(self._rows(whole, dim))
        return tree_map(lambda o: self._rows(o, dim).clone() if isinstance(o, Tensor) else o, whole)

    def _size_argument(self, func: Any) -> int:
        return next(i for i, a in enumerate(func._schema.arguments) if a.name == "size")

    def _whole(self, entries: int) -> int:
        return entries // self._here * self._total

    def _embed(self, value: Tensor, draw: Draw, entries: int) -> Tensor:
        """A tensor for the whole batch, in the memory order that it has in one process; `value` is in it."""
        dim, order = draw.dim, draw.order
        if value.ndim <= dim or value.shape[dim] != entries:
            return value
        size = list(value.shape)
        size[dim] = self._whole(entries)
        if len(order) != value.ndim:
            order = memory_order(value)
        whole = value.new_empty([size[d] for d in order]).permute([order.index(d) for d in range(value.ndim)])
        # Other ranks' rows only need valid values: this rank's first row again.
        whole.copy_(value.narrow(dim, 0, 1).expand(size))
        self._rows(whole, dim).copy_(value)
        return whole

    def _rows(self, whole: Tensor, dim: int) -> Tensor:
        per_row = whole.shape[dim] // self._total
        return whole.narrow(dim, self._before * per_row, self._here * per_row)
