"""Which parameters' gradients travel together: slots for parameters, buckets of slots, and their order."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .flat import grouped

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

    from .collectives import Pending


class Slot:
    """One tracked parameter. Holds it weakly: a model that the user drops is freed.

    What decides the layout of buckets is kept here: when a dropped parameter is freed differs by rank.
    """

    __slots__ = (
        "alone", "bucket", "device", "dtype", "group", "handle", "index", "name", "placed", "position",
        "reference", "seen", "shape", "sparse",
    )  # fmt: skip

    def __init__(self, index: int, group: int, name: str, parameter: Tensor) -> None:
        self.index, self.group, self.name = index, group, name
        self.reference = weakref.ref(parameter)
        self.refresh()
        self.position = index  # in the manifest, where the parameters of one bucket are neighbours
        self.bucket: Bucket | None = None
        self.seen = False  # it had a gradient on this rank
        self.placed = False  # it had one on any rank, so its place in the order of backward is agreed
        self.sparse = self.alone = False  # agreed: not for a bucket
        self.handle: RemovableHandle | None = None

    def refresh(self) -> None:
        """Notice that the parameter was moved or converted."""
        parameter = self.reference()
        if parameter is not None:
            self.dtype, self.device, self.shape = parameter.dtype, parameter.device, parameter.shape

    @property
    def numel(self) -> int:
        return self.shape.numel()

    def like(self) -> Tensor:
        """A tensor of the parameter's shape without values."""
        return torch.empty(self.shape, device="meta")

    def gradient(self) -> Tensor | None:
        """Its gradient, made of zeros where this rank has none; None if the parameter was freed."""
        parameter = self.reference()
        if parameter is None:
            return None
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter, requires_grad=False)
        return parameter.grad

    def release(self) -> None:
        if self.handle is not None:
            self.handle.remove()


class Bucket:
    """Parameters of one type whose gradients travel together.

    Args:
        slots: in the order of the packed tensor.
        first: position of the first slot in the manifest.
        eager: it may leave during backward.
    """

    __slots__ = ("device", "dtype", "eager", "first", "last", "missing", "packed", "pending", "slots")

    def __init__(self, slots: list[Slot], first: int, eager: bool) -> None:
        self.slots, self.eager = slots, eager
        self.dtype, self.device = slots[0].dtype, slots[0].device
        self.first, self.last = first, first + len(slots)
        for offset, slot in enumerate(slots):
            slot.bucket, slot.position = self, first + offset
        self.reset()

    def reset(self) -> None:
        """Forget the last exchange."""
        self.missing = len(self.slots)
        self.packed: Tensor | None = None
        self.pending: Pending | None = None

    def fits(self, gradient: Tensor) -> bool:
        return gradient.dtype == self.dtype and gradient.device == self.device


def arrange(slots: Iterable[Slot], bucket_bytes: int, eager_on: str) -> list[Bucket]:
    """Return the buckets of `slots`, which come in the expected order of backward, and number all slots.

    Parameters tracked at different times (two networks that are trained in turn) do not share a bucket.

    Args:
        eager_on: type of the device whose buckets may leave during backward.
    """
    together: list[Slot] = []
    rest: list[Slot] = []
    for slot in slots:
        slot.refresh()
        slot.bucket = None
        (rest if slot.sparse or slot.alone else together).append(slot)
    keys = (((slot.group, slot.dtype, slot.device), slot.numel * slot.dtype.itemsize) for slot in together)
    buckets: list[Bucket] = []
    position = 0
    for group in grouped(keys, bucket_bytes):
        members = [together[index] for index in group]
        buckets.append(Bucket(members, position, members[0].device.type == eager_on))
        position = buckets[-1].last
    for slot in rest:
        slot.position = position
        position += 1
    return buckets
