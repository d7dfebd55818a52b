"""Proves that the gradients of the pieces of a batch add up to those of the whole.

Values alone do not show it: `x + (soft - soft.detach())` is x, sample by sample, and its gradient may still
run through a softmax over the batch.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (torch annotates parts of itself incompletely)

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn
from torch.autograd import grad as gradients_of  # before the shim replaces it: this one is nobody's business

from .compare import TOLERANCE
from .constants import Constants
from .decision import Split
from .trial import Run, Unsplittable

_REENTRANT = "use_reentrant=True"
_LOOSER = 10  # gradients are rounded more often than outputs
_NOISE = 64  # in units of the type's precision, of the largest gradient: what cancels out leaves as much

Gradients = list[Tensor | None]


def check_gradients(
    split: Split, whole: Run, pieces: Sequence[Run], module: nn.Module, weight: float
) -> None:
    """Compare the gradients, with respect to parameters and arguments, of the whole and of its two pieces.

    Modules with reentrant checkpointing pass, since torch gives no gradients of these here.

    Raises:
        Unsplittable: the pieces' gradients, put together, are others.
    """
    coefficients = {
        index: _coefficients(output)
        for index, output in enumerate(whole.outputs)
        if split.outputs[index].how in ("rows", "mean", "sum")
        and isinstance(output, Tensor)
        and output.requires_grad
    }
    if not coefficients or not torch.is_grad_enabled():
        return
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    with _undone(module, parameters):
        try:
            full = _gradients(whole, parameters, coefficients)
            first, second = (
                _gradients(run, parameters, _of_piece(split, coefficients, run, last, part))
                for run, last, part in ((pieces[0], False, weight), (pieces[1], True, 1 - weight))
            )
        except RuntimeError as error:
            if _REENTRANT in str(error):
                return
            reason = str(error).splitlines()[0][:120]
            raise Unsplittable(f"its gradients could not be tried ({reason})") from error
    pairs = zip(whole.arguments, split.dims, strict=True)
    arguments = [dim for leaf, dim in pairs if isinstance(leaf, Tensor) and leaf.requires_grad]
    _compare(full, first, second, [None] * len(parameters) + arguments)


def _coefficients(output: Tensor) -> Tensor:
    """A gradient for `output` that is another number for every entry."""
    count = torch.arange(output.numel(), dtype=torch.float32, device=output.device)
    return (1.0 + 0.5 * torch.cos(1.7 * count)).to(output.dtype).view(output.shape)


def _of_piece(
    split: Split, coefficients: dict[int, Tensor], run: Run, last: bool, part: float
) -> dict[int, Tensor]:
    """The same gradients, as far as they concern one piece."""
    found: dict[int, Tensor] = {}
    for index, whole in coefficients.items():
        output, rule = run.outputs[index], split.outputs[index]
        if rule.how == "rows" and isinstance(output, Tensor):
            size = output.shape[rule.dim]
            found[index] = whole.narrow(rule.dim, whole.shape[rule.dim] - size if last else 0, size)
        else:
            found[index] = whole * part if rule.how == "mean" else whole
    return found


def _gradients(run: Run, parameters: Sequence[Tensor], coefficients: dict[int, Tensor]) -> Gradients:
    outputs = [output for index in coefficients if isinstance(output := run.outputs[index], Tensor)]
    wanted = [
        *parameters,
        *(leaf for leaf in run.arguments if isinstance(leaf, Tensor) and leaf.requires_grad),
    ]
    if not wanted:
        return []
    found = gradients_of(outputs, wanted, list(coefficients.values()), allow_unused=True)
    return [None if g is None else _dense(g) for g in cast("Sequence[Tensor | None]", found)]


def _dense(gradient: Tensor) -> Tensor:
    return gradient if gradient.layout is torch.strided else gradient.to_dense()


@contextmanager
def _undone(module: nn.Module, parameters: Sequence[Tensor]) -> Generator[None]:
    """No hooks on the parameters; what checkpointing recomputes meets the constants of the forward again."""
    hooks = [(parameter, parameter._backward_hooks) for parameter in parameters]
    constants = Constants([*module.named_parameters(), *module.named_buffers()])
    for parameter, _ in hooks:
        parameter._backward_hooks = None
    try:
        with constants:
            yield
    finally:
        constants.restore()
        for parameter, own in hooks:
            parameter._backward_hooks = own


def _compare(full: Gradients, first: Gradients, second: Gradients, dims: Sequence[int | None]) -> None:
    largest = max((float(g.abs().max()) for g in full if g is not None and g.numel()), default=0.0)
    for whole, one, two, dim in zip(full, first, second, dims, strict=True):
        parts = [part for part in (one, two) if part is not None]
        if whole is None:
            same = all(not part.count_nonzero() for part in parts)
        elif dim is not None and len(parts) == 2:
            same = _near(whole, torch.cat(parts, dim), largest)
        else:
            same = dim is None and _near(whole, sum(parts, start=torch.zeros_like(whole)), largest)
        if not same:
            raise Unsplittable("the gradient of a sample depends on other samples")


def _near(first: Tensor, second: Tensor, largest: float) -> bool:
    if first.shape != second.shape:
        return False
    if first.is_complex():
        return _near(torch.view_as_real(first), torch.view_as_real(second), largest)
    tolerance = _LOOSER * TOLERANCE.get(first.dtype, 3e-2)
    noise = _NOISE * torch.finfo(first.dtype).eps * largest
    own = float(first.abs().max()) if first.numel() else 0.0
    return torch.allclose(first, second, rtol=tolerance, atol=tolerance * own + noise, equal_nan=True)
