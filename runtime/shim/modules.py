"""Splits the outermost call of a module over the ranks and puts its outputs together again."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportPrivateUsage=false
# (torch annotates parts of itself incompletely, and not all that a shim needs is public)

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakSet

import torch
from torch import Tensor, nn

from ...configs.errors import XlError
from . import trees
from .aside import refuse_training_child
from .checksum import agree, caller, same_everywhere, text_digest
from .frames import recomputed_outside
from .plans import Call, Plans
from .probing.arguments import rows_of
from .probing.confirm import Confirmation
from .probing.decision import Full, Output, Split
from .probing.probe import probe
from .probing.settings import COMPUTED, SHAPELESS, obstacle_of, settings_of
from .probing.surroundings import NOTHING, Surroundings
from .randomness import set_torch_streams, torch_streams
from .region import SplitRegion
from .session import shares
from .split import Part, combine, gather, scatter, spread

if TYPE_CHECKING:
    from .gradients import GradientSide
    from .session import Session

Forward = Callable[..., object]


class _Depth(threading.local):
    inside = False


class ModuleCalls:
    """Replaces `nn.Module.__call__`.

    Args:
        session: the shim's state.
        gradients: averages gradients and sets the precision of the root call.
    """

    def __init__(self, session: Session, gradients: GradientSide) -> None:
        self._session, self._gradients = session, gradients
        self._forward = cast("Forward", nn.Module.__call__)
        self._plans = Plans()
        self._surroundings = Surroundings()
        self._verified: WeakSet[nn.Module] = WeakSet()
        self._depth = _Depth()
        self._process, self._thread = os.getpid(), threading.get_ident()
        self._calls = 0

    def install(self) -> None:
        """Patch `nn.Module.__call__`."""
        forward, depth, session = self._forward, self._depth, self._session

        def call(module: nn.Module, *args: object, **kwargs: object) -> object:
            if depth.inside or session.in_backward or self._passes(module):
                return forward(module, *args, **kwargs)
            depth.inside = True
            try:
                return self._root(module, args, kwargs)
            finally:
                depth.inside = False

        session.patch(nn.Module, "__call__", call)

    def _passes(self, module: nn.Module) -> bool:
        """Whether this call is none of ours."""
        if os.getpid() != self._process:
            refuse_training_child(self._session, module)
            return True
        return (
            self._session.aside is not None
            or next(module.parameters(), None) is None
            or torch.compiler.is_compiling()
            or torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]
            or isinstance(module, nn.parallel.DistributedDataParallel)
            or cast("Any", torch._C)._functorch.maybe_current_level() is not None
        )

    def _root(self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        session = self._session
        if threading.get_ident() != self._thread:
            # Calls of several threads come in any order, and collectives must not.
            return self._in_full(module, args, kwargs, "it is called from a thread of the script")
        found = self._surroundings.find(module) if session.size > 1 else NOTHING
        obstacle = obstacle_of(module, found) or recomputed_outside()
        if obstacle == SHAPELESS:
            return self._in_full(module, args, kwargs, obstacle)
        session.activate(_device_of(module))
        if obstacle != COMPUTED:
            self._gradients.track(module)
        leaves, structure = trees.flatten((args, kwargs))
        self._gradients.watch_inputs(leaves)
        if session.size == 1:
            return self._in_full(module, args, kwargs, "one process")
        call, fresh = Call(leaves, structure, settings_of(module, found.variables)), False
        decision: Split | Full = (
            Full(obstacle) if obstacle is not None else self._decide(module, (args, kwargs), call)
        )
        if isinstance(decision, Split):
            decision, fresh = self._fitting(module, (args, kwargs), call, decision)
        if not self._agreed(module, leaves, decision):
            refusal = Full("the processes came to different conclusions about it")
            if isinstance(decision, Split):
                self._plans.confirm(module, call, rows_of(leaves, decision.dims), refusal)
            decision = refusal
        if isinstance(decision, Full):
            return self._in_full(module, args, kwargs, decision.reason)
        assert session.comm is not None
        rows = rows_of(leaves, decision.dims)
        part = Part(session.comm, tuple(shares(rows, session.size)), session.report)
        if (fresh or module not in self._verified) and module.training and torch.is_grad_enabled():
            self._verified.add(module)
            return self._split_first(module, (args, kwargs), leaves, decision, part)
        return self._split(module, (args, kwargs), leaves, decision, part)

    def _decide(self, module: nn.Module, tree: object, call: Call) -> Split | Full:
        def ask() -> Split | Full:
            self._session.report.probes += 1
            # A compiled module is tried as it was written: compiling for every try would take minutes.
            plain = getattr(module, "_orig_mod", module)
            variables = self._surroundings.of(module)
            found = probe(self._forward, plain, tree, call.leaves, variables, self._in_backward)
            if plain is not module and isinstance(found, Split) and _needs_region(plain, found):
                return Full("it is compiled and has batch norm or random operators")
            return found

        return self._plans.decide(module, call, ask)

    def _fitting(
        self, module: nn.Module, tree: object, call: Call, split: Split
    ) -> tuple[Split | Full, bool]:
        """Return the decision for the real number of rows, and whether it is the first time."""
        session = self._session
        rows = rows_of(call.leaves, split.dims)
        if rows < session.size:
            return Full(f"its batch of {rows} is smaller than the number of processes"), False
        found = self._surroundings.find(plain := getattr(module, "_orig_mod", module))
        if not found.sees_sizes:  # as many samples as there are, it does the same
            return split, False
        known = self._plans.confirmed(module, call, split, rows, session.size)
        if known is not None:
            return known, False
        ranks = tuple(shares(rows, session.size))
        try:
            refusal = Confirmation(
                self._forward, plain, tree, call.leaves, split, ranks, session.rank, found.variables
            ).run()
        except torch.OutOfMemoryError:
            name = type(module).__name__
            session.note(
                f"{name} was tried on a few samples only: its whole batch does not fit on the device"
            )
            refusal = None
        self._plans.confirm(module, call, rows, refusal)
        return refusal or split, True

    @contextmanager
    def _in_backward(self) -> Generator[None]:
        """While gradients are tried, what checkpointing recomputes is no call of the script's."""
        before, self._session.in_backward = self._session.in_backward, True
        try:
            yield
        finally:
            self._session.in_backward = before

    def _agreed(self, module: nn.Module, leaves: list[object], decision: Split | Full) -> bool:
        comm = self._session.comm
        if comm is None:
            raise AssertionError("a call is split before the ranks are connected")
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        self._calls += 1
        self._session.report.collectives["checksum"] += 1
        digest = text_digest(decision if isinstance(decision, Split) else "full")
        return agree(comm, tensors, self._calls, caller(), type(module).__name__, digest)

    def _in_full(
        self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], reason: str
    ) -> object:
        name = type(module).__name__
        self._session.report.full_calls[f"{name}: {reason}"] += 1
        output = self._run(module, args, kwargs)
        if self._session.size > 1:  # after it: a call that fails has a better reason to tell
            self._session.note(f"{name} runs in full on every process: {reason}")
        return output

    def _run(self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        with self._gradients.autocast():
            output = self._forward(module, *args, **kwargs)
        return self._gradients.finish_output(output)

    def _split_first(
        self, module: nn.Module, tree: tuple[Any, Any], leaves: list[object], split: Split, part: Part
    ) -> object:
        """Split a size's first training call; where buffers then differ between ranks, run it in full."""
        buffers = list(module.buffers())
        before = [buffer.detach().clone() for buffer in buffers]
        streams = torch_streams(part.comm.device)
        output = self._split(module, tree, leaves, split, part)
        if not buffers or same_everywhere(part.comm, list(module.buffers())):
            return output
        set_torch_streams(streams)
        with torch.no_grad():
            for buffer, values in zip(buffers, before, strict=True):
                buffer.copy_(values)
        self._session.report.split_calls[type(module).__name__] -= 1
        reason = "its buffers came out differently on the processes"
        self._plans.refuse(module, reason)
        return self._in_full(module, *tree, reason)

    def _split(
        self, module: nn.Module, tree: tuple[Any, Any], leaves: list[object], split: Split, part: Part
    ) -> object:
        pieces = _scattered(leaves, split, part)
        args, kwargs = cast("tuple[Any, Any]", trees.rebuild(tree, pieces))
        _, structure = trees.flatten((args, kwargs))
        with SplitRegion(part, split.draws).running():
            output = self._run(module, args, kwargs)
        if not trees.same_tree((args, kwargs), pieces, structure):
            raise _changed_arguments(module)
        found, _ = trees.flatten(output)
        if len(found) != len(split.outputs):
            raise _changed_output(module, f"{len(found)} outputs, {len(split.outputs)} when it was tried")
        whole: dict[int, object] = {}  # by leaf: the same tensor given out twice stays one
        for leaf, how in zip(found, split.outputs, strict=True):
            if id(leaf) not in whole:
                whole[id(leaf)] = (
                    leaves[how.dim] if how.how == "argument" else _together(module, leaf, how, part)
                )
        self._session.report.split_calls[type(module).__name__] += 1
        return trees.rebuild(output, [whole[id(leaf)] for leaf in found])


def _device_of(module: nn.Module) -> torch.device:
    return next(module.parameters()).device


def _needs_region(module: nn.Module, split: Split) -> bool:
    norms = any(
        isinstance(child, nn.modules.batchnorm._NormBase) and child.training for child in module.modules()
    )
    return norms or bool(split.draws) or any(output.how in ("mean", "sum") for output in split.outputs)


def _scattered(leaves: list[object], split: Split, part: Part) -> list[object]:
    done: dict[tuple[int, int | None], Tensor] = {}
    found: list[object] = []
    for leaf, dim in zip(leaves, split.dims, strict=True):
        if not isinstance(leaf, Tensor):
            found.append(leaf)
            continue
        key = (id(leaf), dim)  # the leaves are alive, so an id is one tensor
        if key not in done:
            if dim is not None:
                done[key] = scatter(leaf, dim, part)
            else:
                done[key] = spread(leaf, part) if leaf.requires_grad and not leaf.is_leaf else leaf
        found.append(done[key])
    return found


def _together(module: nn.Module, leaf: object, output: Output, part: Part) -> object:
    if output.how == "same":
        return leaf
    if not isinstance(leaf, Tensor):
        raise _changed_output(module, f"a {type(leaf).__name__} instead of a tensor")
    if output.how == "rows":
        if output.dim >= leaf.ndim or leaf.shape[output.dim] % part.here:
            raise _changed_output(module, f"shape {tuple(leaf.shape)} for {part.here} samples")
        return gather(leaf, output.dim, part)
    return combine(leaf, part.fraction if output.how == "mean" else 1.0, part)


def _changed_arguments(module: nn.Module) -> XlError:
    return XlError(
        f"{type(module).__name__} put something into a dict or list that it was given",
        "it did not when xl tried how to split it, and here it holds the rows of one process only",
        "return it instead, or pass --num-processes 1",
        exit_code=1,
    )


def _changed_output(module: nn.Module, what: str) -> XlError:
    return XlError(
        f"{type(module).__name__} returned {what}",
        "its output has another form than when xl tried how to split it",
        "run it on one process, or keep the form of its output fixed",
        exit_code=1,
    )
