"""Clipping under accumulation must see the whole gradient of the window, and only once."""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

from typing import cast

import pytest
import torch
from torch import nn

from ...pool import Ranks
from .gradient_harness import Make, accumulated, adamw, compare, loader, network, own, sgd, train, values


@pytest.mark.parametrize("clip", ["", "norm", "value"])
@pytest.mark.parametrize("make", [sgd, adamw, own])
def test_clipping_and_optimizers(ranks: Ranks, make: Make, clip: str) -> None:
    compare(ranks, 2, lambda batch: train(batch, make, clip, set_to_none=clip != "norm"))


def test_a_norm_to_print_is_the_same_on_all_ranks(ranks: Ranks) -> None:
    def script(batch: int) -> list[float]:
        torch.set_default_dtype(torch.float64)
        model = network()
        optimizer = sgd(list(model.parameters()))
        norms: list[float] = []
        for x, y in loader(batch):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1).item())
            optimizer.step()
        return norms

    [expected] = ranks(1, lambda comm: script(12))
    (first, _), (second, _) = ranks(2, accumulated, script, 3, 4)
    assert first == second
    assert [cast("list[float]", first)[place] for place in (2, 5)] == pytest.approx(expected, rel=1e-9)


def test_a_step_left_out_after_clipping_drops_the_window(ranks: Ranks) -> None:
    """As a script does that skips a batch whose norm is not finite."""

    def script(batch: int) -> list[float]:
        torch.set_default_dtype(torch.float64)
        model = network()
        optimizer = sgd(list(model.parameters()))
        for epoch in range(2):
            for x, y in loader(batch):
                optimizer.zero_grad()
                (nn.functional.cross_entropy(model(x), y) * (float("inf") if epoch == 0 else 1.0)).backward()
                if nn.utils.clip_grad_norm_(model.parameters(), 0.1).isfinite():
                    optimizer.step()
        return values(model)

    compare(ranks, 2, script)
