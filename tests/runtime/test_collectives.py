"""The collectives among the job's own ranks, without a default process group."""

from __future__ import annotations

import torch
import torch.distributed as dist

from xl.runtime.collectives import Communicator

from ..pool import Ranks


def test_every_collective(ranks: Ranks) -> None:
    def exchange(comm: Communicator) -> tuple[list[float], list[bytes], bool]:
        mine = torch.tensor([float(comm.rank + 1)])
        values = [
            comm.all_reduce(mine.clone()).item(),
            comm.all_reduce(mine.clone(), "min").item(),
            comm.all_reduce(mine.clone(), "max").item(),
            comm.broadcast(mine.clone(), source=1).item(),
            *[part.item() for part in comm.all_gather(mine)],
        ]
        comm.barrier()
        return values, comm.all_gather_bytes(b"x" * comm.rank), dist.is_initialized()

    assert ranks(3, exchange) == [([6.0, 1.0, 3.0, 2.0, 1.0, 2.0, 3.0], [b"", b"x", b"xx"], False)] * 3


def test_bytes_may_be_empty(ranks: Ranks) -> None:
    assert ranks(2, lambda comm: comm.all_gather_bytes(b"")) == [[b"", b""]] * 2


def test_a_sibling_keeps_an_order_of_its_own(ranks: Ranks) -> None:
    def exchange(comm: Communicator) -> list[float]:
        other = comm.sibling("other", torch.device("cpu"))
        one, two = torch.ones(1), torch.full((1,), 2.0)
        started = [(comm, one), (other, two)]
        pending = [c.start_all_reduce(t) for c, t in (started if comm.rank else started[::-1])]
        for work in pending:
            work.wait()
        return [one.item(), two.item()]

    assert ranks(2, exchange) == [[2.0, 4.0]] * 2
