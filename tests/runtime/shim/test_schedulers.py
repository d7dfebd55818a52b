"""Schedules under accumulation must move as they do with the larger batch (P63)."""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import pytest
from torch.optim.lr_scheduler import (
    CosineAnnealingWarmRestarts,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)

from ...pool import Ranks
from .gradient_harness import Schedule, compare, train

SCHEDULES: dict[str, Schedule] = {
    "step": lambda optimizer: StepLR(optimizer, 2, 0.7),
    "one cycle": lambda optimizer: OneCycleLR(optimizer, 0.5, total_steps=7),
    "restarts": lambda optimizer: CosineAnnealingWarmRestarts(optimizer, 4),
    "plateau": lambda optimizer: ReduceLROnPlateau(optimizer, patience=0),
    "sequence": lambda optimizer: SequentialLR(
        optimizer, [StepLR(optimizer, 1, 0.5), StepLR(optimizer, 1, 0.8)], [2]
    ),
}


@pytest.mark.parametrize("name", [name for name in SCHEDULES if name != "plateau"])
def test_a_schedule_per_batch_follows_the_real_steps(ranks: Ranks, name: str) -> None:
    schedule = SCHEDULES[name]
    compare(ranks, 2, lambda batch: train(batch, per_batch=schedule))


@pytest.mark.parametrize("name", [name for name in SCHEDULES if name != "one cycle"])
def test_a_schedule_per_epoch_is_never_left_out(ranks: Ranks, name: str) -> None:
    schedule = SCHEDULES[name]
    compare(ranks, 2, lambda batch: train(batch, per_epoch=schedule))
