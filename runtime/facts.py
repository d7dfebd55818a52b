"""What never changes about this process: its place in the job, its device, and what the launcher told it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..configs.env import read_environ
from ..configs.errors import XlError

if TYPE_CHECKING:
    from ..configs.worker import WorkerSettings


@dataclass(frozen=True, slots=True)
class Place:
    """Where this process stands among those of its job.

    Args:
        rank: among all processes, from 0.
        size: number of processes.
        local_rank: among those of this machine, from 0.
        local_size: number of processes on this machine.
        machine: position of this machine, from 0.
        machines: number of machines.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    machine: int = 0
    machines: int = 1


class _Told:
    """The launcher's message, once a worker has received it."""

    settings: WorkerSettings | None = None


def tell(settings: WorkerSettings | None) -> None:
    """Keep what the launcher told this worker; called once, before the script starts."""
    _Told.settings = settings


def told() -> WorkerSettings | None:
    """What the launcher told this worker; None if xl did not launch it."""
    return _Told.settings


def read_place() -> Place:
    """Return this process's place, as the launcher or torchrun's variables have it; alone without either.

    Raises:
        XlError: the variables are not numbers, or do not fit together.
    """
    settings = told()
    if settings is None:
        return place_from_variables(read_environ())
    return Place(
        rank=settings.rank,
        size=settings.world_size,
        local_rank=settings.local_rank,
        local_size=settings.local_world_size,
        machine=settings.node_rank,
        machines=settings.num_nodes,
    )


def place_from_variables(variables: Mapping[str, str]) -> Place:
    """Return the place that RANK, WORLD_SIZE, LOCAL_RANK, … name; alone where WORLD_SIZE is missing.

    Raises:
        XlError: a variable is not a number, or is missing, or the numbers do not fit together.
    """
    if "WORLD_SIZE" not in variables:
        return Place()
    size = _number(variables, "WORLD_SIZE", None)
    if size == 1:
        return Place()
    rank = _number(variables, "RANK", None)
    local_rank = _number(variables, "LOCAL_RANK", rank)
    local_size = _number(variables, "LOCAL_WORLD_SIZE", size)
    if not 0 <= rank < size or not 0 <= local_rank < local_size <= size:
        raise XlError(
            f"rank {rank} of {size}, local rank {local_rank} of {local_size} is no place in a job",
            "RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE in the environment do not fit together",
            "start the script with `xl launch`, or unset these variables to run it alone",
        )
    machines = _number(variables, "GROUP_WORLD_SIZE", max(1, size // local_size))
    return Place(rank, size, local_rank, local_size, _number(variables, "GROUP_RANK", 0), machines)


def _number(variables: Mapping[str, str], name: str, default: int | None) -> int:
    text = variables.get(name)
    if text is None:
        if default is not None:
            return default
        raise XlError(
            f"WORLD_SIZE={variables['WORLD_SIZE']} is set, {name} is not",
            "a process of a distributed job needs both to know its place",
            "start the script with `xl launch`, or unset WORLD_SIZE to run it alone",
        )
    try:
        return int(text)
    except ValueError:
        raise XlError(
            f"{name}={text!r} is not a whole number",
            f"{name} comes from the environment and tells this process its place in the job",
            f"unset {name}, or start the script with `xl launch`",
        ) from None
