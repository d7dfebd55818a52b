"""How the GPUs of this machine reach each other: NVLink, one PCIe switch, or through the processors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from .nvml import Nvml, ask

MAX_NVLINKS = 36  # NVML_NVLINK_MAX_LINKS: the most that any GPU has
_NVLINK_CAPABILITY, _P2P_OK = 2, 0  # NVML_P2P_CAPS_INDEX_NVLINK, NVML_P2P_STATUS_OK
_ANCESTORS: Mapping[int, str] = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}

MEANING: Mapping[str, str] = {
    "NV": "NVLink",
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches",
    "PHB": "the PCIe host bridge",
    "NODE": "PCIe host bridges of one NUMA node",
    "SYS": "the link between processors",
}
"""What each kind passes through, fastest first; the short names are those of `nvidia-smi topo -m`."""


@dataclass(frozen=True, slots=True)
class GpuLink:
    """The path between two GPUs.

    Args:
        first: index of one GPU.
        second: index of the other, always larger.
        kind: a key of `MEANING`.
        nvlinks: active NVLinks of the first GPU, to the peer or to their switch; 0 unless kind is NV.
    """

    first: int
    second: int
    kind: str
    nvlinks: int = 0


def read_links(nvml: Nvml, handles: Sequence[tuple[int, object]]) -> tuple[GpuLink, ...]:
    """The path between each pair of (index, handle); pairs of which the driver tells nothing are left out."""
    links: list[GpuLink] = []
    for position, (first, handle) in enumerate(handles):
        nvlinks = None
        for second, peer in handles[position + 1 :]:
            if ask(nvml, partial(nvml.nvmlDeviceGetP2PStatus, handle, peer, _NVLINK_CAPABILITY)) == _P2P_OK:
                nvlinks = _active_nvlinks(nvml, handle) if nvlinks is None else nvlinks
                if nvlinks:
                    links.append(GpuLink(first, second, "NV", nvlinks))
                    continue
            level = ask(nvml, partial(nvml.nvmlDeviceGetTopologyCommonAncestor, handle, peer))
            if level is not None and level in _ANCESTORS:
                links.append(GpuLink(first, second, _ANCESTORS[level]))
    return tuple(links)


def _active_nvlinks(nvml: Nvml, handle: object) -> int:
    states = (ask(nvml, partial(nvml.nvmlDeviceGetNvLinkState, handle, link)) for link in range(MAX_NVLINKS))
    return sum(state == 1 for state in states)
