"""The memory table, by figures worked out by hand."""

import pytest

from xl.configs.errors import XlError
from xl.configs.sizing import (
    Devices,
    Model,
    Strategy,
    gib,
    host_need,
    memory_need,
    parse_memory,
    parse_model_size,
    recommend,
    short_count,
    usable,
)

GIB = 1 << 30
B7 = 7_000_000_000


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("7B", B7),
        ("1.3b", 1_300_000_000),
        ("350M", 350_000_000),
        ("125m", 125_000_000),
        (" 2 k ", 2_000),
        ("70000000", 70_000_000),
        ("70_000_000", 70_000_000),
        ("1T", 10**12),
        ("0.5B", 500_000_000),
        ("small", 100_000_000),
        ("Small", 100_000_000),
    ],
)
def test_model_sizes(text: str, count: int) -> None:
    assert parse_model_size(text) == count


@pytest.mark.parametrize(
    "text",
    ["", "7 billion", "7BB", "-7B", "1,3B", "B", "0", "0.0B", "1e9", "inf", "nan", "9999T", "7G", "٧B"],
)
def test_what_is_no_model_size(text: str) -> None:
    with pytest.raises(XlError, match="is not understood"):
        parse_model_size(text)


@pytest.mark.parametrize(
    ("text", "size"), [("80", 80 * GIB), ("80GB", 80 * GIB), ("79.5 GiB", 159 * GIB // 2)]
)
def test_memories(text: str, size: int) -> None:
    assert parse_memory(text) == size


@pytest.mark.parametrize("text", ["", "0", "-1", "80MB", "eighty", "99999999999"])
def test_what_is_no_memory(text: str) -> None:
    with pytest.raises(XlError):
        parse_memory(text)


@pytest.mark.parametrize(
    ("strategy", "devices", "factor"),
    [
        # The mission's table in units of the parameters: 4, 2 + 2/k, 1 + 3/k, 4/k.
        ("ddp", 4, 4),
        ("zero1", 4, 2 + 2 / 4),
        ("zero2", 4, 1 + 3 / 4),
        ("zero3", 4, 4 / 4),
        ("fsdp", 4, 4 / 4),
        ("zero1", 1, 4),
        ("zero2", 1, 4),
        ("fsdp", 1, 4),
        ("fsdp", 8, 0.5),
    ],
)
def test_the_table(strategy: Strategy, devices: int, factor: float) -> None:
    assert memory_need(Model(1_000_000), strategy, devices).total == factor * 4 * 1_000_000


def test_parts_of_7b_under_ddp_in_bf16() -> None:
    need = memory_need(Model(B7, "adamw", "bf16"), "ddp")
    assert (need.parameters, need.gradients, need.states, need.copy) == (
        28_000_000_000,
        28_000_000_000,
        56_000_000_000,
        14_000_000_000,
    )
    assert gib(need.total) == "117.3 GiB"


def test_the_copy_is_whole_where_parameters_are_whole() -> None:
    model = Model(1000, "adamw", "fp16")
    assert memory_need(model, "zero1", 4).total == 4000 + 4000 + 2000 + 2000
    assert memory_need(model, "zero2", 4).total == 4000 + 2000 + 1000 + 2000
    assert memory_need(model, "fsdp", 4).total == 4000


@pytest.mark.parametrize(
    ("optimizer", "each"),
    [("adamw", 16), ("adamw-8bit", 10), ("sgd-momentum", 12), ("sgd", 8), ("adafactor", 8)],
)
def test_optimizers(optimizer: str, each: int) -> None:
    model = Model(1000, optimizer)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert memory_need(model, "ddp").total == each * 1000


def test_shares_are_rounded_up() -> None:
    assert memory_need(Model(10, "sgd"), "fsdp", 3).parameters == 14  # 40 / 3


def gpus(count: int, memory: int | None, host: int | None = 512 * GIB, machines: int = 1) -> Devices:
    return Devices("gpu", count, count // machines, memory, host)


def test_fits_one_device() -> None:
    found = recommend(Model(1_300_000_000), gpus(8, 24 * GIB + 1 * GIB))  # 19.4 GiB of 20.0
    assert (found.backend, found.offload, found.fits) == ("ddp", False, True)


def test_the_reserve_decides() -> None:
    model = Model(1_000_000)  # 16 MB
    assert recommend(model, gpus(2, 20_000_000)).backend == "ddp"  # 80 % is 16 MB
    assert recommend(model, gpus(2, 19_999_999)).backend == "fsdp"
    assert usable(20_000_000) == 16_000_000


def test_does_not_fit_one_device() -> None:
    found = recommend(Model(B7, "adamw", "bf16"), gpus(8, 80 * GIB))
    assert (found.backend, found.offload, found.fits) == ("fsdp", False, True)
    assert "fsdp over 8 devices: 16 B / 8 each = 13.0 GiB" in found.lines


def test_still_not_so_offload() -> None:
    found = recommend(Model(B7), gpus(2, 24 * GIB, 256 * GIB))
    assert (found.backend, found.offload, found.fits) == ("fsdp", True, True)
    assert found.lines[-1] == "fsdp with offload: 104.3 GiB of RAM on each machine, 204.8 GiB may be used"


def test_one_gpu_has_nothing_to_shard_over() -> None:
    found = recommend(Model(B7), gpus(1, 24 * GIB))
    assert (found.backend, found.offload) == ("fsdp", True)
    assert not any("devices:" in line for line in found.lines)


def test_offload_on_two_machines_takes_half_of_the_ram_each() -> None:
    devices = gpus(4, 8 * GIB, machines=2)
    assert host_need(Model(B7), devices) == 56_000_000_000


def test_nothing_fits() -> None:
    found = recommend(Model(B7), gpus(1, 24 * GIB, 64 * GIB))
    assert found.fits is False
    # 104.3 GiB over 19.2 GiB each; 19.2 GiB at 16 B.
    assert "It would fit 6 such devices under fsdp, or a model of about 1.29B parameters." in found.reason


def test_a_cpu_cannot_offload() -> None:
    found = recommend(Model(B7), Devices("cpu", 2, 2, 16 * GIB, 32 * GIB))
    assert (found.backend, found.offload, found.fits) == ("fsdp", False, False)
    assert "It would fit 5 such machines" in found.reason  # 9 processes of 12.8 GiB, 2 on each


def test_8_bit_adamw_cannot_be_offloaded() -> None:
    found = recommend(Model(B7, "adamw-8bit"), gpus(1, 24 * GIB))
    assert (found.offload, found.fits) == (False, False)
    assert "8-bit AdamW works on GPUs only" in found.reason


def test_unknown_memory_is_said() -> None:
    found = recommend(Model(B7), gpus(2, None))
    assert (found.backend, found.fits) == ("ddp", None)
    assert "not known" in found.reason
    found = recommend(Model(B7), gpus(1, 24 * GIB, None))
    assert (found.offload, found.fits) == (True, None)


def test_the_sum_is_shown() -> None:
    assert recommend(Model(B7, "adamw", "bf16"), gpus(1, 80 * GIB)).lines[:7] == (
        "7B parameters on one device:",
        "  parameters, float32     4 B each     26.1 GiB",
        "  gradients, float32      4 B each     26.1 GiB",
        "  AdamW state             8 B each     52.2 GiB",
        "  copy in bf16            2 B each     13.0 GiB",
        "  sum                    18 B each    117.3 GiB",
        "memory of a GPU: 80.0 GiB, 64.0 GiB without 20 % for activations",
    )


@pytest.mark.parametrize(
    ("count", "text"),
    [(B7, "7B"), (1_300_000_000, "1.3B"), (350_000_000, "350M"), (999, "999"), (10**12, "1T")],
)
def test_counts_as_people_write_them(count: int, text: str) -> None:
    assert short_count(count) == text
