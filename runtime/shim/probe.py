"""Finds out how a module call may be split: tries the module on a few samples at once and in two pieces.

The trial runs in the mode of the call and leaves no trace: parameters, buffers, attributes and random streams are
put back. It is local to the process. What it cannot show to be safe is run in full.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from . import dataflow
from .randomness import Draw, preserved_streams, same_states, set_stream_states, stream_states
from .region import entered, moments_of
from .snapshot import Snapshot
from .trees import Structure, flatten, rebuild
from .watch import Operation, Watch

Forward = Any
_MAX_TRIALS = 12


@dataclass(frozen=True, slots=True)
class Output:
    """How the parts of one output are put together.

    Args:
        how: rows: concatenated along `dim`; mean, sum: over the samples; same: equal on every rank.
        dim: under `rows`, the dim of the samples.
    """

    how: Literal["rows", "mean", "sum", "same"]
    dim: int = 0


@dataclass(frozen=True, slots=True)
class Split:
    """A call that may be split.

    Args:
        dims: for each leaf of the arguments the dim of the samples, None where every sample sees all of it.
        outputs: for each leaf of the output how its parts are put together.
        draws: the random operators of the forward.
        operations: the names of the operators that saw the batch.
    """

    dims: tuple[int | None, ...]
    outputs: tuple[Output, ...]
    draws: tuple[Draw, ...] = ()
    operations: tuple[str, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Full:
    """A call that every rank runs in full.

    Args:
        reason: why, for the report.
        lasting: it holds for this module in this mode, whatever the arguments.
        undecided: other values of the same arguments may show more.
    """

    reason: str
    lasting: bool = False
    undecided: bool = False


class _Trial(Exception):
    """This way of splitting does not work."""

    def __init__(self, full: Full) -> None:
        super().__init__(full.reason)
        self.full = full


@dataclass(slots=True)
class _Run:
    outputs: list[object]
    structure: Structure
    operations: list[Operation]
    depends: list[bool]
    written: dict[str, Tensor]


class _ProbeRegion:
    """One run of a probe; what is counted over the batch comes from the run with all samples."""

    updates_buffers = False
    position = 0

    def __init__(self, fraction: float, counted: list[Any]) -> None:
        self.fraction = fraction
        self._counted = counted
        self._given = iter(list(counted)) if counted or fraction < 1 else None

    def total(self, count: Tensor) -> Tensor:
        with _disable_current_modes():
            return cast("Tensor", self._take(count.detach().clone()))

    def moments(self, values: Tensor, dims: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        with _disable_current_modes(), torch.no_grad():
            fresh = None if self.fraction < 1 else moments_of(values.detach(), dims, lambda part: part)
            return cast("tuple[Tensor, Tensor, Tensor]", self._take(fresh))

    @contextmanager
    def running(self, position: int = 0) -> Iterator[None]:
        with entered(self):
            yield

    def _take(self, fresh: object) -> object:
        if self.fraction == 1:
            self._counted.append(fresh)
            return fresh
        if self._given is None or (given := next(self._given, None)) is None:
            raise _Trial(Full("it counts over the batch a varying number of times"))
        return given


def probe(forward: Forward, module: nn.Module, tree: object, leaves: list[object]) -> Split | Full:
    """Return how the call `forward(module, *args, **kwargs)`, `tree` being (args, kwargs), may be split."""
    refusal = _unsuitable(leaves)
    if refusal is not None:
        return refusal
    whys: list[str] = []
    for dims in itertools.islice(_candidates(leaves), _MAX_TRIALS):
        try:
            return _Probe(forward, module, tree, leaves, dims).run()
        except _Trial as trial:
            if trial.full.lasting or trial.full.undecided:
                return trial.full
            whys.append(trial.full.reason)
    return Full(whys[0]) if whys else Full("no argument has two samples or more", undecided=True)


def rows_of(leaves: Sequence[object], dims: Sequence[int | None]) -> int:
    """Return the number of samples of a call, 0 if its arguments disagree."""
    sizes = {
        leaf.shape[dim] for leaf, dim in zip(leaves, dims, strict=True) if isinstance(leaf, Tensor) and dim is not None
    }
    return sizes.pop() if len(sizes) == 1 else 0


def _unsuitable(leaves: Sequence[object]) -> Full | None:
    plain = (Tensor, int, float, bool, str, bytes, complex, type(None), torch.dtype, torch.device, torch.Size)
    for leaf in leaves:
        if not isinstance(leaf, plain):
            return Full(f"an argument is a {type(leaf).__name__}")
        if isinstance(leaf, Tensor):
            if type(leaf) not in (Tensor, nn.Parameter, nn.Buffer):
                return Full(f"an argument is a {type(leaf).__name__}")
            if leaf.layout is not torch.strided or leaf.is_quantized or leaf.is_nested:
                return Full("an argument is a sparse, nested or quantized tensor")
    if not any(isinstance(leaf, Tensor) and leaf.ndim for leaf in leaves):
        return Full("no argument is a tensor with samples")
    return None


def _candidates(leaves: Sequence[object]) -> Iterator[tuple[int | None, ...]]:
    """Ways to divide the arguments, the usual first: samples along dim 0 of the first, then dim 1, then of others."""
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.ndim]
    tried: set[tuple[int | None, ...]] = set()
    for dim, anchor in itertools.product((0, 1), tensors):
        if dim >= anchor.ndim or anchor.shape[dim] < 2:
            continue
        rows = anchor.shape[dim]
        choices = [_choices(leaf, dim, rows, leaf is anchor) for leaf in leaves]
        for dims in itertools.product(*choices):
            if dims not in tried:
                tried.add(dims)
                yield dims


def _choices(leaf: object, dim: int, rows: int, is_anchor: bool) -> list[int | None]:
    if not isinstance(leaf, Tensor):
        return [None]
    if is_anchor:
        return [dim]
    fitting = [d for d in range(leaf.ndim) if leaf.shape[d] == rows]
    fitting.sort(key=lambda d: d != dim)
    return [*fitting, None]


class _Probe:
    """One trial of one way to split a call."""

    def __init__(
        self, forward: Forward, module: nn.Module, tree: object, leaves: list[object], dims: tuple[int | None, ...]
    ) -> None:
        self.forward, self.module, self.tree, self.leaves, self.dims = forward, module, tree, leaves, dims
        self.state = [*module.named_parameters(), *module.named_buffers()]
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        self.device = next((t.device for t in (*(t for _, t in self.state), *tensors)), torch.device("cpu"))
        self.counted: list[Any] = []

    def run(self) -> Split | Full:
        many, few = _sample_counts(self.leaves, self.dims)
        before = Snapshot(self.module)
        if not before.complete:
            return Full("it holds too many objects to tell whether forward() changes one", lasting=True)
        data = [(parameter, parameter.data) for parameter in self.module.parameters()]
        with preserved_streams(self.device), _shown_zeros(self.module):
            try:
                whole = self._whole(many, before)
                settled = Snapshot(self.module)
                pieces = [self._forward(0, few, many), self._forward(few, many, many)]
                changed = settled.changed()
            finally:
                before.restore()
                for parameter, values in data:
                    if parameter.data_ptr() != values.data_ptr():
                        parameter.data = values
        if changed:
            raise _Trial(Full(f"forward() changes the attribute {changed[0]}", lasting=True))
        return self._judge(whole, pieces, few / many)

    def _whole(self, many: int, before: Snapshot) -> _Run:
        run = self._forward(0, many, many)
        if not before.changed():
            return run
        # It may have filled a cache (a mask, a table of positions): then it changes nothing the second time.
        filled = Snapshot(self.module)
        self.counted.clear()
        run = self._forward(0, many, many)
        again = filled.changed()
        if again:
            raise _Trial(Full(f"forward() changes the attribute {again[0]}", lasting=True))
        return run

    def _forward(self, start: int, stop: int, many: int) -> _Run:
        pieces: list[object] = []
        copies: dict[int, Tensor] = {}
        batch: list[Tensor] = []
        for leaf, dim in zip(self.leaves, self.dims, strict=True):
            if isinstance(leaf, Tensor):
                if id(leaf) not in copies:
                    copies[id(leaf)] = _piece(leaf, dim, start, stop)
                pieces.append(copies[id(leaf)])
                if dim is not None:
                    batch.append(copies[id(leaf)])
            else:
                pieces.append(leaf)
        versions = [(copy, copy._version) for copy in copies.values()]
        args, kwargs = cast("tuple[Any, Any]", rebuild(self.tree, pieces))
        streams = stream_states()
        torch.manual_seed(0)
        watch = Watch(batch, self.state)
        attributes = Snapshot(self.module)
        try:
            with _ProbeRegion((stop - start) / many, self.counted).running(), watch:
                output = self.forward(self.module, *args, **kwargs)
            self._check(watch, attributes, versions, streams)
            written = {name: tensor.detach().clone() for name, tensor in watch.written()}
        except _Trial:
            raise
        except Exception as error:
            text = str(error).strip().split("\n")[0][:120]
            raise _Trial(Full(f"it does not run on a part of the batch ({type(error).__name__}: {text})")) from error
        finally:
            watch.restore()
            set_stream_states(streams)
        found, structure = flatten(output)
        depends = [isinstance(leaf, Tensor) and watch.depends(leaf) for leaf in found]
        return _Run(found, structure, watch.operations, depends, written)

    def _check(
        self,
        watch: Watch,
        attributes: Snapshot,
        versions: list[tuple[Tensor, int]],
        streams: tuple[object, object],
    ) -> None:
        if watch.reason is not None:
            raise _Trial(Full(watch.reason))
        written = watch.written_from_batch()
        written += [name for name, tensor in attributes.replaced_buffers() if watch.depends(tensor)]
        if written:
            raise _Trial(Full(f"forward() updates {written[0]} from the batch", lasting=True))
        kept = [name for name, tensor in attributes.tensors() if watch.depends(tensor)]
        if kept:
            raise _Trial(Full(f"forward() keeps values of the batch in {kept[0]}", lasting=True))
        if any(tensor._version != version for tensor, version in versions):
            raise _Trial(Full("forward() changes its arguments in place", lasting=True))
        if not same_states(streams, stream_states()):
            raise _Trial(Full("forward() draws from Python's or numpy's random numbers", lasting=True))

    def _judge(self, whole: _Run, pieces: list[_Run], weight: float) -> Split:
        first, second = pieces
        if whole.structure != first.structure or whole.structure != second.structure:
            raise _Trial(Full("the structure of its output depends on the number of samples"))
        for piece in pieces:
            for name in {**whole.written, **piece.written}:
                if not _same_values(whole.written.get(name), piece.written.get(name)):
                    raise _Trial(Full(f"forward() updates {name} by the number of samples", lasting=True))
        alike = all(dataflow.same_operations(whole.operations, piece.operations) for piece in pieces)
        draws: tuple[Draw, ...] | str = ()
        if alike:
            mixed = dataflow.mixing(whole.operations, first.operations)
            if mixed is not None:
                raise _Trial(Full(mixed))
            draws = dataflow.draws(whole.operations, first.operations)
            if isinstance(draws, str):
                raise _Trial(Full(draws))
        elif any(operation.sizes for operation in whole.operations):
            raise _Trial(Full("its random operators vary with the number of samples"))
        outputs = [
            self._output(index, leaf, first.outputs[index], second.outputs[index], weight, whole.depends[index])
            for index, leaf in enumerate(whole.outputs)
        ]
        if all(output.how == "same" for output in outputs):
            raise _Trial(Full("its outputs do not depend on the batch"))
        if any(output.how in ("mean", "sum") for output in outputs):
            if not alike:
                raise _Trial(Full("it sums over samples, by operators that vary with their number"))
            if dataflow.selects(whole.operations):
                raise _Trial(Full("it sums over samples that it selects by their values"))
        names = tuple(operation.name for operation in whole.operations) if alike else ()
        return Split(self.dims, tuple(outputs), draws, names)

    def _output(
        self, index: int, whole: object, first: object, second: object, weight: float, depends: bool
    ) -> Output:
        if not isinstance(whole, Tensor) or not isinstance(first, Tensor) or not isinstance(second, Tensor):
            if type(whole) is type(first) is type(second) and whole == first == second:
                return Output("same")
            raise _Trial(Full(f"output {index} is a {type(whole).__name__} that depends on the samples"))
        if type(whole) not in (Tensor, nn.Parameter, nn.Buffer) or whole.layout is not torch.strided:
            raise _Trial(Full(f"output {index} is not a plain tensor"))
        dim = _row_dim(whole, first, second)
        if dim is not None and close(whole, torch.cat([first, second], dim)):
            return Output("rows", dim)
        if not depends:
            if close(whole, first) and close(whole, second):
                return Output("same")
        elif whole.shape == first.shape == second.shape and whole.is_floating_point():
            return self._total(index, whole, first, second, weight)
        raise _Trial(Full(f"output {index} of shape {tuple(whole.shape)} is not computed sample by sample"))

    def _total(self, index: int, whole: Tensor, first: Tensor, second: Tensor, weight: float) -> Output:
        mean = close(whole, first * weight + second * (1 - weight), exact=True)
        added = close(whole, first + second, exact=True)
        if mean and added:
            raise _Trial(Full(f"output {index} is zero, a sum and a mean alike", undecided=True))
        if mean or added:
            return Output("mean" if mean else "sum")
        raise _Trial(Full(f"output {index} is neither a sum nor a mean over the samples"))


def _piece(leaf: Tensor, dim: int | None, start: int, stop: int) -> Tensor:
    rows = leaf.detach() if dim is None else leaf.detach().narrow(dim, start, stop - start)
    piece = rows.clone()
    if not leaf.requires_grad:
        return piece
    with torch.enable_grad():
        return piece.requires_grad_().clone()  # not a leaf of the graph: like the rows of a split call


def _sample_counts(leaves: Sequence[object], dims: Sequence[int | None]) -> tuple[int, int]:
    """How many samples to try and how many of them in the first piece: sizes that no argument has elsewhere."""
    rows = rows_of(leaves, dims)
    others = {
        size
        for leaf, dim in zip(leaves, dims, strict=True)
        if isinstance(leaf, Tensor)
        for d, size in enumerate(leaf.shape)
        if d != dim
    }
    pairs = [(5, 3), (7, 4), (6, 4), (9, 5), (8, 5), (11, 7), (4, 3), (3, 2)]
    usable = [pair for pair in pairs if pair[0] <= rows]
    distinct = [pair for pair in usable if not {pair[0], pair[1], pair[0] - pair[1]} & others]
    return (distinct or usable or [(2, 1)])[0]


@contextmanager
def _shown_zeros(module: nn.Module) -> Iterator[None]:
    """Give parameters that are all zero some values: they would hide what they multiply."""
    hidden: list[tuple[nn.Parameter, Tensor]] = []
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.is_floating_point() and parameter.numel() and not bool(parameter.any()):
                count = torch.arange(parameter.numel(), dtype=torch.float32, device=parameter.device)
                values = parameter.data
                parameter.data = (0.1 + 0.05 * torch.cos(count)).to(parameter.dtype).view(parameter.shape)
                hidden.append((parameter, values))
    try:
        yield
    finally:
        for parameter, values in hidden:
            parameter.data = values


def _row_dim(whole: Tensor, first: Tensor, second: Tensor) -> int | None:
    if not whole.ndim == first.ndim == second.ndim:
        return None
    return next(
        (
            dim
            for dim in range(whole.ndim)
            if whole.shape[dim] == first.shape[dim] + second.shape[dim] and first.shape[dim] and second.shape[dim]
        ),
        None,
    )


def _same_values(first: Tensor | None, second: Tensor | None) -> bool:
    return first is not None and second is not None and close(first, second)


_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}


def close(first: Tensor, second: Tensor, *, exact: bool = False) -> bool:
    """Whether two results are equal up to rounding; `exact`: of a sum that is known to be of equal terms."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    if first.is_complex():
        return close(torch.view_as_real(first), torch.view_as_real(second), exact=exact)
    if not first.is_floating_point():
        return bool(torch.equal(first, second))
    tolerance = _TOLERANCE.get(first.dtype, 3e-2)
    if exact:
        tolerance = min(tolerance, 1e-5) if first.dtype in (torch.float32, torch.float64) else tolerance
    a, b = first.detach().double(), second.detach().double()
    finite = a[a.isfinite()]
    scale = float(finite.abs().max()) if finite.numel() else 1.0
    return bool(torch.allclose(a, b, rtol=tolerance, atol=tolerance * (scale if not exact else 1e-3), equal_nan=True))
