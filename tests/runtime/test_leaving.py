"""A forked worker ends as a Python program ends: code, output, handlers, destructors; without torch here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# Runs the program that stands in argv[1] in a fork, and ends as the fork ended, signals included.
FORK = """
import os, signal, sys
from xl.runtime.leaving import run_and_leave
namespace = {"__name__": "__main__"}
pid = os.fork()
if pid == 0:
    run_and_leave(lambda: exec(sys.argv[1], namespace))
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
if code < 0:
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""


def forked(program: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return run(["-c", FORK, program], cwd)


def run(args: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *args], cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    "line",
    [
        "",
        "sys.exit()",
        "sys.exit(0)",
        "sys.exit(3)",
        "sys.exit(256 + 7)",
        "sys.exit(-1)",
        "sys.exit('so long')",
        "raise SystemExit",
        "os._exit(7)",
        "os.kill(os.getpid(), 9)",
        "signal.raise_signal(signal.SIGTERM)",
        "os.abort()",
        "atexit.register(print, 'handler')",
        "threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()",
        "sys.stdout.close()",
        "print('unflushed', end='')",
        "open('left.txt', 'w').write('written')",
    ],
)
def test_it_ends_as_python_ends(tmp_path: Path, line: str) -> None:
    program = f"import atexit, os, signal, sys, threading, time\nprint('before', flush=True)\n{line}"
    plain, ours = run(["-c", program], tmp_path), forked(program, tmp_path)
    assert (ours.returncode, ours.stdout, ours.stderr) == (plain.returncode, plain.stdout, plain.stderr)


def test_an_error_is_shown_by_the_hook_and_is_code_1(tmp_path: Path) -> None:
    done = forked(
        "import sys\nsys.excepthook = lambda kind, *_: print('hook', kind.__name__)\n1 / 0", tmp_path
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "hook ZeroDivisionError\n", "")


def test_an_interrupt_is_death_by_sigint(tmp_path: Path) -> None:
    assert forked("raise KeyboardInterrupt", tmp_path).returncode == -2


def test_output_that_cannot_be_written_is_code_120(tmp_path: Path) -> None:
    program = "import sys\nsys.stdout = open('/dev/full', 'w')\nprint('lost')"
    done = forked(program, tmp_path)
    assert done.returncode == 120
    assert "No space left on device" in done.stderr


def test_files_that_are_left_open_keep_their_text(tmp_path: Path) -> None:
    program = """
import beside
left = open("left.txt", "w")
left.write("written")
class Cycle: pass
cycle = Cycle()
cycle.me, cycle.file = cycle, open("cycle.txt", "wb")
cycle.file.write(b"written")
"""
    (tmp_path / "beside.py").write_text("file = open('beside.txt', 'w')\nfile.write('written')\n")
    assert forked(program, tmp_path).returncode == 0
    for name in ("left.txt", "cycle.txt", "beside.txt"):
        assert (tmp_path / name).read_text() == "written"


def test_destructors_run_and_what_was_there_before_the_fork_stays(tmp_path: Path) -> None:
    """Modules of before the fork are shared memory: they are not taken down, so theirs do not run."""
    (tmp_path / "before.py").write_text(
        "class Noisy:\n    def __init__(self, name): self.name = name\n"
        "    def __del__(self): print('destroyed', self.name)\nkept = Noisy('kept')\n"
    )
    (tmp_path / "after.py").write_text("import before\nown = before.Noisy('module')\n")
    fork = FORK.replace(
        "namespace =",
        "import before\nimport types\nmain = types.ModuleType('__main__')\n"
        "sys.modules['__main__'] = main\nnamespace = main.__dict__\n_ =",
    )
    program = "import after, before\nmine = before.Noisy('script')\nprint('end')"
    done = run(["-c", fork, program], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == "end"
    assert sorted(done.stdout.splitlines()[1:]) == ["destroyed module", "destroyed script"]
