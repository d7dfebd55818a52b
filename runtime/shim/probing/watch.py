"""Watches one forward by its operators: what comes from the batch, what is written, what is random."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportPrivateUsage=false
# (torch annotates parts of itself incompletely, and not all that a shim needs is public)

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._C import TensorBase
from torch.autograd import Function
from torch.utils._pytree import tree_leaves

from ..patches import Patches
from ..randomness import constant_instead, is_random, memory_order, name_of
from .constants import Constants, storage_key, written_by

Shape = tuple[int, ...]

_ORDERING = ("sort", "argsort", "msort", "topk", "kthvalue")
_TAKES_VALUES = "it takes values of the batch out of torch"
_LOOKS_BACK = "it looks at gradients inside forward()"
_WATCHED_METHODS = {
    "numpy": _TAKES_VALUES,
    "tolist": _TAKES_VALUES,
    "__array__": _TAKES_VALUES,
    "__dlpack__": _TAKES_VALUES,
    "register_hook": _LOOKS_BACK,
    "retain_grad": _LOOKS_BACK,
}
"""Methods that hand values or gradients of a part of the batch to others without an operator."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operator as it ran.

    Args:
        name: the operator without namespace and overload; in-place ones end with an underscore.
        inputs: shapes of the tensor arguments that depend on the batch.
        others: number of tensor arguments that do not.
        outputs: shapes of the results, when those depend on the batch.
        sizes: shape of a random operator's result, else None.
        selects: the size of the result depends on values (a mask used as index, nonzero).
        reduction: the `reduction` argument of a loss (0 none, 1 mean, 2 sum), else None.
        divides_by_batch: a divisor depends on the batch.
        order: of a random operator's result, the dims by memory.
    """

    name: str
    inputs: tuple[Shape, ...]
    others: int
    outputs: tuple[Shape, ...]
    sizes: Shape | None
    selects: bool
    reduction: int | None
    divides_by_batch: bool
    order: tuple[int, ...] = ()


class Watch(Constants):
    """While active, random operators are constant and everything that a probe must know is written down.

    Args:
        batch: the tensors that hold samples.
        state: parameters and buffers; what is about to be written is copied first, see `restore`.
    """

    def __init__(self, batch: Iterable[Tensor], state: Sequence[tuple[str, Tensor]]) -> None:
        super().__init__(state)
        self.operations: list[Operation] = []
        self.reason: str | None = None  # why the batch cannot be split, whatever comes out
        self._from_batch: dict[int, Tensor] = {}
        self._from_chance: dict[int, Tensor] = {}
        self._from_state: dict[int, Tensor] = {storage_key(tensor): tensor for _, tensor in state}
        self._patches = Patches()
        for tensor in batch:
            self._mark(tensor)

    def depends(self, tensor: Tensor) -> bool:
        """Whether the value of `tensor` comes from the batch."""
        return storage_key(tensor) in self._from_batch

    def written_from_batch(self) -> list[str]:
        """Names of the parameters and buffers that were written with values from the batch."""
        return [name for key, (name, _) in self._state.items() if key in self._from_batch]

    def __enter__(self) -> Any:
        for name, reason in _WATCHED_METHODS.items():
            self._patches.replace(Tensor, name, self._guarded(getattr(Tensor, name), reason))
        self._patches.replace(Tensor, "grad_fn", property(self._grad_fn))
        self._patches.replace(Function, "apply", classmethod(self._applied(vars(Function)["apply"].__func__)))
        return super().__enter__()

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)
        self._patches.restore()

    def _applied(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
            if not is_torch(cls.__module__):
                # Looked for here and not only in the graph: reentrant checkpointing hides what it holds.
                self.reason = (
                    self.reason or f"its backward goes through {cls.__name__}, which may not be linear"
                )
            return inner(cls, *args, **kwargs)

        return apply

    def _grad_fn(self, tensor: Tensor) -> Any:
        # torch's own modules look at it too, and set no hook on it.
        if not is_torch(sys._getframe(1).f_globals.get("__name__", "")):
            self.reason = self.reason or _LOOKS_BACK
        return vars(TensorBase)["grad_fn"].__get__(tensor)

    def _guarded(self, inner: Callable[..., Any], reason: str) -> Callable[..., Any]:
        def watched(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            if reason is _LOOKS_BACK or self.depends(tensor):
                self.reason = self.reason or reason
            return inner(tensor, *args, **kwargs)

        return watched

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not hasattr(func, "_schema"):
            self.reason = self.reason or f"it uses {func}, which cannot be watched"
            return func(*args, **kwargs)
        written = written_by(func, args, kwargs)
        for tensor in written:
            self.save(tensor)
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        touched = [tensor for tensor in tensors if self.depends(tensor)]
        self._check_decision(func, tensors, touched)
        shapes = tuple(tuple(tensor.shape) for tensor in touched)
        random = is_random(func, args, kwargs)
        out = constant_instead(func, args, kwargs) if random else func(*args, **kwargs)
        results = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        name = name_of(func)
        if random or any(storage_key(tensor) in self._from_chance for tensor in tensors):
            self._from_chance.update((storage_key(tensor), tensor) for tensor in results)
        elif any(storage_key(tensor) in self._from_state for tensor in tensors):
            self._from_state.update((storage_key(tensor), tensor) for tensor in results)
        if touched and not _makes_new(name):
            for tensor in (*results, *written):
                self._mark(tensor)
        dependent = tuple(tuple(t.shape) for t in results if self.depends(t))
        if random or (touched and not _makes_new(name)):
            self.operations.append(
                Operation(
                    name,
                    shapes,
                    len(tensors) - len(touched),
                    dependent,
                    tuple(results[0].shape) if random and results else None,
                    _selects(func, tensors),
                    _reduction(func, args, kwargs),
                    name.startswith("div") and isinstance(args[1], Tensor) and self.depends(args[1]),
                    memory_order(results[0]) if random and results else (),
                )
            )
        return out

    def _check_decision(self, func: Any, tensors: Sequence[Tensor], touched: Sequence[Tensor]) -> None:
        """A decision must not hang on what is another thing in a part of the batch, or at a later call."""
        by_chance = any(storage_key(tensor) in self._from_chance for tensor in tensors)
        if torch.Tag.data_dependent_output not in func.tags:
            if by_chance and name_of(func) in _ORDERING:
                self.reason = self.reason or "it orders samples by random numbers"
        elif touched:
            self.reason = (
                self.reason or "it takes a decision, or a Python number, from the values of the batch"
            )
        elif by_chance:
            self.reason = self.reason or "it takes a decision by a random number"
        elif any(storage_key(tensor) in self._from_state for tensor in tensors) and not _by_a_layer():
            self.reason = (
                self.reason or "it takes a decision, or a Python number, from a parameter or a buffer"
            )

    def _mark(self, tensor: Tensor) -> None:
        self._from_batch[storage_key(tensor)] = (
            tensor  # the reference keeps the storage, and so the key, taken
        )


def _by_a_layer() -> bool:
    """Whether one of torch's own layers asks: batch norm reads its count, and decides nothing by it."""
    frame = sys._getframe(3)
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name.startswith("torch.nn.modules.") or not is_torch(name):
            return name.startswith("torch.nn.modules.") and not name.endswith(".module")
        frame = frame.f_back
    return False


def is_torch(module: str) -> bool:
    """Whether code of this module is torch's or ours."""
    return module.partition(".")[0] in ("torch", "xl")


def _makes_new(name: str) -> bool:
    """Operators that take only shape and type from their argument."""
    return name.endswith("_like") or name.startswith("new_") or name in {"zero_", "fill_"}


def _selects(func: Any, tensors: list[Tensor]) -> bool:
    if torch.Tag.dynamic_output_shape not in func.tags:
        return name_of(func) in {"_pack_padded_sequence", "repeat_interleave", "bincount"}
    return name_of(func) != "index" or any(t.dtype in (torch.bool, torch.uint8) for t in tensors[1:])


def _reduction(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    for index, argument in enumerate(func._schema.arguments):
        if argument.name == "reduction":
            value = args[index] if index < len(args) else kwargs.get("reduction", argument.default_value)
            return int(value)
    return None
