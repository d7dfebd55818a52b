"""Mixed precision as the launcher asks for it: autocast around a forward, outputs back in float32."""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from ..configs.errors import XlError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..configs.worker import Precision

DTYPES: Final = {"bf16": torch.bfloat16, "fp16": torch.float16}


def check_parameters(precision: Precision, parameters: Iterable[Tensor]) -> None:
    """Refuse a precision that has no effect on a model.

    Raises:
        XlError: every floating-point parameter is float64, which autocast leaves as it is.
    """
    types = {parameter.dtype for parameter in parameters if parameter.is_floating_point()}
    if precision != "no" and types == {torch.float64}:
        raise XlError(
            f"mixed_precision={precision} has no effect on this model",
            "its parameters are float64, and autocast only computes float32 in a narrower type",
            "pass --mixed-precision no, or make the model float32",
        )


def check_precision(precision: Precision, device: torch.device) -> None:
    """Refuse a precision that the device cannot compute in.

    Raises:
        XlError: bf16 on a GPU without it, or mixed precision on a device other than CPU and CUDA.
    """
    if precision == "no":
        return
    if device.type not in {"cpu", "cuda"}:
        raise XlError(
            f"mixed_precision={precision} is not possible on the device {device}",
            "xl computes in mixed precision on CPUs and CUDA GPUs",
            "pass --mixed-precision no, or move the model to a CUDA device",
        )
    if precision == "bf16" and device.type == "cuda":
        with torch.cuda.device(device):
            supported = torch.cuda.is_bf16_supported(including_emulation=False)
        if not supported:
            raise XlError(
                f"mixed_precision=bf16 is not possible on {torch.cuda.get_device_name(device)}",
                "this GPU has no bfloat16 arithmetic (it needs compute capability 8.0)",
                "pass --mixed-precision fp16",
            )


def applies(precision: Precision, device_type: str) -> bool:
    """Whether `autocast` changes anything: not where the program has an autocast of its own."""
    return precision != "no" and not torch.is_autocast_enabled(device_type)


def autocast(precision: Precision, device_type: str) -> AbstractContextManager[object]:
    """Compute the matrix products inside in `precision`; an autocast that is active already is left alone."""
    if not applies(precision, device_type):
        return nullcontext()
    return torch.autocast(device_type, dtype=DTYPES[precision])


def widen(value: object) -> object:
    """Return a bfloat16 or float16 tensor in float32, anything else as it is; differentiable."""
    if isinstance(value, Tensor) and value.dtype in {torch.bfloat16, torch.float16}:
        return value.float()
    return value
