"""The job's own process group: collectives that work while torch.distributed knows of no group."""

# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false
from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Literal, Protocol, cast

import torch
import torch.distributed as dist

ReduceOp = Literal["sum", "min", "max"]
_OPS = {"sum": dist.ReduceOp.SUM, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX}


class Pending(Protocol):
    """A collective under way."""

    def wait(self) -> bool:
        """Block until the result is in the tensor (on CUDA: until the current stream is ordered after it)."""
        ...


class _Group(Protocol):
    """What gloo's and nccl's process groups have in common; torch's stubs do not say it."""

    def allreduce(self, tensors: list[torch.Tensor], options: object) -> Pending: ...
    def broadcast(self, tensors: list[torch.Tensor], options: object) -> Pending: ...
    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor]) -> Pending: ...
    def shutdown(self) -> None: ...


def _connect(
    store: dist.Store, rank: int, size: int, device: torch.device, timeout: timedelta, local: bool
) -> _Group:
    if device.type == "cuda":
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        return cast("_Group", dist.ProcessGroupNCCL(store, rank, size, options))
    if not local:
        return cast("_Group", dist.ProcessGroupGloo(store, rank, size, timeout))
    gloo = cast("Any", dist.ProcessGroupGloo)
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname="127.0.0.1")]
    options._timeout = timeout
    return cast("_Group", gloo(store, rank, size, options))


class Communicator:
    """Collectives among all ranks of the job over a process group of our own.

    No default group is made: `torch.distributed.is_initialized()` stays False for the script. Every method is
    collective: all ranks call it, in one order, with tensors of equal shape and type.

    Args:
        store: a store that all ranks share; keys are prefixed with `xl/<name>`.
        rank: this process, from 0.
        size: number of processes.
        device: where the tensors live; its type chooses gloo ("cpu") or nccl ("cuda").
        timeout_s: seconds after which a collective that misses a peer fails.
        local: all ranks are on this machine; gloo then listens on loopback only.
    """

    def __init__(
        self,
        store: dist.Store,
        rank: int,
        size: int,
        device: torch.device,
        *,
        name: str = "main",
        timeout_s: float = 1800.0,
        local: bool = True,
    ) -> None:
        self.rank, self.size, self.device = rank, size, device
        self._store, self._name, self._timeout_s, self._local = store, name, timeout_s, local
        self._siblings: list[Communicator] = []
        prefixed = dist.PrefixStore(f"xl/{name}", store)
        self._group = _connect(prefixed, rank, size, device, timedelta(seconds=timeout_s), local)
        if device.type == "cpu":
            self.barrier()  # a rank that closes at once would break the connecting of one that is still at it

    def start_all_reduce(self, tensor: torch.Tensor, op: ReduceOp = "sum") -> Pending:
        """Begin reducing `tensor` in place over all ranks; its content is undefined until `wait()`."""
        options = dist.AllreduceOptions()
        options.reduceOp = cast("dist.ReduceOp", _OPS[op])
        return self._group.allreduce([tensor], options)

    def all_reduce(self, tensor: torch.Tensor, op: ReduceOp = "sum") -> torch.Tensor:
        """Reduce `tensor` in place over all ranks and return it."""
        self.start_all_reduce(tensor, op).wait()
        return tensor

    def broadcast(self, tensor: torch.Tensor, source: int = 0) -> torch.Tensor:
        """Overwrite `tensor` in place with the one of rank `source` and return it."""
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = source, 0
        self._group.broadcast([tensor], options).wait()
        return tensor

    def all_gather(self, tensor: torch.Tensor) -> Sequence[torch.Tensor]:
        """Return the tensors of all ranks, in rank order; shapes and types must agree."""
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        self._group.allgather([parts], [tensor]).wait()
        return parts

    def all_gather_bytes(self, data: bytes) -> list[bytes]:
        """Return the data of all ranks, in rank order; lengths may differ."""
        sizes = [int(size) for size in self.all_gather(torch.tensor([len(data)], device=self.device))]
        padded = torch.zeros(max(*sizes, 1), dtype=torch.uint8)
        if data:
            padded[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        parts = self.all_gather(padded.to(self.device))
        return [part.cpu().numpy().tobytes()[:size] for part, size in zip(parts, sizes, strict=True)]

    def sibling(self, name: str, device: torch.device) -> Communicator:
        """Connect the same ranks once more, for collectives with an order of their own; closed with it."""
        made = Communicator(
            self._store,
            self.rank,
            self.size,
            device,
            name=f"{self._name}/{name}",
            timeout_s=self._timeout_s,
            local=self._local,
        )
        self._siblings.append(made)
        return made

    def barrier(self) -> None:
        """Return once every rank has called it."""
        self.all_reduce(torch.zeros(1, device=self.device))

    def close(self) -> None:
        """Free the group and its siblings; torch may abort the process if one is left open at exit."""
        while self._siblings:
            self._siblings.pop().close()
        self._group.shutdown()
        del self._group  # its threads, which wake a hundred times a second, end with the object
