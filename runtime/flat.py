"""Collectives over many tensors at once: packed into one flat tensor for each type and device."""

# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, cast

import torch
import torch._utils
from torch import Tensor

if TYPE_CHECKING:
    from .collectives import Communicator, Pending


class Ranks:
    """All ranks of the job, reachable for tensors on any device.

    Args:
        comm: the ranks, for tensors on the device of training.
        name: of the second connection, for what lives in host memory and keeps an order of its own.
    """

    def __init__(self, comm: Communicator, name: str) -> None:
        self.comm = comm
        self.host = comm.sibling(name, torch.device("cpu"))

    def of(self, device: torch.device) -> Communicator:
        """The communicator that can move tensors of `device`."""
        return self.comm if device.type == self.comm.device.type else self.host


def grouped(items: Iterable[tuple[Hashable, int]], limit_bytes: int) -> list[list[int]]:
    """Return groups of positions with one key each, in order; a group is closed once it has `limit_bytes`.

    Args:
        items: key and bytes of each position.
    """
    open_groups: dict[Hashable, list[int]] = {}
    filled: dict[Hashable, int] = {}
    groups: list[list[int]] = []
    for position, (key, size) in enumerate(items):
        open_groups.setdefault(key, []).append(position)
        filled[key] = filled.get(key, 0) + size
        if filled[key] >= limit_bytes:
            groups.append(open_groups.pop(key))
            filled[key] = 0
    return groups + list(open_groups.values())


def by_type(tensors: Sequence[Tensor], limit_bytes: int) -> list[list[Tensor]]:
    """Return groups of non-empty tensors of one type and device each."""
    full = [tensor.detach() for tensor in tensors if tensor.numel()]
    keys = (((tensor.dtype, tensor.device), tensor.numel() * tensor.element_size()) for tensor in full)
    return [[full[position] for position in group] for group in grouped(keys, limit_bytes)]


def pack(tensors: Sequence[Tensor]) -> Tensor:
    """Return the values of all tensors, one after the other, as a copy even of a single one."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def unpack(packed: Tensor, like: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return the parts of `packed` in the shapes of `like`, as views."""
    return cast("Sequence[Tensor]", torch._utils._unflatten_dense_tensors(packed, like))


@torch.no_grad()
def broadcast(ranks: Ranks, tensors: Sequence[Tensor], *, limit_bytes: int = 64 << 20) -> None:
    """Overwrite every tensor in place with the one of rank 0; collective, shapes and types must agree."""
    for members in by_type(tensors, limit_bytes):
        packed = pack(members)
        ranks.of(packed.device).broadcast(packed.view(torch.uint8))
        for member, part in zip(members, unpack(packed, members), strict=True):
            member.copy_(part)


def start_average(ranks: Ranks, packed: Tensor) -> Pending:
    """Begin replacing `packed` in place by its mean over the ranks; `end_average` ends it."""
    if packed.itemsize == 2:
        packed.div_(ranks.comm.size)  # before the sum, in which 16 bits may overflow
    return ranks.of(packed.device).start_all_reduce(
        torch.view_as_real(packed) if packed.is_complex() else packed
    )


def end_average(ranks: Ranks, packed: Tensor, pending: Pending) -> None:
    """Wait until `packed` is the mean over the ranks."""
    pending.wait()
    if packed.itemsize != 2:
        packed.div_(ranks.comm.size)  # after the sum: the mean of equal values is then that value


@torch.no_grad()
def average(ranks: Ranks, tensors: Sequence[Tensor], *, limit_bytes: int = 25 << 20) -> int:
    """Replace every dense tensor in place by its mean over the ranks and return the bytes exchanged."""
    exchanged = 0
    for members in by_type(tensors, limit_bytes):
        packed = pack(members)
        end_average(ranks, packed, start_average(ranks, packed))
        torch._foreach_copy_(members, list(unpack(packed, members)))
        exchanged += packed.numel() * packed.element_size()
    return exchanged


@torch.no_grad()
def average_sparse(ranks: Ranks, tensor: Tensor) -> Tensor:
    """Return the mean over the ranks of a sparse COO tensor, coalesced. Collective."""
    comm = ranks.of(tensor.device)
    tensor = tensor.coalesce()
    counts = [int(count) for count in comm.all_gather(torch.tensor([tensor._nnz()], device=tensor.device))]
    indices, values = (
        torch.cat([part[:count] for part, count in zip(comm.all_gather(padded), counts, strict=True)])
        for padded in (pad(tensor.indices().t(), max(counts)), pad(tensor.values(), max(counts)))
    )
    total = torch.sparse_coo_tensor(indices.t(), values, tensor.shape, check_invariants=False)
    return (total / comm.size).coalesce()


def no_rows(parameter: Tensor) -> Tensor:
    """A sparse gradient for a parameter that had none."""
    indices = torch.zeros((1, 0), dtype=torch.int64, device=parameter.device)
    values = parameter.new_zeros((0, *parameter.shape[1:]))
    return torch.sparse_coo_tensor(indices, values, parameter.shape, check_invariants=False)


def pad(rows: Tensor, count: int) -> Tensor:
    """Return `rows` filled up with zeros to `count` rows, contiguous."""
    return torch.cat([rows, rows.new_zeros((count - rows.shape[0], *rows.shape[1:]))]).contiguous()
