"""`xl launch` in a real terminal: rank 0 has one too, of the same size, and reads what is typed."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (pexpect is not annotated)
from __future__ import annotations

import os
import sys
from pathlib import Path

import pexpect
import pytest

from .launches import write_script

SCRIPT = """
import os, signal, sys, time
if os.environ["RANK"] != "0":
    time.sleep(60)
print("tty", [os.isatty(fd) for fd in (0, 1, 2)], os.get_terminal_size(1), flush=True)
print("typed", repr(input("say: ")), flush=True)
signal.signal(signal.SIGWINCH, lambda *_: print("now", os.get_terminal_size(1), flush=True))
print("both", flush=True); print("in order", file=sys.stderr)
try:
    time.sleep(60)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    raise
"""


@pytest.mark.parametrize("start", ["zygote", "fresh"])
def test_rank_0_has_our_terminal(tmp_path: Path, start: str) -> None:
    write_script(tmp_path, SCRIPT)
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = ["-m", "xl.cli", "launch", "-q", "--cpu", "--num-processes", "2", "--start", start, "train.py"]
    child: pexpect.spawn[bytes] = pexpect.spawn(
        sys.executable, command, cwd=str(tmp_path), env=environ, dimensions=(31, 77), timeout=60
    )
    try:
        child.expect_exact("tty [True, True, True] os.terminal_size(columns=77, lines=31)\r\n")
        child.expect_exact("say: ")
        child.sendline("hello")
        child.expect_exact("typed 'hello'\r\n")
        child.expect_exact("both\r\nin order\r\n")
        child.setwinsize(20, 60)  # pyright: ignore[reportUnknownMemberType]
        child.expect_exact("now os.terminal_size(columns=60, lines=20)")
        child.sendintr()
        child.expect_exact("interrupted")
        child.expect(pexpect.EOF)
        child.wait()
        assert child.exitstatus == 130
    finally:
        child.close(force=True)
