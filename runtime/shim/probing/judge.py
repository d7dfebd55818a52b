"""Judges three watched forwards, of all samples and of two pieces: how may such a call be split?"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (torch annotates parts of itself incompletely)

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..randomness import Draw
from . import dataflow
from .arguments import PLAIN
from .compare import close, row_dim, same_values
from .decision import Output, Split
from .trial import Run, Unsplittable


def judge(dims: tuple[int | None, ...], whole: Run, pieces: list[Run], weight: float) -> Split:
    """Return how a call with the samples in `dims` may be split.

    Args:
        dims: for each leaf of the arguments the dim of the samples, or None.
        whole, pieces: the run with all samples, and the two with a part of them.
        weight: the first piece's part of the samples.

    Raises:
        Unsplittable: it may not, or that cannot be told.
    """
    _check_runs(whole, pieces)
    alike, draws = _compare_operations(whole, pieces)
    outputs = tuple(_output(index, whole, pieces, weight) for index in range(len(whole.outputs)))
    if all(output.how in ("same", "argument") for output in outputs):
        raise Unsplittable("its outputs do not depend on the batch")
    if any(output.how in ("mean", "sum") for output in outputs):
        if not alike:
            raise Unsplittable("it sums over samples, by operators that vary with their number")
        if dataflow.selects(whole.operations):
            raise Unsplittable("it sums over samples that it selects by their values")
    names = tuple(operation.name for operation in whole.operations) if alike else ()
    return Split(dims, outputs, draws, names)


def _check_runs(whole: Run, pieces: list[Run]) -> None:
    """What must hold whatever the outputs: one structure, and state that does not follow the samples."""
    if any(piece.structure != whole.structure for piece in pieces):
        raise Unsplittable("the structure of its output depends on the number of samples")
    for piece in pieces:
        for name in {**whole.written, **piece.written}:
            if not same_values(whole.written.get(name), piece.written.get(name)):
                raise Unsplittable(f"forward() updates {name} by the number of samples", lasting=True)


def _compare_operations(whole: Run, pieces: list[Run]) -> tuple[bool, tuple[Draw, ...]]:
    """Whether all runs were the same operators, and how the random ones are drawn."""
    first = pieces[0]
    alike = all(dataflow.same_operations(whole.operations, piece.operations) for piece in pieces)
    draws: tuple[Draw, ...] | str = ()
    if alike:
        mixed = dataflow.mixing(whole.operations, first.operations)
        if mixed is not None:
            raise Unsplittable(mixed)
        draws = dataflow.draws(whole.operations, first.operations)
        if isinstance(draws, str):
            raise Unsplittable(draws)
    elif any(operation.sizes for operation in whole.operations):
        raise Unsplittable("its random operators vary with the number of samples")
    return alike, draws


def _output(index: int, run: Run, pieces: list[Run], weight: float) -> Output:
    whole, first, second = run.outputs[index], pieces[0].outputs[index], pieces[1].outputs[index]
    if not isinstance(whole, Tensor) or not isinstance(first, Tensor) or not isinstance(second, Tensor):
        plain = type(whole) is type(first) is type(second) and isinstance(whole, PLAIN)
        if plain and whole == first == second:
            return Output("same")
        raise Unsplittable(f"output {index} is a {type(whole).__name__} that depends on the samples")
    if type(whole) not in (Tensor, nn.Parameter, nn.Buffer) or whole.layout is not torch.strided:
        raise Unsplittable(f"output {index} is not a plain tensor")
    given = next((number for number, leaf in enumerate(run.arguments) if leaf is whole), None)
    if given is not None:
        return Output("argument", given)
    dim = row_dim(whole, first, second)
    if dim is not None and close(whole, torch.cat([first, second], dim)):
        return Output("rows", dim)
    if not run.depends[index]:
        if close(whole, first) and close(whole, second):
            return Output("same")
    elif whole.shape == first.shape == second.shape and whole.is_floating_point():
        return _total(index, whole, first, second, weight)
    raise Unsplittable(f"output {index} of shape {tuple(whole.shape)} is not computed sample by sample")


def _total(index: int, whole: Tensor, first: Tensor, second: Tensor, weight: float) -> Output:
    mean = close(whole, first * weight + second * (1 - weight), exact=True)
    added = close(whole, first + second, exact=True)
    if mean and added:
        raise Unsplittable(f"output {index} is zero, a sum and a mean alike", undecided=True)
    if mean or added:
        return Output("mean" if mean else "sum")
    raise Unsplittable(f"output {index} is neither a sum nor a mean over the samples")
