"""Every test here runs with the parts of the shim that a probe needs."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch._dynamo  # pyright: ignore  # the first watched operator imports it, and it sets a variable

from xl.configs.worker import WorkerSettings
from xl.runtime.shim import losses, norms, region
from xl.runtime.shim.report import Report
from xl.runtime.shim.session import Session


@pytest.fixture(autouse=True)
def _patched() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    def connect(_: torch.device) -> Any:
        raise AssertionError("a probe talks to nobody")

    session = Session(WorkerSettings("test", "plain", world_size=2), connect, Report(2))
    for part in (losses, norms, region):
        part.install(session)
    torch.manual_seed(0)
    yield
    session.close()
