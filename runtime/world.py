"""This process's membership in the job: its place, its device, and the means to talk to the other ranks."""

# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportUnknownMemberType=false
from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from itertools import count

import torch
import torch.distributed as dist

from ..configs.env import read_environ
from ..configs.errors import XlError
from .collectives import Communicator
from .facts import Place, read_place, told

DEFAULT_TIMEOUT_S = 1800.0
"""Seconds after which a collective that misses a peer fails, as torch has it for gloo."""


@dataclass(frozen=True, slots=True)
class GroupOptions:
    """How the job's process group is made.

    Args:
        backend: "gloo" or "nccl"; None chooses by the device.
        init_method: as in `torch.distributed.init_process_group`; None uses the environment.
        timeout_s: seconds after which a collective that misses a peer fails.
    """

    backend: str | None = None
    init_method: str | None = None
    timeout_s: float = DEFAULT_TIMEOUT_S


class World:
    """The job as this process sees it; immutable once joined.

    Args:
        place: where this process stands.
        device: where it trains.
        backend: of torch's default process group; None when this process is alone.
        timeout_s: of collectives.
    """

    def __init__(self, place: Place, device: torch.device, backend: str | None, timeout_s: float) -> None:
        self.place, self.device, self.backend, self.timeout_s = place, device, backend, timeout_s
        self._names = count()
        self._lock = threading.Lock()
        self._communicator: Communicator | None = None
        self._host: Communicator | None = None

    def communicator(self) -> Communicator | None:
        """The ranks, for tensors on the training device; None when alone. The first call is collective."""
        if self.place.size == 1:
            return None
        with self._lock:
            if self._communicator is None:
                self._communicator = self.connect("main")
            return self._communicator

    def host(self) -> Communicator | None:
        """The ranks, for tensors in host memory; None when alone. The first call is collective."""
        main = self.communicator()
        if main is None or main.device.type == "cpu":
            return main
        with self._lock:
            if self._host is None:
                self._host = main.sibling("host", torch.device("cpu"))
            return self._host

    def connect(self, purpose: str) -> Communicator:
        """Connect all ranks anew, for collectives with an order of their own. Collective; close it."""
        assert self.place.size > 1
        store = dist.distributed_c10d._get_default_store()
        name = f"{purpose}-{next(self._names)}"
        local = self.place.machines == 1
        return Communicator(
            store,
            self.place.rank,
            self.place.size,
            self.device,
            name=name,
            timeout_s=self.timeout_s,
            local=local,
        )

    def close(self) -> None:
        """Close the connections that were made here; torch's default group stays."""
        with self._lock:
            if self._communicator is not None:
                self._communicator.close()
            self._communicator = self._host = None


class _Joined:
    world: World | None = None


def joined() -> World | None:
    """The world that this process has joined; None before the first `join`."""
    return _Joined.world


def join(*, cpu: bool = False, options: GroupOptions | None = None) -> World:
    """Join the job, once a process, and return it; later calls return the same world.

    Several processes without a GPU form one world over gloo. A process group that the script has made itself
    is used as it is.

    Args:
        cpu: train on the CPU even where a GPU is visible.
        options: of the process group, where it is still to be made.

    Raises:
        XlError: `cpu` after a start on a GPU, a device that is not there, or a backend that does not fit it.
    """
    world = _Joined.world
    if world is not None:
        if cpu and world.device.type != "cpu":
            raise XlError(
                f"cpu=True, but this process trains on {world.device} already",
                "the first Accelerator or PartialState chose the device for the whole process",
                "pass cpu=True to the first one as well",
            )
        return world
    options = options or GroupOptions()
    place = _place_of_group() if dist.is_initialized() else read_place()
    settings = told()
    device = choose_device(
        place, cpu=cpu or (settings is not None and settings.cpu), variables=read_environ()
    )
    backend = None
    if place.size > 1:
        backend = dist.get_backend() if dist.is_initialized() else _start_group(place, device, options)
    _Joined.world = World(place, device, backend, options.timeout_s)
    return _Joined.world


def leave() -> None:
    """Forget the world and close its connections; torch's default group stays as it is."""
    if _Joined.world is not None:
        _Joined.world.close()
    _Joined.world = None


def choose_device(place: Place, *, cpu: bool, variables: Mapping[str, str]) -> torch.device:
    """Return where this process trains: XL_TORCH_DEVICE, else its own GPU, else the CPU.

    Raises:
        XlError: this machine has fewer GPUs than processes on it.
    """
    named = variables.get("XL_TORCH_DEVICE")
    if named:
        try:
            return torch.device(named)
        except RuntimeError:
            raise XlError(
                f"XL_TORCH_DEVICE={named} names no device",
                "torch knows devices such as cpu, cuda and cuda:1",
                "set it to one of these, or unset it",
            ) from None
    if cpu or not torch.cuda.is_available():
        return torch.device("cpu")
    count_ = torch.cuda.device_count()
    if place.local_size > 1 and place.local_rank >= count_ > 1:
        raise XlError(
            f"local rank {place.local_rank} has no GPU",
            f"{place.local_size} processes run on this machine, {count_} GPUs are visible",
            "start as many processes as there are GPUs, or pass cpu=True",
        )
    device = torch.device("cuda", place.local_rank if count_ > 1 else 0)
    torch.cuda.set_device(device)
    return device


def _place_of_group() -> Place:
    """The place that the script's own process group gives this process."""
    rank, size = dist.get_rank(), dist.get_world_size()
    place = read_place()
    if (place.rank, place.size) == (rank, size):
        return place
    return Place(rank, size, rank, size)


def _start_group(place: Place, device: torch.device, options: GroupOptions) -> str:
    backend = options.backend or ("nccl" if device.type == "cuda" else "gloo")
    if backend == "nccl" and device.type != "cuda":
        raise XlError(
            "the process group's backend is nccl, and this process trains on the CPU",
            "nccl moves tensors between GPUs only",
            'leave InitProcessGroupKwargs(backend=…) out, or pass backend="gloo"',
        )
    dist.init_process_group(
        backend,
        init_method=options.init_method,
        rank=place.rank if options.init_method else -1,
        world_size=place.size if options.init_method else -1,
        timeout=timedelta(seconds=options.timeout_s),
    )
    return backend
