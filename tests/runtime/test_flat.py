"""Many tensors in one collective."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import torch

from xl.runtime import flat
from xl.runtime.collectives import Communicator

from ..pool import Ranks


def test_packing_copies() -> None:
    """A view of a gradient would be reduced while backward still adds to it."""
    single = torch.ones(2, 2)
    packed = flat.pack([single])
    packed.zero_()
    assert single.sum() == 4
    parts = flat.unpack(flat.pack([single, torch.zeros(3)]), [single, torch.zeros(3)])
    assert [tuple(part.shape) for part in parts] == [(2, 2), (3,)]


def test_groups_have_one_key_and_end_above_the_limit() -> None:
    items = [("a", 4), ("b", 4), ("a", 4), ("a", 4), ("b", 1)]
    assert flat.grouped(items, 8) == [[0, 2], [1, 4], [3]]


def test_broadcast_and_average_of_any_type_and_layout(ranks: Ranks) -> None:
    def exchange(comm: Communicator) -> tuple[list[bool], list[bool]]:
        def make(value: int) -> list[torch.Tensor]:
            kinds = (torch.float32, torch.int64, torch.bool, torch.complex64, torch.bfloat16, torch.float32)
            tensors = [torch.full((2, 3), value).to(kind) for kind in kinds]
            return [*tensors, torch.empty(0), tensors[0].clone().t()]

        pool = flat.Ranks(comm, "test")
        sent, expected = make(comm.rank + 2), make(2)
        flat.broadcast(pool, sent)
        equal = [torch.equal(mine, theirs) for mine, theirs in zip(sent, expected, strict=True)]
        means = [t for t in make(3 * comm.rank) if t.is_floating_point() or t.is_complex()]
        flat.average(pool, means)
        return equal, [bool((mean == 3).all()) for mean in means]

    assert ranks(3, exchange) == [([True] * 8, [True] * 6)] * 3


def test_sparse_tensors_of_different_sizes(ranks: Ranks) -> None:
    def exchange(comm: Communicator) -> list[list[float]]:
        indices = torch.tensor([list(range(comm.rank))], dtype=torch.int64).reshape(1, -1)
        values = torch.ones(comm.rank, 2)
        tensor = torch.sparse_coo_tensor(indices, values, (4, 2), check_invariants=True)
        return flat.average_sparse(flat.Ranks(comm, "test"), tensor).to_dense().tolist()

    third = 1 / 3
    expected = [[2 * third] * 2, [third] * 2, [0.0] * 2, [0.0] * 2]
    for found in ranks(3, exchange):
        torch.testing.assert_close(torch.tensor(found), torch.tensor(expected))
