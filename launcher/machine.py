"""Facts of this machine and of this launch that planning needs, as frozen values."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

from ..configs.paths import runs_folder
from .capacity import Limit, read_limits
from .hardware.cpu import read_usable_cores


@dataclass(frozen=True, slots=True)
class Gpu:
    """One NVIDIA GPU.

    Args:
        index: NVML's number.
        uuid: its permanent name.
        name: model.
        memory_total_bytes: its memory; 0 where the driver does not tell.
        memory_free_bytes: what is free of it.
        mig: UUIDs of its MIG instances, empty unless it is divided.
    """

    index: int
    uuid: str
    name: str
    memory_total_bytes: int
    memory_free_bytes: int
    mig: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Machine:
    """What is true here and now; planning reads this and nothing else.

    Args:
        platform: as `sys.platform`.
        usable_cores: CPU cores that this process may use at once.
        gpus: all GPUs, whatever CUDA_VISIBLE_DEVICES says.
        environment: the job's environment before xl changes it.
        python: the interpreter that runs the script.
        port: the store's port, held by a socket of this launch; 0 where nothing needs one.
        run_id: name of this launch: its time and something that no other launch has.
        state_folder: where log folders go that nobody asked for by name.
        limits: how much of what processes take there is.
    """

    hostname: str
    platform: str
    usable_cores: int
    gpus: tuple[Gpu, ...]
    environment: Mapping[str, str]
    python: str
    cwd: str
    port: int
    run_id: str
    state_folder: str
    limits: tuple[Limit, ...] = ()


def read_machine(environ: Mapping[str, str], port: int) -> Machine:
    """Gather the facts; touches no GPU and imports no torch."""
    return Machine(
        hostname=socket.gethostname(),
        platform=sys.platform,
        usable_cores=read_usable_cores(),
        gpus=_gpus(),
        environment=environ,
        python=sys.executable,
        cwd=os.getcwd(),
        port=port,
        run_id=f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(3).hex()}",
        state_folder=str(runs_folder(environ)),
        limits=read_limits(),
    )


def _gpus() -> tuple[Gpu, ...]:
    devices = ("/dev/nvidiactl", "/dev/dxg")  # Linux's own driver, and Windows' under WSL
    if sys.platform == "linux" and not any(map(os.path.exists, devices)):
        return ()  # saves importing the driver's library
    from .gpus import read_gpus

    return read_gpus()
