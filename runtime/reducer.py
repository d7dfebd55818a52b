"""Averages gradients over the ranks during backward, whichever method of the model led to it."""

# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportUnknownMemberType=false
from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ..configs.errors import XlError
from . import flat
from .buckets import Bucket, Slot, arrange

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from .collectives import Communicator

# Why a gradient does not go through its bucket; of the ranks' reasons the largest counts.
SPARSE = 1  # it is sparse
DENSE = 2  # it received more after its bucket had left
MISFIT = 3  # its type or device is not the bucket's, or it has no bucket


@dataclass(slots=True)
class Traffic:
    """What a reducer exchanged so far.

    Args:
        exchanges: how often the ranks agreed on gradients, once a backward.
        collectives: tensors that were averaged, flat ones and sparse ones.
        bytes: their size on one rank.
        gradients: averaged gradients; one parameter in five backwards counts five.
    """

    exchanges: int = 0
    collectives: int = 0
    bytes: int = 0
    gradients: int = 0


class GradientReducer:
    """Keeps the gradients of tracked parameters equal on all ranks: their mean, whatever produced them.

    A hook on each parameter notices its gradient. A bucket is averaged as soon as all of its parameters have
    theirs and all earlier buckets are on their way, so that every rank exchanges in one order; at the end of
    the backward the ranks agree, over host memory, on what else any of them has, and finish. A parameter
    without a gradient on some ranks counts as zeros there; without one on all ranks it is left alone.

    `.grad` is averaged as a whole. That is right when gradients pile up over several backwards: what was
    there before is equal on all ranks, and its own mean.

    All ranks must run the same backwards in one order. One in which some ranks reach no tracked parameter at
    all must run inside `backward()`.

    Args:
        comm: the ranks.
        bucket_bytes: size from which a bucket is closed.
    """

    def __init__(self, comm: Communicator, *, bucket_bytes: int = 25 << 20) -> None:
        self.traffic = Traffic()
        self._ranks = flat.Ranks(comm, "reducer")
        self._bucket_bytes = bucket_bytes
        self._lock = threading.RLock()  # autograd has a thread for each device
        self._slots: list[Slot] = []
        self._known = cast("MutableMapping[Tensor, Slot]", WeakTensorKeyDictionary())
        self._groups = 0
        self._seen: list[Slot] = []  # in the order in which backward first reached them on this rank
        self._placed: list[Slot] = []  # in the order that all ranks agreed on
        self._buckets: list[Bucket] = []
        self._next = 0  # the first bucket that is not on its way
        # The manifest, by position: 1 if ready in its bucket; then, in a second row, the reason if it is not.
        self._marks = bytearray()
        self._held_back: set[Slot] = set()  # had a gradient under no_sync
        self._tasks: set[int] = set()  # the backwards that will call us when they end
        self._paused = self._inside = 0

    def track(self, parameters: Iterable[tuple[str, Tensor]]) -> int:
        """Give all ranks the values of rank 0, and average the gradients of these parameters from now on.

        Collective, unless all are tracked already. Frozen parameters are tracked too: they may thaw.

        Returns:
            How many of them were not tracked before.

        Raises:
            XlError: names, shapes or types differ between the ranks.
        """
        new = [(name, parameter) for name, parameter in parameters if parameter not in self._known]
        if not new:
            return 0
        check_alike(self._ranks, new)
        flat.broadcast(self._ranks, [parameter for _, parameter in new])
        self._forget_freed()
        self._groups += 1
        for name, parameter in new:
            slot = Slot(len(self._slots), self._groups, name, parameter)
            self._slots.append(slot)
            self._known[parameter] = slot
            frozen = not parameter.requires_grad
            parameter.requires_grad_(True)  # torch takes a hook only now, and keeps it
            slot.handle = parameter.register_post_accumulate_grad_hook(partial(self._notice, slot))
            if frozen:
                parameter.requires_grad_(False)
        self._arrange()
        return len(new)

    def tracks(self, tensor: Tensor) -> bool:
        """Whether the gradient of this tensor is averaged."""
        return tensor in self._known

    @contextmanager
    def no_sync(self) -> Generator[None]:
        """Leave gradients local; the first backward or `flush` after it averages what has piled up."""
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1

    @contextmanager
    def backward(self) -> Generator[None]:
        """Finish once when the block ends, even on a rank that reached no parameter, and not before."""
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1
        if not self._inside and not self._paused:
            self.flush()

    def flush(self) -> None:
        """Average now whatever any rank has that is not averaged yet. Collective."""
        with self._lock, torch.no_grad():
            self._mark_held_back()
            manifest = torch.tensor(self._marks, dtype=torch.uint8)
            ready_and_reasons = self._ranks.host.all_reduce(manifest, "max").numpy().tobytes()
            ready, reasons = ready_and_reasons[: len(self._slots)], ready_and_reasons[len(self._slots) :]
            self.traffic.exchanges += 1
            for bucket in self._buckets[self._next :]:
                if any(ready[bucket.first : bucket.last]):
                    self._launch(bucket, ready, reasons)
            for bucket in self._buckets:
                if bucket.pending is not None:
                    self._land(bucket, ready, reasons)
            if any(reasons):
                self._average_singly(ready, reasons)
            self._learn(ready, reasons)

    @torch.no_grad()
    def average(
        self, parameters: Sequence[Tensor], gradients: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        """Return the means of gradients that did not go to `.grad`; None where no rank has one. Collective.

        Args:
            parameters: what the gradients belong to; only their shapes and types matter.
            gradients: in the same order.
        """
        kinds = [0 if g is None else SPARSE if g.layout == torch.sparse_coo else DENSE for g in gradients]
        agreed = cast("list[int]", self._ranks.host.all_reduce(torch.tensor(kinds), "max").tolist())
        means: list[Tensor | None] = [None] * len(kinds)
        dense: list[Tensor] = []
        for place, (kind, parameter, gradient) in enumerate(zip(agreed, parameters, gradients, strict=True)):
            if kind == SPARSE:
                means[place] = flat.average_sparse(
                    self._ranks, gradient if gradient is not None else flat.no_rows(parameter)
                )
            elif kind == DENSE:
                mean = (
                    torch.zeros_like(parameter) if gradient is None else gradient.detach().to_dense().clone()
                )
                means[place] = mean
                dense.append(mean)
        self.traffic.exchanges += 1
        self.traffic.gradients += len(dense)
        self.traffic.bytes += flat.average(self._ranks, dense)
        return means

    def close(self) -> None:
        """Take the hooks off; parameters keep their gradients."""
        for slot in self._slots:
            slot.release()
        self._slots.clear()
        self._known.clear()

    # --- during backward: what the hooks do (they keep the reducer alive as long as a parameter lives)

    def _notice(self, slot: Slot, parameter: Tensor) -> None:
        """Take note of a gradient that autograd has just added to `.grad`."""
        gradient = parameter.grad
        if gradient is None:
            return
        if gradient.requires_grad:
            raise _no_graph(slot.name)
        with self._lock:
            if not slot.seen:
                slot.seen = True
                self._seen.append(slot)
            if self._paused:
                self._held_back.add(slot)
                return
            self._held_back.discard(slot)  # what was held back leaves with the rest of `.grad`
            task = torch._C._current_graph_task_id()
            if not self._inside and task not in self._tasks:
                self._tasks.add(task)
                engine = torch.autograd.Variable._execution_engine  # pyright: ignore
                engine.queue_callback(partial(self._end, task))  # pyright: ignore
            self._mark(slot, gradient)

    def _end(self, task: int) -> None:
        self._tasks.discard(task)
        self.flush()

    def _mark(self, slot: Slot, gradient: Tensor, *, may_launch: bool = True) -> None:
        marks, position, bucket = self._marks, slot.position, slot.bucket
        reason = position + len(self._slots)
        if gradient.layout != torch.strided:
            rows = gradient.layout == torch.sparse_coo and gradient.sparse_dim() == 1
            marks[reason] = max(marks[reason], SPARSE if rows else DENSE)
        elif bucket is None or not bucket.fits(gradient):
            marks[reason] = MISFIT
        elif bucket.pending is not None:
            marks[reason] = max(marks[reason], DENSE)
        elif not marks[position]:
            marks[position] = 1
            bucket.missing -= 1
            while may_launch and self._next < len(self._buckets):
                head = self._buckets[self._next]
                if head.missing or not head.eager:
                    break
                self._launch(head)
                self._next += 1

    def _launch(self, bucket: Bucket, ready: Sequence[int] = (), reasons: Sequence[int] = ()) -> None:
        """Send a bucket on its way; before the ranks have agreed, all of its gradients are there."""
        parts: list[Tensor] = []
        with torch.no_grad():
            for position, slot in enumerate(bucket.slots, bucket.first):
                wanted = not ready or (ready[position] and not reasons[position])
                gradient = slot.gradient() if wanted else None
                if gradient is None:
                    gradient = torch.zeros(slot.numel, dtype=bucket.dtype, device=bucket.device)
                parts.append(gradient)
            bucket.packed = flat.pack(parts)
            bucket.pending = flat.start_average(self._ranks, bucket.packed)

    # --- at the end of backward

    def _mark_held_back(self) -> None:
        for slot in self._held_back:
            parameter = slot.reference()
            if parameter is not None and parameter.grad is not None:
                self._mark(slot, parameter.grad, may_launch=False)
        self._held_back.clear()

    def _land(self, bucket: Bucket, ready: Sequence[int], reasons: Sequence[int]) -> None:
        """Wait for a bucket and write its means to the gradients."""
        assert bucket.pending is not None
        assert bucket.packed is not None
        flat.end_average(self._ranks, bucket.packed, bucket.pending)
        self._count(1, bucket.packed)
        wanted = [ready[position] and not reasons[position] for position in range(bucket.first, bucket.last)]
        gradients = [
            slot.gradient() if want else None for slot, want in zip(bucket.slots, wanted, strict=True)
        ]
        like = [slot.like() if g is None else g for slot, g in zip(bucket.slots, gradients, strict=True)]
        parts = flat.unpack(bucket.packed, like)
        targets = [gradient for gradient in gradients if gradient is not None]
        means = [part for part, gradient in zip(parts, gradients, strict=True) if gradient is not None]
        if targets:
            torch._foreach_copy_(targets, means)
        self.traffic.gradients += len(targets)

    def _average_singly(self, ready: Sequence[int], reasons: Sequence[int]) -> None:
        """Average the gradients that did not fit into a bucket, one after the other."""
        for slot in sorted(self._slots, key=lambda slot: slot.position):
            reason = reasons[slot.position]
            if not reason:
                continue
            parameter = slot.reference()
            if parameter is None:  # dropped here, still in use on another rank
                parameter = torch.zeros(slot.shape, dtype=slot.dtype, device=slot.device)
            gradient = parameter.grad
            if reason == SPARSE and not ready[slot.position]:
                gradient = flat.no_rows(parameter) if gradient is None else gradient
                parameter.grad = flat.average_sparse(self._ranks, gradient)
                self._count(1, parameter.grad.values())
            else:
                gradient = torch.zeros_like(parameter) if gradient is None else gradient.to_dense()
                flat.average(self._ranks, [gradient])
                parameter.grad = gradient
                self._count(1, gradient)
            self.traffic.gradients += 1

    def _count(self, collectives: int, tensor: Tensor) -> None:
        self.traffic.collectives += collectives
        self.traffic.bytes += tensor.numel() * tensor.element_size()

    # --- the layout of the buckets, the same on all ranks

    def _learn(self, ready: Sequence[int], reasons: Sequence[int]) -> None:
        """Reset for the next backward; lay the buckets out anew where this one showed a better way."""
        anew = False
        if len(self._placed) < len(self._slots):
            touched = [slot for slot in self._slots if ready[slot.position] or reasons[slot.position]]
            anew = self._place([slot for slot in touched if not slot.placed])
        if any(reasons):
            for slot in self._slots:
                reason = reasons[slot.position]
                if reason == SPARSE and not slot.sparse:
                    slot.sparse = anew = True
                elif reason == MISFIT and not slot.alone and not slot.sparse:
                    before = slot.dtype, slot.device.type
                    slot.refresh()
                    slot.alone = (slot.dtype, slot.device.type) == before  # a new bucket would not fit either
                    anew = True
        if anew:
            self._arrange()
            return
        self._marks = bytearray(2 * len(self._slots))
        self._next = 0
        for bucket in self._buckets:
            bucket.reset()

    def _place(self, new: list[Slot]) -> bool:
        """Append to the agreed order the parameters that had their first gradient, as rank 0 saw them."""
        if not new:
            return False
        wanted = {slot.index: slot for slot in new}
        order = [slot.index for slot in self._seen if slot.index in wanted]
        order += sorted(wanted.keys() - set(order), reverse=True)
        agreed = self._ranks.host.broadcast(torch.tensor(order))
        for index in cast("list[int]", agreed.tolist()):
            wanted[index].placed = True
            self._placed.append(wanted[index])
        self._seen.clear()
        return True

    def _arrange(self) -> None:
        unplaced = [slot for slot in reversed(self._slots) if not slot.placed]
        eager_on = self._ranks.comm.device.type
        self._buckets = arrange([*self._placed, *unplaced], self._bucket_bytes, eager_on)
        self._marks = bytearray(2 * len(self._slots))
        self._next = 0

    def _forget_freed(self) -> None:
        """Drop the parameters that no rank has any more."""
        if not self._slots:
            return
        alive = torch.tensor([slot.reference() is not None for slot in self._slots], dtype=torch.uint8)
        kept = cast("list[int]", self._ranks.host.all_reduce(alive, "max").tolist())
        freed = {slot for slot, keep in zip(self._slots, kept, strict=True) if not keep}
        self._slots = [slot for slot in self._slots if slot not in freed]
        self._placed = [slot for slot in self._placed if slot not in freed]
        for index, slot in enumerate(self._slots):
            slot.index = index


def _no_graph(name: str) -> XlError:
    return XlError(
        f"backward(create_graph=True) reached the parameter {name}",
        "the average of gradients over the processes cannot be differentiated again",
        "use torch.autograd.grad(loss, inputs, create_graph=True) for a gradient penalty, or one process",
    )


def check_alike(ranks: flat.Ranks, parameters: Sequence[tuple[str, Tensor]]) -> None:
    """Refuse parameters whose names, shapes or types differ between the ranks. Collective."""
    described = [f"{name}: {str(p.dtype).removeprefix('torch.')}{list(p.shape)}" for name, p in parameters]
    digest = hashlib.sha256(json.dumps(described).encode()).digest()
    if len(set(ranks.host.all_gather_bytes(digest))) == 1:
        return
    data = ranks.host.all_gather_bytes(json.dumps(described).encode())
    lists = [cast("list[str]", json.loads(part)) for part in data]
    rank, other = next((rank, other) for rank, other in enumerate(lists) if other != lists[0])
    pairs = list(zip_longest(lists[0], other, fillvalue="missing"))
    place = next(place for place, (mine, theirs) in enumerate(pairs) if mine != theirs)
    raise XlError(
        f"the model differs: parameter {place} is {pairs[place][0]} on rank 0,"
        f" {pairs[place][1]} on rank {rank}",
        "all processes must build the same model to average its gradients",
        "build it from the same settings everywhere, independent of rank, time and unseeded random numbers",
    )
