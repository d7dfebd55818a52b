"""The main promise, end to end: a plain script under `xl launch` gives the numbers of `python script`."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[1] / "scripts" / "plain_digits.py"
XL = str(Path(sys.executable).with_name("xl"))
BATCH = 64
PROBED = 5  # samples of a probe at most: it compares in float32, whatever the call computes in

# Runs in every process before the script: notes the rows and the type of each linear layer's product.
PRELUDE = """
import importlib.abc, importlib.util, os, sys

plain_open = open  # ranks above 0 write to an overlay; this file must not

def watch():
    import torch
    inner = torch.nn.functional.linear
    def linear(input, weight, bias=None):
        out = inner(input, weight, bias)
        with plain_open(os.path.join({folder!r}, f"{{os.getpid()}}.txt"), "a") as log:
            training = int(torch.is_grad_enabled())
            log.write(f"{{weight.shape[1]}} {{input.shape[0]}} {{out.dtype}} {{training}}\\n")
        return out
    torch.nn.functional.linear = linear

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (load(module), watch())[0]
        return spec

sys.meta_path.insert(0, Finder())
"""


@dataclass(frozen=True)
class Run:
    """What one run printed, saved and computed."""

    epochs: list[tuple[float, float]]  # loss, accuracy
    weights: dict[str, torch.Tensor]
    rows: list[set[int]]  # for each process: rows that the first layer saw while training
    types: set[str]  # types of the matrix products, probes left out
    reports: list[dict[str, object]]  # the shim's report of each rank


def run(tmp_path: Path, command: Sequence[str], *args: str) -> Run:
    watched = tmp_path / "watched"
    watched.mkdir()
    (tmp_path / "prelude").mkdir()
    (tmp_path / "prelude" / "sitecustomize.py").write_text(PRELUDE.format(folder=str(watched)))
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(tmp_path / "prelude")}
    done = subprocess.run(
        [*command, str(SCRIPT), "--out", "digits.pt", *args],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    epochs = re.findall(r"^epoch \d+ loss ([\d.]+) accuracy ([\d.]+)$", done.stdout, re.MULTILINE)
    lines = [[line.split() for line in f.read_text().splitlines()] for f in sorted(watched.iterdir())]
    return Run(
        epochs=[(float(loss), float(accuracy)) for loss, accuracy in epochs],
        weights=torch.load(tmp_path / "digits.pt"),
        rows=[
            {int(n) for width, n, _, grad in process if width == "64" and grad == "1"} for process in lines
        ],
        types={kind for process in lines for _, n, kind, _ in process if int(n) > PROBED},
        reports=[json.loads(f.read_text()) for f in sorted((tmp_path / "logs").rglob("*.report.json"))],
    )


def launch(tmp_path: Path, processes: int, *flags: str) -> list[str]:
    logs = str(tmp_path / "logs")
    return [XL, "launch", "--cpu", "--num-processes", str(processes), "--log-dir", logs, *flags]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(tmp_path_factory.mktemp("alone"), [sys.executable])


def farthest(a: Run, b: Run) -> float:
    assert a.weights.keys() == b.weights.keys()
    return max(float((a.weights[name] - b.weights[name]).abs().max()) for name in a.weights)


def assert_split(result: Run, processes: int, batch: int = BATCH) -> None:
    """The work was really divided: small shares everywhere, every call split, gradients exchanged."""
    share = math.ceil(batch / processes)
    trained = [rows for rows in result.rows if rows]
    assert len(trained) == processes
    # The probe runs a few samples at once, never more than a share.
    assert all(max(rows) <= share for rows in trained)
    assert len(result.reports) == processes
    for report in result.reports:
        assert report["split_calls"]
        assert not report["full_calls"]
        assert report["reduced_bytes"] != 0


@pytest.mark.parametrize("processes", [1, 2, 3, 4])
def test_fp32_equals_one_process(tmp_path: Path, alone: Run, processes: int) -> None:
    result = run(tmp_path, launch(tmp_path, processes))
    assert result.epochs == alone.epochs
    assert farthest(result, alone) < 1e-5
    if processes > 1:
        assert_split(result, processes)


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_accumulation_equals_a_larger_batch(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, processes: int
) -> None:
    small, steps = 16, 4
    large = run(tmp_path_factory.mktemp("large"), [sys.executable], "--batch-size", str(small * steps))
    flags = launch(tmp_path, processes, "--gradient-accumulation-steps", str(steps))
    result = run(tmp_path, flags, "--batch-size", str(small))
    assert [accuracy for _, accuracy in result.epochs] == [accuracy for _, accuracy in large.epochs]
    assert farthest(result, large) < 1e-5
    if processes > 1:
        assert_split(result, processes, small)


TYPES = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}


@pytest.fixture(scope="module", params=list(TYPES))
def low(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Run]:
    """A low precision and what one process gives in it."""
    precision = str(request.param)
    folder = tmp_path_factory.mktemp(precision)
    return precision, run(folder, launch(folder, 1, "--mixed-precision", precision))


def test_low_precision_is_really_low(low: tuple[str, Run], alone: Run) -> None:
    precision, one = low
    assert one.types == {TYPES[precision]}
    assert farthest(one, alone) > 0, "the low precision changed nothing"


@pytest.mark.parametrize("processes", [2, 3, 4])
def test_low_precision_equals_one_process(tmp_path: Path, low: tuple[str, Run], processes: int) -> None:
    precision, one = low
    result = run(tmp_path, launch(tmp_path, processes, "--mixed-precision", precision))
    assert result.types == {TYPES[precision]}
    for mine, other in zip(result.epochs, one.epochs, strict=True):
        assert mine == pytest.approx(other, abs=2e-2)
    assert farthest(result, one) < 2e-2
    assert_split(result, processes)
