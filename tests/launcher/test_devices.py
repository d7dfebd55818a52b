"""Which worker sees which GPU: the whole table, for GPUs that need not be here."""

from __future__ import annotations

import pytest

from xl.configs.errors import XlError
from xl.launcher.devices import devices_per_worker, selected_devices, visible_devices
from xl.launcher.machine import Gpu

A, B, C = "GPU-aaaa-1", "GPU-aabb-2", "GPU-cccc-3"


def gpu(index: int, uuid: str, name: str = "X100", mig: tuple[str, ...] = ()) -> Gpu:
    return Gpu(index, uuid, name, 80 << 30, 79 << 30, mig)


THREE = (gpu(0, A), gpu(1, B), gpu(2, C))
MIXED = (gpu(0, A, "slow"), gpu(1, B, "fast"))
DIVIDED = (gpu(0, A, mig=("MIG-1", "MIG-2")), gpu(1, B))


@pytest.mark.parametrize(
    ("gpus", "visible", "expected"),
    [
        ((), None, ()),
        (THREE, None, (A, B, C)),
        (THREE, "2,0", (C, A)),
        (THREE, " 1 , 2 ", (B, C)),
        (THREE, "", ()),
        (THREE, "-1", ()),
        (THREE, "0,-1,1", (A,)),
        (THREE, "0,9,1", (A,)),
        (THREE, "NoDevFiles", ()),
        (THREE, f"{C},{A}", (C, A)),
        (THREE, "GPU-c", (C,)),
        (THREE, "GPU-aa", ()),  # names two
        (THREE, "GPU-zz", ()),
        (DIVIDED, None, ("MIG-1", "MIG-2", B)),
        (DIVIDED, "MIG-2", ("MIG-2",)),
        (DIVIDED, "0", ("MIG-1",)),
        (MIXED, "1", ("1",)),  # CUDA counts the fast one first, NVML by bus: the number stays
    ],
)
def test_visible_devices(gpus: tuple[Gpu, ...], visible: str | None, expected: tuple[str, ...]) -> None:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert visible_devices(gpus, environ) == expected


def test_numbers_become_uuids_where_the_orders_agree() -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert visible_devices(MIXED, environ) == (B,)


@pytest.mark.parametrize(
    ("gpu_ids", "expected"),
    [(None, (A, B, C)), ("all", (A, B, C)), ("2,0", (C, A)), ("GPU-c", (C,)), (f"1,{A}", (B, A))],
)
def test_selected_devices(gpu_ids: str | None, expected: tuple[str, ...]) -> None:
    assert selected_devices((A, B, C), gpu_ids) == expected


@pytest.mark.parametrize("gpu_ids", ["3", "0,0", "GPU-aa", "GPU-zz", "0,", "x"])
def test_ids_that_pick_nothing_are_an_error(gpu_ids: str) -> None:
    with pytest.raises(XlError, match="gpu_ids"):
        selected_devices((A, B, C), gpu_ids)


@pytest.mark.parametrize(
    ("devices", "workers", "one_each", "narrowed", "expected"),
    [
        ((), 2, True, False, (None, None)),
        ((A, B), 2, True, False, (A, B)),
        ((A, B), 1, True, False, (A,)),
        ((A, B), 2, False, False, (None, None)),
        ((B, A), 2, False, True, (f"{B},{A}", f"{B},{A}")),
    ],
)
def test_devices_per_worker(
    devices: tuple[str, ...], workers: int, one_each: bool, narrowed: bool, expected: tuple[str | None, ...]
) -> None:
    assert devices_per_worker(devices, workers, one_each=one_each, narrowed=narrowed) == expected
