"""The messages between the launcher and the process that starts its workers: one JSON object a packet."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, cast

from .worker import WorkerSettings

PACKET_BYTES = 1 << 17
"""Larger than any message; below a local socket's send buffer, so that a packet goes out in one piece."""


MAX_FDS = 4
"""File descriptors that come with a message: stdin, stdout, stderr, and the store's socket."""


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Start one worker.

    Three file descriptors come along (its stdin, stdout, stderr), and a fourth, the store's listening socket,
    where `settings.store_fd` is not None.

    Args:
        settings: what the worker is told.
        env: variables to set on top of the starter's own environment.
        unset: variables to remove from it.
    """

    settings: WorkerSettings
    env: dict[str, str]
    unset: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SignalWorkers:
    """Send `signum` to every living worker, or (`group`) to its process group as a terminal would."""

    signum: int
    group: bool = False


@dataclass(frozen=True, slots=True)
class Sweep:
    """Kill every process below the starter and answer with `Swept` once none is left."""


@dataclass(frozen=True, slots=True)
class Started:
    """A worker lives. `fresh_because` is set where a fork was planned and a new interpreter was used."""

    rank: int
    pid: int
    fresh_because: str | None = None


@dataclass(frozen=True, slots=True)
class Exited:
    """A worker ended at `time` (seconds since the epoch); `returncode` is negative for a signal."""

    rank: int
    pid: int
    returncode: int
    time: float


@dataclass(frozen=True, slots=True)
class Swept:
    """Nothing is left below the starter."""


Command = StartWorker | SignalWorkers | Sweep
Event = Started | Exited | Swept
_KINDS: dict[str, type] = {
    kind.__name__: kind for kind in (StartWorker, SignalWorkers, Sweep, Started, Exited, Swept)
}


def encode(message: Command | Event) -> bytes:
    """Return the packet that `decode` turns back into `message`."""
    return json.dumps({"kind": type(message).__name__, **asdict(message)}).encode()


def decode(packet: bytes) -> Command | Event:
    """Return the message in `packet`."""
    content = cast("dict[str, Any]", json.loads(packet))
    kind = _KINDS[content.pop("kind")]
    if kind is StartWorker:
        content["settings"] = WorkerSettings(**content["settings"])
        content["unset"] = tuple(content["unset"])
    assert set(content) <= {field.name for field in fields(kind)}, content
    return cast("Command | Event", kind(**content))


def send(link: socket.socket, message: Command | Event, fds: Sequence[int] = ()) -> None:
    """Send a message and descriptors; where the other end is gone it is lost, and `receive` says so."""
    with contextlib.suppress(OSError):
        socket.send_fds(link, [encode(message)], fds)


def receive(link: socket.socket) -> tuple[Command | Event | None, list[int]]:
    """Return the next message and the descriptors that came with it; None: the other end is gone."""
    try:
        packet, fds, _, _ = socket.recv_fds(link, PACKET_BYTES, MAX_FDS)
    except OSError:  # reset: it died with our packets unread
        return None, []
    return decode(packet) if packet else None, fds
