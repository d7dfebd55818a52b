"""Stepping aside for scripts that distribute themselves, and the limits on a script's own processes."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import math
import multiprocessing
import os
import socket
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from xl.configs.errors import XlError
from xl.configs.worker import WorkerSettings
from xl.runtime.collectives import Communicator
from xl.runtime.shim.install import install
from xl.runtime.shim.report import Report

from ...pool import Ranks
from .harness import plain
from .loops import mlp


def distributes_itself(comm: Communicator, port: int, fd: int) -> tuple[list[float], str | None]:
    settings = WorkerSettings(
        "test", "plain", rank=comm.rank, local_rank=comm.rank, world_size=comm.size, master_port=port,
        store_fd=fd if comm.rank == 0 else None,
    )  # fmt: skip
    before, hook = dict(os.environ), sys.excepthook
    session = install(settings)
    try:
        assert "RANK" not in os.environ
        dist.init_process_group("gloo")
        value = torch.tensor([float(dist.get_rank() + 1)])
        dist.all_reduce(value)
        model = mlp(6, 8, 3)
        return [
            value.item(),
            float(model(torch.ones(4, 6)).shape[0]),
            float(os.environ["RANK"]),
        ], session.aside
    finally:
        dist.destroy_process_group()
        session.close()
        sys.excepthook = hook  # init_process_group sets one
        os.environ.clear()
        os.environ.update(before)


def test_init_process_group_wins(ranks: Ranks) -> None:
    def script(comm: Communicator) -> tuple[list[float], str | None]:
        listener = socket.create_server(("127.0.0.1", 0)) if comm.rank == 0 else None
        port = torch.tensor([listener.getsockname()[1] if listener else 0])
        comm.broadcast(port)
        return distributes_itself(comm, int(port), listener.detach() if listener else -1)

    found = ranks(2, script)
    assert [value for value, _ in found] == [[3.0, 4.0, 0.0], [3.0, 4.0, 1.0]]
    assert [why for _, why in found] == ["torch.distributed.init_process_group() was called"] * 2


def test_too_late_is_refused(ranks: Ranks) -> None:
    def script() -> None:
        mlp(6, 8, 3)(torch.randn(12, 6))
        dist.init_process_group("gloo")

    with pytest.raises(XlError, match="already started"):
        ranks(2, plain, script)


def test_a_library_that_is_imported_later(ranks: Ranks, tmp_path: Path) -> None:
    (tmp_path / "deepspeed.py").write_text("def initialize():\n    return 'initialized'\n")

    def script(comm: Communicator, folder: str) -> list[str | None]:
        settings = WorkerSettings("test", "plain", rank=comm.rank + 1, world_size=3)  # serves no store
        session = install(settings)
        before = dict(os.environ)
        sys.path.insert(0, folder)
        try:
            import deepspeed  # pyright: ignore

            first = session.aside
            deepspeed.initialize()
            return [first, session.aside, os.environ["WORLD_SIZE"]]
        finally:
            sys.path.remove(folder)
            sys.modules.pop("deepspeed", None)
            session.close()
            os.environ.clear()
            os.environ.update(before)

    assert ranks(1, script, str(tmp_path))[0] == [None, "deepspeed.initialize() was called", "3"]


def test_children_may_prepare_data(ranks: Ranks) -> None:
    def script() -> list[float]:
        with multiprocessing.get_context("fork").Pool(2) as pool:
            values = pool.map(math.sqrt, range(12))
        model = mlp(1, 4)
        return [float(model(torch.tensor(values, dtype=torch.float64).view(12, 1)).sum())]

    alone = ranks(1, plain, script)[0].value
    seen = ranks(2, plain, script)[0]
    assert seen.value == pytest.approx(alone, rel=1e-9)
    assert seen.report.share == 1


def test_children_may_not_train(ranks: Ranks) -> None:
    def train_there(model: nn.Module, answer: object) -> None:
        try:
            model(torch.randn(4, 6))
            text = "trained"
        except XlError as error:
            text = error.what
        with torch.no_grad():
            model(torch.randn(4, 6))
        answer.send(text)  # type: ignore[attr-defined]

    def script() -> str:
        ours, theirs = multiprocessing.Pipe()
        child = multiprocessing.get_context("fork").Process(target=train_there, args=(mlp(6, 3), theirs))
        child.start()
        text = ours.recv()
        child.join()
        ours.close()
        theirs.close()
        return text

    assert "a process that the script started trains a module" in ranks(2, plain, script)[0].value


def test_report(tmp_path: Path) -> None:
    report = Report(2)
    assert report.summary() == "no module call was seen on 2 processes; nothing was split"
    report.split_calls["Net"] = 97
    assert report.summary() == "split 100 % of module calls on 2 processes"
    report.full_calls["Net: its batch of 1 is smaller than the number of processes"] = 3
    assert report.summary().startswith("split 97 % of module calls on 2 processes; 3 of 100 run in full")
    report.split_calls["Net"] = 100_000
    assert report.summary().startswith("split 99 %")
    report.write(str(tmp_path / "report.json"))
    assert '"share": 0.99997' in (tmp_path / "report.json").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_a_model_for_a_fresh_interpreter_is_refused(ranks: Ranks) -> None:
    def script() -> str:
        child = multiprocessing.get_context("spawn").Process(target=print, args=([mlp(6, 3)],))
        try:
            child.start()
        except XlError as error:
            return error.what
        child.join()
        return "started"

    assert "a process that the script started trains a module" in ranks(2, plain, script)[0].value
