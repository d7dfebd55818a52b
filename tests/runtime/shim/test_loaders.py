"""Positions of passes over data loaders."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from xl.configs.worker import WorkerSettings
from xl.runtime.shim import loaders
from xl.runtime.shim.report import Report
from xl.runtime.shim.session import Session

from .loops import Stream


@pytest.fixture
def session() -> Iterator[Session]:
    def connect(_: torch.device) -> Any:
        raise AssertionError

    found = Session(WorkerSettings("test", "plain"), connect, Report())
    loaders.install(found)
    yield found
    found.close()


def test_positions(session: Session) -> None:
    loader = DataLoader(TensorDataset(torch.zeros(10, 2), torch.zeros(10)), batch_size=4)
    seen: list[tuple[int, int, int, bool, bool]] = []
    for _ in loader:
        (here,) = session.loaders
        seen.append((here.batch_size, here.batches, here.rows, here.is_last, here.running))
    assert seen == [(4, 1, 4, False, True), (4, 2, 8, False, True), (2, 3, 10, True, True)]
    assert session.loaders == []
    assert len(iter(loader)) == 3


def test_a_stream_does_not_know_its_end(session: Session) -> None:
    lasts = [session.loaders[0].is_last for _ in DataLoader(Stream(), batch_size=8)]
    assert lasts == [False] * 3


def test_data_order_is_not_changed(session: Session) -> None:
    def order() -> list[float]:
        torch.manual_seed(0)
        loader = DataLoader(TensorDataset(torch.arange(9.0)), batch_size=2, shuffle=True)
        return [float(x) for _ in range(2) for (batch,) in loader for x in [*batch, torch.rand(())]]

    patched = order()
    session.unpatch()
    assert patched == order()
