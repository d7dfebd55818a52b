"""Splits the outermost call of a module over the ranks and puts its outputs together again."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from ...configs.errors import XlError
from . import trees
from .checksum import agree, caller, text_digest
from .plans import Call, Plans, mode_of
from .probe import Full, Output, Split, probe, rows_of
from .region import SplitRegion
from .session import shares
from .split import Part, average, combine, gather, scatter, spread

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
        return (
            self._session.aside is not None
            or os.getpid() != self._process
            or next(module.parameters(), None) is None
            or torch.compiler.is_compiling()
            or torch.jit.is_tracing()
            or isinstance(module, nn.parallel.DistributedDataParallel)
            or torch._C._functorch.maybe_current_level() is not None
        )

    def _root(self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        session = self._session
        obstacle = self._obstacle(module)
        if obstacle is not None and obstacle.undecided:
            return self._in_full(module, args, kwargs, obstacle.reason)
        session.activate(_device_of(module))
        self._gradients.track(module, (args, kwargs))
        if session.size == 1:
            return self._in_full(module, args, kwargs, "one process")
        leaves, structure = trees.flatten((args, kwargs))
        decision = obstacle or self._decide(module, (args, kwargs), leaves, structure)
        rows = rows_of(leaves, decision.dims) if isinstance(decision, Split) else 0
        if isinstance(decision, Split) and rows < session.size:
            decision = Full(f"its batch of {rows} is smaller than the number of processes")
        if not self._agreed(module, leaves, decision):
            reason = "the processes came to different conclusions about it"
            self._plans.refuse(module, reason)
            decision = Full(reason)
        if isinstance(decision, Full):
            return self._in_full(module, args, kwargs, decision.reason)
        return self._split(module, (args, kwargs), leaves, decision, rows)

    def _obstacle(self, module: nn.Module) -> Full | None:
        """What forbids to split a module, before its arguments are looked at; `undecided`: only this time."""
        if threading.get_ident() != self._thread:
            return Full("it is called from a thread of the script", undecided=True)
        if any(isinstance(p, nn.parameter.UninitializedTensorMixin) for p in module.parameters()):
            return Full("its parameters take their shape in this call", undecided=True)
        if any(not parameter.is_leaf for parameter in module.parameters()):
            return Full("its parameters are computed by the script (functional_call)")
        if torch.autograd.forward_ad._current_level >= 0:
            return Full("forward-mode differentiation is active")
        hooked = next(
            (name or type(module).__name__ for name, c in module.named_modules() if _has_hooks(c)), None
        )
        if hooked is not None:
            return Full(f"a hook on {hooked} must see the whole batch")
        return None

    def _decide(
        self, module: nn.Module, tree: object, leaves: list[object], structure: object
    ) -> Split | Full:
        def ask() -> Split | Full:
            self._session.report.probes += 1
            # A compiled module is tried as it was written: compiling for every try would take minutes.
            plain = getattr(module, "_orig_mod", module)
            found = probe(self._forward, plain, tree, leaves)
            if plain is not module and isinstance(found, Split) and _needs_region(plain, found):
                return Full("it is compiled and has batch norm or random operators")
            return found

        return self._plans.decide(module, Call(leaves, structure, mode_of(module)), ask)

    def _agreed(self, module: nn.Module, leaves: list[object], decision: Split | Full) -> bool:
        comm = self._session.comm
        if comm is None:
            raise AssertionError("a call is split before the ranks are connected")
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        self._calls += 1
        self._session.report.collectives["checksum"] += 1
        return agree(comm, tensors, self._calls, caller(), type(module).__name__, text_digest(decision))

    def _in_full(
        self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], reason: str
    ) -> object:
        name = type(module).__name__
        self._session.report.full_calls[f"{name}: {reason}"] += 1
        if self._session.size > 1:
            self._session.note(f"{name} runs in full on every process: {reason}")
        return self._run(module, args, kwargs)

    def _run(self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        with self._gradients.autocast():
            output = self._forward(module, *args, **kwargs)
        return self._gradients.finish_output(output)

    def _split(
        self, module: nn.Module, tree: tuple[Any, Any], leaves: list[object], split: Split, rows: int
    ) -> object:
        session = self._session
        assert session.comm is not None
        part = Part(session.comm, tuple(shares(rows, session.size)), session.report)
        args, kwargs = cast("tuple[Any, Any]", trees.rebuild(tree, _scattered(leaves, split, part)))
        with SplitRegion(part, split.draws).running():
            output = self._run(module, args, kwargs)
        found, _ = trees.flatten(output)
        if len(found) != len(split.outputs):
            raise _changed_output(module, f"{len(found)} outputs, {len(split.outputs)} when it was tried")
        whole = [_together(module, leaf, how, part) for leaf, how in zip(found, split.outputs, strict=True)]
        session.report.split_calls[type(module).__name__] += 1
        return trees.rebuild(output, whole)


def _device_of(module: nn.Module) -> torch.device:
    return next(module.parameters()).device


def _has_hooks(module: nn.Module) -> bool:
    """Hooks of the user; those that torch puts there itself (weight norm, pruning) only look at parameters."""
    hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
    hooks += [*module._backward_hooks.values(), *module._backward_pre_hooks.values()]
    root = nn.modules.module
    hooks += [*root._global_forward_hooks.values(), *root._global_forward_pre_hooks.values()]
    hooks += [*root._global_backward_hooks.values(), *root._global_backward_pre_hooks.values()]
    return any(not str(getattr(type(hook), "__module__", "")).startswith("torch.nn.utils") for hook in hooks)


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


def _changed_output(module: nn.Module, what: str) -> XlError:
    return XlError(
        f"{type(module).__name__} returned {what}",
        "its output has another form than when xl tried how to split it",
        "run it on one process, or keep the form of its output fixed",
        exit_code=1,
    )


__all__ = ["ModuleCalls", "average"]
