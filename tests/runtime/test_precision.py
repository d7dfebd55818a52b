"""Autocast as the launcher asks for it."""

# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from xl.configs.errors import XlError
from xl.runtime.precision import autocast, check_parameters, check_precision, widen


@pytest.mark.parametrize(("precision", "kind"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_products_are_computed_in_the_asked_type(precision: str, kind: torch.dtype) -> None:
    x = torch.ones(2, 2)
    with autocast("bf16" if precision == "bf16" else "fp16", "cpu"):
        assert (x @ x).dtype == kind
    assert (x @ x).dtype == torch.float32


def test_an_autocast_that_is_active_is_left_alone() -> None:
    x = torch.ones(2, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16), autocast("fp16", "cpu"):
        assert (x @ x).dtype == torch.bfloat16
    assert isinstance(autocast("no", "cpu"), nullcontext)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_half_precision_is_widened_and_stays_differentiable(kind: torch.dtype) -> None:
    x = torch.ones(2, dtype=kind, requires_grad=True)
    wide = widen(x)
    assert isinstance(wide, torch.Tensor)
    assert wide.dtype == torch.float32
    assert wide.requires_grad


@pytest.mark.parametrize(
    "value", [torch.ones(1).double(), torch.ones(1), torch.ones(1) + 1j, torch.ones(1).int(), "x"]
)
def test_anything_else_is_left_alone(value: object) -> None:
    assert widen(value) is value


def test_devices_that_cannot_are_refused() -> None:
    check_precision("no", torch.device("meta"))
    check_precision("bf16", torch.device("cpu"))
    with pytest.raises(XlError, match="mixed_precision=fp16 is not possible on the device meta"):
        check_precision("fp16", torch.device("meta"))


def test_a_gpu_without_bf16_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """No such GPU is here: what torch would say of one is put in its place."""
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Tesla T4")
    with pytest.raises(XlError, match="not possible on Tesla T4") as caught:
        check_precision("bf16", torch.device("cuda", 0))
    assert "--mixed-precision fp16" in caught.value.fix


def test_half_precision_of_a_float64_model_is_refused() -> None:
    layers = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2).double()
    check_parameters("no", layers[1].parameters())
    check_parameters("bf16", layers[0].parameters())
    check_parameters("bf16", [*layers[0].parameters(), *layers[1].parameters()])
    with pytest.raises(XlError, match="mixed_precision=bf16 has no effect"):
        check_parameters("bf16", layers[1].parameters())
