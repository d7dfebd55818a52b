"""Finds out how a module call may be split: tries the module on a few samples at once and in two pieces.

The trial runs in the mode of the call and leaves no trace: parameters, buffers, attributes and random
streams are put back. It is local to the process. What it cannot show to be safe is run in full.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportPrivateUsage=false
# (torch annotates parts of itself incompletely, and not all that a shim needs is public)

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..randomness import preserved_streams, same_states, set_stream_states, stream_states
from ..trees import flatten, rebuild, same_tree
from . import backward_graph
from .arguments import candidates, piece_of, sample_counts, unsuitable
from .decision import Full, Split
from .effects import contained
from .gradient_proof import check_gradients
from .judge import judge
from .kinds import is_stream
from .snapshot import Snapshot
from .surroundings import Variable, uncached
from .trial import Run, TrialRegion, Unsplittable, does_not_run, shown_zeros
from .watch import Watch

Forward = Any
_MAX_TRIALS = 12


def probe(
    forward: Forward,
    module: nn.Module,
    tree: object,
    leaves: list[object],
    variables: Sequence[Variable] = (),
    in_backward: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Split | Full:
    """Return how the call `forward(module, *args, **kwargs)`, `tree` being (args, kwargs), may be split.

    Args:
        forward: calls the module.
        module, tree, leaves: the module, its (args, kwargs), and these flattened.
        variables: what its forward uses outside of it, see `surroundings`.
        in_backward: entered while gradients are computed.
    """
    refusal = unsuitable(leaves) or _unsuitable_state(module, variables)
    if refusal is not None:
        return refusal
    whys: list[str] = []
    for dims in itertools.islice(candidates(leaves), _MAX_TRIALS):
        try:
            return _Probe(forward, module, tree, leaves, dims, variables, in_backward).run()
        except Unsplittable as trial:
            if trial.full.lasting or trial.full.undecided:
                return trial.full
            whys.append(trial.full.reason)
    return Full(whys[0]) if whys else Full("no argument has two samples or more", undecided=True)


def _unsuitable_state(module: nn.Module, variables: Sequence[Variable]) -> Full | None:
    """Return why no call of this module is tried: a trial could not be undone, or would not tell."""
    for child in module.modules():
        name = type(child).__name__
        if isinstance(child, torch.jit.ScriptModule):
            return Full(f"{name} is compiled by TorchScript and cannot be looked into", lasting=True)
        if getattr(child, "scale_grad_by_freq", False):
            return Full(f"{name} scales gradients by counts over the batch", lasting=True)
        held = [*vars(child).items(), *((variable.name, variable.get()) for variable in variables)]
        for attribute, value in held:
            if is_stream(value):
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
        variables: Sequence[Variable],
        in_backward: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.forward, self.module, self.tree, self.leaves, self.dims = forward, module, tree, leaves, dims
        self.variables, self.in_backward = variables, in_backward
        around = [(v.name, value) for v in variables if isinstance(value := v.get(), Tensor)]
        self.state = [*module.named_parameters(), *module.named_buffers(), *around]
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        self.device = next((t.device for t in (*(t for _, t in self.state), *tensors)), torch.device("cpu"))
        self.counted: list[Any] = []

    def run(self) -> Split | Full:
        grad = torch.is_grad_enabled()
        # Tensors made in inference mode have no version, and cannot stand in for parameters.
        with torch.inference_mode(False), torch.set_grad_enabled(grad), uncached(self.variables):
            return self._run()

    def _check_arguments(self) -> None:
        """A leaf that all samples share would be left with the gradient of one process's rows."""
        for leaf, dim in zip(self.leaves, self.dims, strict=True):
            if isinstance(leaf, Tensor) and dim is None and leaf.requires_grad and leaf.is_leaf:
                raise Unsplittable("an argument that all samples share needs a gradient")

    def _run(self) -> Split | Full:
        self._check_arguments()
        many, few = sample_counts(self.leaves, self.dims)
        before = Snapshot(self.module, self.variables)
        if before.obstacle is not None:
            return Full(before.obstacle, lasting=True)
        self.state += before.outside
        data = [(parameter, parameter.data) for parameter in self.module.parameters()]
        with preserved_streams(self.device), shown_zeros(self.module):
            try:
                whole = self._whole(many, before)
                settled = Snapshot(self.module, self.variables)
                pieces = [self._forward(0, few, many), self._forward(few, many, many)]
                changed = settled.changed()
                if changed:  # a cache by the length of what was cut: it may lie along another dim
                    raise Unsplittable(f"forward() changes {changed[0]} by the number of samples")
                split = judge(self.dims, whole, pieces, few / many)
                with self.in_backward():
                    check_gradients(split, whole, pieces, self.module, few / many)
            finally:
                before.restore()
                for parameter, values in data:
                    if parameter.data_ptr() != values.data_ptr():
                        parameter.data = values
        return split

    def _whole(self, many: int, before: Snapshot) -> Run:
        run = self._forward(0, many, many)
        if not before.changed():
            return run
        # It may have filled a cache (a mask, a table of positions): then it changes nothing the second time.
        filled = Snapshot(self.module, self.variables)
        self.counted.clear()
        run = self._forward(0, many, many)
        again = filled.changed()
        if again:
            raise Unsplittable(f"forward() changes {again[0]}", lasting=True)
        return run

    def _forward(self, start: int, stop: int, many: int) -> Run:
        copies = {
            id(leaf): piece_of(leaf, dim, start, stop)
            for leaf, dim in zip(self.leaves, self.dims, strict=True)
            if isinstance(leaf, Tensor)
        }
        pieces = [copies[id(leaf)] if isinstance(leaf, Tensor) else leaf for leaf in self.leaves]
        batch = [piece for piece, dim in zip(pieces, self.dims, strict=True) if dim is not None]
        watch = Watch(cast("list[Tensor]", batch), self.state)
        attributes = Snapshot(self.module, self.variables)
        region = TrialRegion((stop - start) / many, self.counted, lambda tensor: not watch.depends(tensor))
        versions = [(copy, copy._version) for copy in copies.values()]
        streams = stream_states()
        torch.manual_seed(0)
        try:
            output = self._call(pieces, watch, region)
            self._check(watch, attributes, versions, streams)
            changed = [*watch.written(), *attributes.replaced_buffers()]
            written = {name: tensor.detach().clone() for name, tensor in changed}
        finally:
            watch.restore()
            set_stream_states(streams)
        found, structure = flatten(output)
        obstacle = backward_graph.obstacle(found, self.module.parameters(), list(copies.values()))
        if obstacle is not None:
            raise Unsplittable(obstacle, lasting=True)
        depends = [isinstance(leaf, Tensor) and watch.depends(leaf) for leaf in found]
        return Run(pieces, found, structure, watch.operations, depends, written, region)

    def _call(self, pieces: list[object], watch: Watch, region: TrialRegion) -> object:
        args, kwargs = cast("tuple[Any, Any]", rebuild(self.tree, pieces))
        _, structure = flatten((args, kwargs))
        output: object = None
        try:
            with contained() as effects, region.running(), watch:
                output = self.forward(self.module, *args, **kwargs)
        except Unsplittable:
            raise
        except Exception as error:
            raise Unsplittable(does_not_run(error)) from error
        if effects.what is not None:
            raise Unsplittable(f"forward() {effects.what}", lasting=True)
        if not same_tree((args, kwargs), pieces, structure):
            raise Unsplittable("forward() changes its arguments in place", lasting=True)
        region.check_ended()
        return output

    def _check(
        self,
        watch: Watch,
        attributes: Snapshot,
        versions: list[tuple[Tensor, int]],
        streams: tuple[object, object],
    ) -> None:
        if watch.reason is not None:
            raise Unsplittable(watch.reason)
        written = watch.written_from_batch()
        written += [name for name, tensor in attributes.replaced_buffers() if watch.depends(tensor)]
        if written:
            raise Unsplittable(f"forward() updates {written[0]} from the batch", lasting=True)
        kept = [name for name, tensor in attributes.tensors() if watch.depends(tensor)]
        if kept:
            raise Unsplittable(f"forward() keeps values of the batch in {kept[0]}", lasting=True)
        if any(tensor._version != version for tensor, version in versions):
            raise Unsplittable("forward() changes its arguments in place", lasting=True)
        if not same_states(streams, stream_states()):
            raise Unsplittable("forward() draws from Python's or numpy's random numbers", lasting=True)
