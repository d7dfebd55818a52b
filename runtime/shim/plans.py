"""Remembers how calls of a module are split, so that a module is tried once for each kind of call."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import cast
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from .probing.arguments import PLAIN, rows_of
from .probing.decision import Full, Split
from .trees import Structure

Decision = Split | Full

_MAX_TRIES = 64
_MAX_VAIN_TRIES = 8
_SIZES_TO_TRUST = 3
_MAX_CONFIRMED = 8


@dataclass(frozen=True, slots=True)
class Call:
    """What decides how a call can be split.

    Args:
        leaves: the arguments, flattened.
        structure: the nesting around them.
        mode: grad mode, autocast and the settings of every submodule.
    """

    leaves: list[object]
    structure: Structure
    mode: Hashable


@dataclass(slots=True)
class _Known:
    call: Hashable
    decision: Decision
    sizes: Hashable
    tried: dict[int, Full | None] = field(default_factory=dict[int, "Full | None"])  # by number of rows


@dataclass(slots=True)
class _Memory:
    known: list[_Known] = field(default_factory=list[_Known])
    tries: dict[Hashable, int] = field(default_factory=dict[Hashable, int])
    vain: dict[Hashable, int] = field(default_factory=dict[Hashable, int])
    lasting: dict[bool, Full] = field(default_factory=dict[bool, Full])


class Plans:
    """Decisions by module; they go when the module does."""

    def __init__(self) -> None:
        self._memories: WeakKeyDictionary[nn.Module, _Memory] = WeakKeyDictionary()

    def decide(self, module: nn.Module, call: Call, probe: Callable[[], Decision]) -> Decision:
        """Return what is known about such a call, or ask `probe` and remember its answer.

        Sizes other than the batch's count as part of the call until the module ran the same operators for
        several of them. A module that keeps asking is run in full from then on.
        """
        memory = self._memories.setdefault(module, _Memory())
        if module.training in memory.lasting:
            return memory.lasting[module.training]
        for known in memory.known:
            if _matches(known, call):
                return known.decision
        kind = _kind(call)
        if memory.tries.get(kind, 0) >= _MAX_TRIES or memory.vain.get(kind, 0) >= _MAX_VAIN_TRIES:
            return Full("it was called with too many different sizes or settings to try each")
        memory.tries[kind] = memory.tries.get(kind, 0) + 1
        decision = probe()
        self._remember(memory, module, call, decision)
        return decision

    def confirmed(
        self, module: nn.Module, call: Call, split: Split, rows: int, ranks: int
    ) -> Decision | None:
        """Return the decision for that many rows, or None when it has to be tried at its real size.

        A module that behaves otherwise above some size does so between a rank's rows and the whole batch. So
        after some numbers of rows others only need a try when they reach beyond those that were tried.
        """
        tried = self._known(module, call).tried
        if rows in tried or len(tried) < _MAX_CONFIRMED:
            return tried[rows] or split if rows in tried else None
        reached = rows // ranks
        for size in sorted(size for size, refusal in tried.items() if refusal is None):
            if size // ranks <= reached < size:
                reached = size
        return split if reached >= rows else None

    def confirm(self, module: nn.Module, call: Call, rows: int, refusal: Full | None) -> None:
        """Remember what came of splitting such a call with `rows` rows; None: the numbers of the whole."""
        self._known(module, call).tried[rows] = refusal

    def _known(self, module: nn.Module, call: Call) -> _Known:
        return next(known for known in self._memories[module].known if _matches(known, call))

    def refuse(self, module: nn.Module, reason: str) -> None:
        """Run every later call of `module`, in its present mode, in full."""
        memory = self._memories.setdefault(module, _Memory())
        memory.lasting[module.training] = Full(reason, lasting=True)

    def _remember(self, memory: _Memory, module: nn.Module, call: Call, decision: Decision) -> None:
        kind = _kind(call)
        if isinstance(decision, Full):
            memory.vain[kind] = memory.vain.get(kind, 0) + 1
            if decision.lasting:
                memory.lasting[module.training] = decision
            if decision.undecided:
                return
            memory.known.insert(0, _Known((call.structure, call.mode), decision, _sizes(call, None)))
            return
        memory.vain[kind] = 0
        alike = [known for known in memory.known if known.decision == decision and known.sizes is not None]
        alike = [known for known in alike if known.call == (call.structure, call.mode)]
        trusted = len(alike) + 1 >= _SIZES_TO_TRUST and bool(decision.operations)
        pattern = _pattern(call, decision) if trusted else _sizes(call, decision)
        memory.known.insert(0, _Known((call.structure, call.mode), decision, pattern))


def _matches(known: _Known, call: Call) -> bool:
    if known.call != (call.structure, call.mode):
        return False
    decision = known.decision if isinstance(known.decision, Split) else None
    if decision is None:
        return known.sizes == _sizes(call, None)
    if not _fits(call, decision):
        return False
    return known.sizes in (_sizes(call, decision), _pattern(call, decision))


def _fits(call: Call, decision: Split) -> bool:
    if len(call.leaves) != len(decision.dims):
        return False
    for leaf, dim in zip(call.leaves, decision.dims, strict=True):
        if dim is not None and not (isinstance(leaf, Tensor) and dim < leaf.ndim):
            return False
    return rows_of(call.leaves, decision.dims) > 0


def _sizes(call: Call, decision: Split | None) -> Hashable:
    """Every size, the batch's left out where it is known."""
    dims = decision.dims if decision is not None else (None,) * len(call.leaves)
    found: list[Hashable] = ["sizes"]
    for leaf, dim in zip(call.leaves, dims, strict=True):
        if isinstance(leaf, Tensor):
            sizes = (s if d != dim else -1 for d, s in enumerate(leaf.shape))
            found.append((leaf.dtype, leaf.device.type, leaf.requires_grad, *sizes))
        else:
            found.append(_value(leaf))
    return tuple(found)


def _value(leaf: object) -> Hashable:
    """An argument that is no tensor; what cannot be compared is never split, whatever its value."""
    return (type(leaf), cast("Hashable", leaf) if isinstance(leaf, PLAIN) else None)


def _pattern(call: Call, decision: Split) -> Hashable:
    """For every size only whether it is the batch's, one, or another."""
    rows = rows_of(call.leaves, decision.dims)
    found: list[Hashable] = ["pattern"]
    for leaf, dim in zip(call.leaves, decision.dims, strict=True):
        if isinstance(leaf, Tensor):
            kinds = [-1 if d == dim else min(s, 2) + 10 * (s == rows) for d, s in enumerate(leaf.shape)]
            found.append((leaf.dtype, leaf.device.type, leaf.requires_grad, *kinds))
        else:
            found.append(_value(leaf))
    return tuple(found)


def _kind(call: Call) -> Hashable:
    """What stays the same between calls that differ in sizes and numbers only."""
    return (
        call.structure,
        tuple(leaf.dtype if isinstance(leaf, Tensor) else type(leaf) for leaf in call.leaves),
    )
