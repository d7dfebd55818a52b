"""The job's own process group: collectives that work while torch.distributed knows of no group."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Literal, Protocol

import torch
import torch.distributed as dist

ReduceOp = Literal["sum", "min", "max"]
_OPS = {"sum": dist.ReduceOp.SUM, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX}


class Pending(Protocol):
    """A collective under way."""

    def wait(self) -> bool:
        """Block until the result is in the tensor (on CUDA: until the current stream is ordered after it)."""
        ...


class Communicator:
    """Collectives among all ranks of the job over a process group of our own.

    No default group is made: `torch.distributed.is_initialized()` stays False for the script. Every method but
    the properties is collective: all ranks call it, in one order, with tensors of equal shape and type.

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
        timeout = timedelta(seconds=timeout_s)
        prefixed = dist.PrefixStore(f"xl/{name}", store)
        if device.type == "cuda":
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = timeout
            self._group: dist.Backend = dist.ProcessGroupNCCL(prefixed, rank, size, options)
        elif local:
            options = dist.ProcessGroupGloo._Options()
            options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
            options._timeout = timeout
            self._group = dist.ProcessGroupGloo(prefixed, rank, size, options)
        else:
            self._group = dist.ProcessGroupGloo(prefixed, rank, size, timeout)

    def start_all_reduce(self, tensor: torch.Tensor, op: ReduceOp = "sum") -> Pending:
        """Begin reducing `tensor` in place over all ranks; its content is undefined until `wait()`."""
        options = dist.AllreduceOptions()
        options.reduceOp = _OPS[op]
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

    def barrier(self) -> None:
        """Return once every rank has called it."""
        self.all_reduce(torch.zeros(1, device=self.device))

    def close(self) -> None:
        """Free the group; torch 2.13 may abort the process when one is left open at exit."""
        self._group.shutdown()
