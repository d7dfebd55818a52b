"""Finds out how a module call may be split: tries the module on a few samples at once and in two pieces.

The trial runs in the mode of the call and leaves no trace: parameters, buffers, attributes and random
streams are put back. It is local to the process. What it cannot show to be safe is run in full.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportPrivateUsage=false
# (torch annotates parts of itself incompletely, and not all that a shim needs is public)

from __future__ import annotations

import itertools
import random
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from ..randomness import Draw, preserved_streams, same_states, set_stream_states, stream_states
from ..region import entered, moments_of
from ..trees import Structure, flatten, rebuild
from . import backward_graph, dataflow
from .arguments import PLAIN, candidates, piece_of, sample_counts, unsuitable
from .compare import close, row_dim, same_values
from .decision import Full, Output, Split
from .snapshot import Snapshot
from .watch import Operation, Watch

Forward = Any
_MAX_TRIALS = 12
_FAINT = 1e-3  # parameters below it would hide what they multiply in the tolerance of a comparison


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
    def running(self, position: int = 0) -> Generator[None]:
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
    refusal = unsuitable(leaves) or _unsuitable_state(module)
    if refusal is not None:
        return refusal
    whys: list[str] = []
    for dims in itertools.islice(candidates(leaves), _MAX_TRIALS):
        try:
            return _Probe(forward, module, tree, leaves, dims).run()
        except _Trial as trial:
            if trial.full.lasting or trial.full.undecided:
                return trial.full
            whys.append(trial.full.reason)
    return Full(whys[0]) if whys else Full("no argument has two samples or more", undecided=True)


def _unsuitable_state(module: nn.Module) -> Full | None:
    """Return why no call of this module is tried: a trial could not be undone, or would not tell."""
    for child in module.modules():
        name = type(child).__name__
        if isinstance(child, torch.jit.ScriptModule):
            return Full(f"{name} is compiled by TorchScript and cannot be looked into", lasting=True)
        if getattr(child, "scale_grad_by_freq", False):
            return Full(f"{name} scales gradients by counts over the batch", lasting=True)
        for attribute, value in vars(child).items():
            if isinstance(value, (random.Random, itertools.count, torch.Generator)) or type(
                value
            ).__module__.startswith("numpy.random"):
                return Full(f"it draws from a stream of its own, {attribute}", lasting=True)
    return None


class _Probe:
    """One trial of one way to split a call."""

    def __init__(
        self,
        forward: Forward,
        module: nn.Module,
        tree: object,
        leaves: list[object],
        dims: tuple[int | None, ...],
    ) -> None:
        self.forward, self.module, self.tree, self.leaves, self.dims = forward, module, tree, leaves, dims
        self.state = [*module.named_parameters(), *module.named_buffers()]
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        self.device = next((t.device for t in (*(t for _, t in self.state), *tensors)), torch.device("cpu"))
        self.counted: list[Any] = []

    def run(self) -> Split | Full:
        grad = torch.is_grad_enabled()
        # Tensors made in inference mode have no version, and cannot stand in for parameters.
        with torch.inference_mode(False), torch.set_grad_enabled(grad):
            return self._run()

    def _check_arguments(self) -> None:
        """A leaf that all samples share would be left with the gradient of one process's rows."""
        for leaf, dim in zip(self.leaves, self.dims, strict=True):
            if isinstance(leaf, Tensor) and dim is None and leaf.requires_grad and leaf.is_leaf:
                raise _Trial(Full("an argument that all samples share needs a gradient"))

    def _run(self) -> Split | Full:
        self._check_arguments()
        many, few = sample_counts(self.leaves, self.dims)
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
                    copies[id(leaf)] = piece_of(leaf, dim, start, stop)
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
            changed = [*watch.written(), *attributes.replaced_buffers()]
            written = {name: tensor.detach().clone() for name, tensor in changed}
        except _Trial:
            raise
        except Exception as error:
            text = str(error).strip().split("\n")[0][:120]
            raise _Trial(
                Full(f"it does not run on a part of the batch ({type(error).__name__}: {text})")
            ) from error
        finally:
            watch.restore()
            set_stream_states(streams)
        found, structure = flatten(output)
        obstacle = backward_graph.obstacle(found, self.module.parameters(), list(copies.values()))
        if obstacle is not None:
            raise _Trial(Full(obstacle, lasting=True))
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
        self._check_runs(whole, pieces)
        first, second = pieces
        alike, draws = self._compare_operations(whole, pieces)
        outputs = [
            self._output(
                index, leaf, first.outputs[index], second.outputs[index], weight, whole.depends[index]
            )
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

    def _check_runs(self, whole: _Run, pieces: list[_Run]) -> None:
        """What must hold whatever the outputs: one structure, and state that does not follow the samples."""
        first, second = pieces
        if whole.structure != first.structure or whole.structure != second.structure:
            raise _Trial(Full("the structure of its output depends on the number of samples"))
        for piece in pieces:
            for name in {**whole.written, **piece.written}:
                if not same_values(whole.written.get(name), piece.written.get(name)):
                    raise _Trial(Full(f"forward() updates {name} by the number of samples", lasting=True))

    def _compare_operations(self, whole: _Run, pieces: list[_Run]) -> tuple[bool, tuple[Draw, ...]]:
        """Whether all runs were the same operators, and how the random ones are drawn."""
        first = pieces[0]
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
        return alike, draws

    def _output(
        self, index: int, whole: object, first: object, second: object, weight: float, depends: bool
    ) -> Output:
        if not isinstance(whole, Tensor) or not isinstance(first, Tensor) or not isinstance(second, Tensor):
            plain = type(whole) is type(first) is type(second) and isinstance(whole, PLAIN)
            if plain and whole == first == second:
                return Output("same")
            raise _Trial(Full(f"output {index} is a {type(whole).__name__} that depends on the samples"))
        if type(whole) not in (Tensor, nn.Parameter, nn.Buffer) or whole.layout is not torch.strided:
            raise _Trial(Full(f"output {index} is not a plain tensor"))
        dim = row_dim(whole, first, second)
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


@contextmanager
def _shown_zeros(module: nn.Module) -> Generator[None]:
    """Give parameters that are all zero, or nearly, some values: they would hide what they multiply."""
    hidden: list[tuple[nn.Parameter, Tensor]] = []
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.is_floating_point() and parameter.numel() and float(parameter.abs().max()) < _FAINT:
                count = torch.arange(parameter.numel(), dtype=torch.float32, device=parameter.device)
                values = parameter.data
                parameter.data = (0.1 + 0.05 * torch.cos(count)).to(parameter.dtype).view(parameter.shape)
                hidden.append((parameter, values))
    try:
        yield
    finally:
        for parameter, values in hidden:
            parameter.data = values
