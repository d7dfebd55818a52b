"""Plays launcher with torch imported: forks a zygote for each program, which forks a worker that runs it.

What a launch costs most is the import of torch. Here it happens once for many programs; what follows, from
the zygote's loop to the worker's end, is xl's own code. The launcher's side is for tests/launch to test.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# Jobs come by a descriptor of their own, because the workers inherit what Python has read of standard input.
_SERVER = """
import sys; sys.path[0] or sys.path.pop(0)
import json, os, socket
from xl.configs.commands import Program
from xl.configs.engine_messages import *
from xl.configs.processes import become_subreaper
from xl.configs.torchrun import torchrun_variables
from xl.configs.worker import WorkerSettings
from xl.runtime import zygote
from xl.runtime.bootstrap import run_worker
from xl.runtime.leaving import run_and_leave

jobs, answers = map(int, sys.argv[1:])
ready = zygote._import_torch()

def work(job):
    os.chdir(job["cwd"])
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    program = Program.from_argv(job["program"])
    pid = os.fork()
    if pid == 0:
        for fd in (near.detach(), jobs, answers):
            os.close(fd)
        become_subreaper()
        order = zygote.Zygote(far, program, ready, fork=True).serve()
        run_and_leave(lambda: run_worker(order.settings, program))
    far.close()
    settings = WorkerSettings("warm", "distributed", cpu=True, error_file=job["error"])
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    fds = [os.open(job["in"], os.O_RDONLY), os.open(job["out"], flags), os.open(job["err"], flags)]
    socket.send_fds(near, [encode(StartWorker(settings, torchrun_variables(settings)))], fds)
    for fd in fds:
        os.close(fd)
    started, exited = (decode(near.recv(PACKET_BYTES)) for _ in range(2))
    near.send(encode(Sweep()))
    assert isinstance(decode(near.recv(PACKET_BYTES)), Swept)
    near.close()
    os.waitpid(pid, 0)
    return {"code": exited.returncode, "fresh_because": started.fresh_because}

os.write(answers, b"{}\\n")
with open(jobs, "rb", buffering=0, closefd=False) as lines:
    for line in iter(lines.readline, b""):
        os.write(answers, json.dumps(work(json.loads(line))).encode() + b"\\n")
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a program ended, without xl's own lines."""

    code: int
    out: str
    err: str


class WarmZygote:
    """Runs programs in forks of one process; `close` ends it."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self._folder = folder
        (folder / "in").write_text("typed")
        jobs, self._jobs = os.pipe()
        self._answers, answers = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVER, str(jobs), str(answers)],
            env=environ, stdin=subprocess.DEVNULL, pass_fds=(jobs, answers), start_new_session=True,
        )  # fmt: skip
        os.close(jobs)
        os.close(answers)
        self._answer()

    def run(self, program: list[str], cwd: Path) -> Outcome:
        """Run `script.py ARGS` or `-m module ARGS` in `cwd` with "typed" on its standard input."""
        files = {name: str(self._folder / name) for name in ("in", "out", "err", "error")}
        how = ["module", *program[1:]] if program[0] == "-m" else ["script", *program]
        job = {"cwd": str(cwd), "program": ["prepare-first", *how], **files}
        os.write(self._jobs, json.dumps(job).encode() + b"\n")
        answer = self._answer()
        assert answer["fresh_because"] is None
        out, err = ((self._folder / name).read_text() for name in ("out", "err"))
        code = answer["code"]
        assert isinstance(code, int)
        return Outcome(code, out, err)

    def _answer(self) -> dict[str, object]:
        line = b""
        while not line.endswith(b"\n"):
            part = os.read(self._answers, 4096)
            assert part, "the warm process has ended"
            line += part
        answer: dict[str, object] = json.loads(line)
        return answer

    def close(self) -> None:
        os.close(self._jobs)
        os.close(self._answers)
        self._process.wait()
