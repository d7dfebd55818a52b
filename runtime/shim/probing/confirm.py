"""Tries a split at the real size of the batch: a module may do other things with many samples than with few.

The probe has found on a few samples how to split. Here the whole batch runs once, without gradients, beside
the rows of this rank, and their outputs are compared. Where a module sums over samples, the rows of every
rank are run. The cost is one or two forwards for each new number of rows.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (torch annotates parts of itself incompletely)

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..randomness import preserved_streams, set_stream_states, stream_states
from ..trees import flatten, rebuild
from .compare import close
from .constants import Constants
from .decision import Full, Output, Split
from .effects import contained
from .snapshot import Snapshot
from .surroundings import Variable, uncached
from .trial import TrialRegion, does_not_run

Forward = Any


@dataclass(slots=True)
class Confirmation:
    """One try of a call at its real size.

    Args:
        forward: calls the module.
        module, tree, leaves: the module, its (args, kwargs), and these flattened.
        split: how the probe would split the call.
        rows: the rows of each rank. rank: this one.
        variables: what its forward uses outside of it.
    """

    forward: Forward
    module: nn.Module
    tree: object
    leaves: list[object]
    split: Split
    rows: Sequence[int]
    rank: int
    variables: Sequence[Variable] = ()

    def run(self) -> Full | None:
        """Return why the call is better run in full, or None: the split gives the numbers of the whole.

        Raises:
            torch.OutOfMemoryError: the whole batch does not fit on this device.
        """
        state = [*self.module.named_parameters(), *self.module.named_buffers()]
        device = next((tensor.device for _, tensor in state), torch.device("cpu"))
        before, grad = Snapshot(self.module, self.variables), torch.is_grad_enabled()
        constants = Constants([*state, *before.outside])
        with torch.inference_mode(False), preserved_streams(device), uncached(self.variables):
            try:
                try:
                    with torch.no_grad():
                        reason = self._compare(constants)
                except torch.OutOfMemoryError:
                    raise
                except Exception:  # forwards that ask for gradients themselves need them
                    with torch.set_grad_enabled(grad):
                        reason = self._compare(constants)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                reason = does_not_run(error)
            finally:
                before.restore()
                constants.restore()
        return None if reason is None else Full(reason)

    def _compare(self, constants: Constants) -> str | None:
        counted: list[Any] = []
        whole = self._outputs(0, sum(self.rows), counted, constants)
        if len(whole) != len(self.split.outputs):
            return "it returns something else for a whole batch"
        summed = any(output.how in ("mean", "sum") for output in self.split.outputs)
        totals: list[list[tuple[Tensor, float]]] = [[] for _ in whole]
        for rank, here in enumerate(self.rows):
            if rank != self.rank and not summed:
                continue
            start = sum(self.rows[:rank])
            piece = self._outputs(start, start + here, counted, constants)
            if len(piece) != len(whole):
                return "it returns something else for a part of the batch"
            for index, rule in enumerate(self.split.outputs):
                if rule.how in ("mean", "sum"):
                    part = here / sum(self.rows) if rule.how == "mean" else 1.0
                    totals[index].append((_tensor(piece[index]), part))
                elif not self._same(rule, whole[index], piece[index], start, here):
                    return f"output {index} of a whole batch is not that of its parts"
        for leaf, parts in zip(whole, totals, strict=True):
            if parts and not _adds_up(leaf, parts):
                return "its sum over a whole batch is not that of its parts"
        return None

    def _outputs(self, start: int, stop: int, counted: list[Any], constants: Constants) -> list[object]:
        pieces = [
            _rows(leaf, dim, start, stop) for leaf, dim in zip(self.leaves, self.split.dims, strict=True)
        ]
        args, kwargs = cast("tuple[Any, Any]", rebuild(self.tree, pieces))
        region = TrialRegion((stop - start) / sum(self.rows), counted)
        streams = stream_states()
        torch.manual_seed(0)
        output: object = None
        try:
            with contained() as effects, region.running(), constants:
                output = self.forward(self.module, *args, **kwargs)
        finally:
            constants.restore()
            set_stream_states(streams)
        if effects.what is not None:
            raise RuntimeError(f"it {effects.what}")
        return flatten(output)[0]

    def _same(self, rule: Output, whole: object, piece: object, start: int, here: int) -> bool:
        if rule.how == "argument":
            return True
        if not isinstance(whole, Tensor) or not isinstance(piece, Tensor):
            return type(whole) is type(piece) and whole == piece
        if rule.how == "rows":
            if rule.dim >= whole.ndim or whole.shape[rule.dim] % sum(self.rows):
                return False
            per_row = whole.shape[rule.dim] // sum(self.rows)
            whole = whole.narrow(rule.dim, start * per_row, here * per_row)
        return close(whole, piece)


def _rows(leaf: object, dim: int | None, start: int, stop: int) -> object:
    if not isinstance(leaf, Tensor):
        return leaf
    value = leaf.detach()
    rows = value if dim is None else value.narrow(dim, start, stop - start)
    return rows.clone().requires_grad_(leaf.requires_grad)


def _tensor(leaf: object) -> Tensor:
    if not isinstance(leaf, Tensor):
        raise TypeError(f"it returned a {type(leaf).__name__} instead of a sum")
    return leaf


def _adds_up(whole: object, parts: Sequence[tuple[Tensor, float]]) -> bool:
    if not isinstance(whole, Tensor) or any(value.shape != whole.shape for value, _ in parts):
        return False
    total = sum((value.double() * part for value, part in parts), start=torch.zeros_like(whole).double())
    return close(whole, total.to(whole.dtype))
