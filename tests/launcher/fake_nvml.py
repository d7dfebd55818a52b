"""Stands in for NVIDIA's management library: there is no GPU where these tests run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

GIB = 1 << 30
Answer = TypeVar("Answer")


class NVMLError(Exception):
    """As pynvml's."""


@dataclass
class Memory:
    total: int
    free: int


@dataclass
class Device:
    """One GPU, or one MIG instance; None: the driver does not tell."""

    uuid: str
    name: str = "NVIDIA H100 80GB HBM3"
    memory: Memory | None = field(default_factory=lambda: Memory(80 * GIB, 79 * GIB))
    capability: tuple[int, int] | None = (9, 0)
    mig: list[Device] | None = None
    nvlinks: int = 0
    lost: bool = False


@dataclass
class FakeNvml:
    """Answers like the pynvml module.

    Args:
        devices: in NVML's order.
        ancestors: pair of indices -> topology level; absent: not told.
        nvlink_pairs: pairs that NVLink joins.
        broken: nvmlInit fails.
    """

    devices: list[Device]
    ancestors: Mapping[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    nvlink_pairs: frozenset[tuple[int, int]] = frozenset()
    broken: bool = False
    open_sessions: int = 0
    NVMLError: type[Exception] = NVMLError

    def nvmlInit(self) -> None:
        if self.broken:
            raise NVMLError("Driver/library version mismatch")
        self.open_sessions += 1

    def nvmlShutdown(self) -> None:
        self.open_sessions -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.65.06"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return 13010

    def nvmlDeviceGetCount(self) -> int:
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int, /) -> object:
        if self.devices[index].lost:
            raise NVMLError("GPU is lost")
        return self.devices[index]

    def nvmlDeviceGetName(self, handle: object, /) -> str:
        return _device(handle).name

    def nvmlDeviceGetUUID(self, handle: object, /) -> str:
        return _device(handle).uuid

    def nvmlDeviceGetMemoryInfo(self, handle: object, /) -> Memory:
        return _told(_device(handle).memory)

    def nvmlDeviceGetCudaComputeCapability(self, handle: object, /) -> tuple[int, int]:
        return _told(_device(handle).capability)

    def nvmlDeviceGetMigMode(self, handle: object, /) -> list[int]:
        return [1, 1] if _told(_device(handle).mig) else [0, 0]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: object, /) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: object, index: int, /) -> object:
        instances = _told(_device(handle).mig)
        if index >= len(instances):
            raise NVMLError("Not Found")
        return instances[index]

    def nvmlDeviceGetTopologyCommonAncestor(self, one: object, other: object, /) -> int:
        return _told(self.ancestors.get(self._pair(one, other)))

    def nvmlDeviceGetP2PStatus(self, one: object, other: object, capability: int, /) -> int:
        return 0 if capability == 2 and self._pair(one, other) in self.nvlink_pairs else 5

    def nvmlDeviceGetNvLinkState(self, handle: object, link: int, /) -> int:
        if link >= 18:
            raise NVMLError("Invalid Argument")
        return 1 if link < _device(handle).nvlinks else 0

    def _pair(self, one: object, other: object) -> tuple[int, int]:
        return self.devices.index(_device(one)), self.devices.index(_device(other))


def _device(handle: object) -> Device:
    assert isinstance(handle, Device)
    return handle


def _told(value: Answer | None) -> Answer:
    if value is None:
        raise NVMLError("Not Supported")
    return value
