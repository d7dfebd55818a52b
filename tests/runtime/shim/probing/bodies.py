"""A module with something added, and the probe's decision about it."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportPrivateUsage=false

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch._dynamo  # pyright: ignore  # the first watched operator imports it, and it sets a variable
from torch import Tensor, nn

from xl.runtime.shim.probing.decision import Full, Split
from xl.runtime.shim.probing.probe import probe
from xl.runtime.shim.probing.snapshot import Snapshot
from xl.runtime.shim.probing.surroundings import Surroundings
from xl.runtime.shim.trees import flatten

B = 12


def decide(module: nn.Module, *args: object, **kwargs: object) -> Split | Full:
    """Probe a call and check that module, streams and arguments are as before."""
    tree = (args, kwargs)
    before = Snapshot(module)
    state = {key: value.clone() for key, value in module.state_dict().items()}
    storages = [parameter.data_ptr() for parameter in module.parameters()]
    streams = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tobytes()  # pyright: ignore
    arguments = [leaf.clone() for leaf in flatten(tree)[0] if isinstance(leaf, Tensor)]
    found = probe(nn.Module.__call__, module, tree, flatten(tree)[0], Surroundings().of(module))
    assert before.changed() == []
    assert all(torch.equal(value, module.state_dict()[key]) for key, value in state.items())
    assert storages == [parameter.data_ptr() for parameter in module.parameters()]
    assert torch.equal(streams[0], torch.get_rng_state())
    assert streams[1:] == (random.getstate(), np.random.get_state()[1].tobytes())  # pyright: ignore
    now = [leaf for leaf in flatten(tree)[0] if isinstance(leaf, Tensor)]
    assert all(torch.equal(a, b) for a, b in zip(arguments, now, strict=True))
    return found


class Body(nn.Module):
    """A linear layer and what a test adds to its output."""

    total = 0
    state: Any  # what a test lets it hold

    def __init__(self, after: Callable[..., object] | None = None, size: int = 6) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)
        self.register_buffer("memory", torch.zeros(size))
        self.seen: list[object] = []
        self.calls = 0
        self.after = after

    def forward(self, x: Tensor, *more: object) -> object:
        hidden = self.linear(x)
        return hidden if self.after is None else self.after(self, hidden, *more)


def rows(split: Split | Full) -> list[tuple[str, int]]:
    assert isinstance(split, Split), split
    return [(output.how, output.dim) for output in split.outputs]


def why(full: Split | Full) -> str:
    assert isinstance(full, Full), full
    return full.reason
