"""Plain subprocesses, as on macOS and Windows: the platform is patched, the processes are real."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from xl.configs.profile import Profile
from xl.configs.worker import Target
from xl.launcher.executors import execute
from xl.launcher.machine import Machine, read_machine
from xl.launcher.planner import make_plan
from xl.launcher.ports import hold_port
from xl.launcher.scan import scan_script

SCRIPT = """
import os, sys
rank = int(os.environ["RANK"])
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print("total", total.item(), flush=True)
if len(sys.argv) > 1 and rank == 1:
    sys.exit(5)
dist.barrier()
"""


@pytest.mark.parametrize(("args", "code"), [((), 0), (("fail",), 5)])
def test_workers_run_and_fail(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    args: tuple[str, ...],
    code: int,
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    monkeypatch.setattr(sys, "platform", "darwin")
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    with hold_port(0) as listener:
        machine: Machine = read_machine(environ, listener.getsockname()[1])
        machine = replace(machine, gpus=(), state_folder=str(tmp_path))
        profile = Profile(num_processes=2, cpu=True, show_ranks="all")
        plan = make_plan(profile, "test", Target(str(script), args), machine, scan_script(script))
        assert plan.executor == "fresh"
        assert execute(plan, listener) == code
    out = capfd.readouterr().out
    assert sorted(out.splitlines()) == [f"{machine.hostname}:{rank} total 2.0" for rank in (0, 1)]
