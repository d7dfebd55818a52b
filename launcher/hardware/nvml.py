"""NVIDIA's management library (NVML), typed as far as it is used, opened only where a driver is installed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Protocol, TypeVar, cast

Answer = TypeVar("Answer")


class MemoryInfo(Protocol):
    """Sizes in bytes."""

    total: int
    free: int


class Nvml(Protocol):
    """The functions of the `pynvml` module that are called; a handle means nothing outside the library."""

    NVMLError: type[Exception]

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...
    def nvmlSystemGetDriverVersion(self) -> str: ...
    def nvmlSystemGetCudaDriverVersion_v2(self) -> int: ...
    def nvmlDeviceGetCount(self) -> int: ...
    def nvmlDeviceGetHandleByIndex(self, index: int, /) -> object: ...
    def nvmlDeviceGetName(self, handle: object, /) -> str: ...
    def nvmlDeviceGetUUID(self, handle: object, /) -> str: ...
    def nvmlDeviceGetMemoryInfo(self, handle: object, /) -> MemoryInfo: ...
    def nvmlDeviceGetCudaComputeCapability(self, handle: object, /) -> tuple[int, int]: ...
    def nvmlDeviceGetMigMode(self, handle: object, /) -> list[int]: ...
    def nvmlDeviceGetMaxMigDeviceCount(self, handle: object, /) -> int: ...
    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: object, index: int, /) -> object: ...
    def nvmlDeviceGetTopologyCommonAncestor(self, one: object, other: object, /) -> int: ...
    def nvmlDeviceGetP2PStatus(self, one: object, other: object, capability: int, /) -> int: ...
    def nvmlDeviceGetNvLinkState(self, handle: object, link: int, /) -> int: ...


class NvmlAbsentError(Exception):
    """NVML cannot be used; the text says why in a few words."""


@contextmanager
def nvml_session(nvml: Nvml | None = None) -> Generator[Nvml]:
    """Start the library and stop it again.

    Raises:
        NvmlAbsentError: no driver is installed, or it does not answer.
    """
    library = _load() if nvml is None else nvml
    try:
        library.nvmlInit()
    except library.NVMLError as error:
        raise NvmlAbsentError(f"the NVIDIA driver does not answer: {error}") from error
    try:
        yield library
    finally:
        library.nvmlShutdown()


def ask(nvml: Nvml, question: Callable[[], Answer]) -> Answer | None:
    """The answer, or None where this device or driver cannot tell."""
    try:
        return question()
    except nvml.NVMLError:
        return None


def _load() -> Nvml:
    if sys.platform == "linux":
        # Importing pynvml costs more than all other facts together, so look first whether there is a driver.
        from ctypes import CDLL

        try:
            CDLL("libnvidia-ml.so.1")
        except OSError:
            raise NvmlAbsentError("no NVIDIA driver found: libnvidia-ml.so.1 is not installed") from None
    try:
        from importlib import import_module

        return cast("Nvml", import_module("pynvml"))
    except ImportError:
        raise NvmlAbsentError("the package nvidia-ml-py is not installed") from None
