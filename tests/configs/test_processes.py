"""Process trees: who is below us, who handles SIGTERM, and that a sweep leaves nobody behind.

A sweep kills everything below the process that sweeps, so none of these runs in the test's own process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

BEGIN = """
import json, os, signal, subprocess, sys, time
from xl.configs.processes import become_subreaper, descendants, handles_sigterm, sweep

def gone(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True

def wait_for(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)

sleep = [sys.executable, "-S", "-c", "import time; print(flush=True); time.sleep(100)"]
"""


def run(code: str) -> object:
    """Run `code` in a process of its own; returns what it gives to `json.dump(..., sys.stdout)`."""
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_descendants_are_children_and_theirs() -> None:
    found = run("""
nested = "import subprocess, sys; subprocess.run(sys.argv[1:])"
child = subprocess.Popen([sys.executable, "-S", "-c", nested, *sleep], stdout=subprocess.PIPE)
child.stdout.readline()
below = descendants(os.getpid())
sweep()
json.dump([below[0] == child.pid, len(below), descendants(os.getpid())], sys.stdout)
""")
    assert found == [True, 2, []]


def test_a_sweep_takes_orphans_in_sessions_of_their_own() -> None:
    found = run("""
become_subreaper()
orphan = '''
import subprocess, sys
print(subprocess.Popen(sys.argv[1:], start_new_session=True).pid, flush=True)
'''
child = subprocess.Popen([sys.executable, "-S", "-c", orphan, *sleep], stdout=subprocess.PIPE)
pid = int(child.stdout.readline())
child.wait()
wait_for(lambda: pid in descendants(os.getpid()))
sweep()
json.dump([gone(pid), descendants(os.getpid())], sys.stdout)
""")
    assert found == [True, []]


def test_a_sweep_spares_who_is_named_and_tells_how_the_others_ended() -> None:
    found = run("""
children = [subprocess.Popen(sleep, stdout=subprocess.PIPE) for _ in range(2)]
for child in children:
    child.stdout.readline()
spared, swept = children
statuses = sweep(spare=[spared.pid])
living = not gone(spared.pid)
spared.kill()
spared.wait()
code = os.waitstatus_to_exitcode(statuses[swept.pid])
json.dump([living, gone(swept.pid), code, len(statuses)], sys.stdout)
""")
    assert found == [True, True, -9, 1]


def test_a_sweep_without_anybody_returns_at_once() -> None:
    assert run("json.dump(sweep(), sys.stdout)") == {}


def test_who_handles_sigterm() -> None:
    found = run("""
handler = "import signal, time; signal.signal(15, lambda *_: None); print(flush=True); time.sleep(100)"
ignorer = "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(100)"
commands = [sleep, *([sys.executable, "-S", "-c", code] for code in (handler, ignorer))]
children = [subprocess.Popen(command, stdout=subprocess.PIPE) for command in commands]
for child in children:
    child.stdout.readline()
answers = [handles_sigterm(child.pid) for child in children]
sweep()
json.dump([*answers, handles_sigterm(0), handles_sigterm(2**22 + 1)], sys.stdout)
""")
    assert found == [False, True, False, False, False]


def test_a_child_dies_with_its_parent() -> None:
    found = run("""
become_subreaper()
parent = '''
import os, signal, sys, time
from xl.configs.processes import set_parent_death_signal
if os.fork() == 0:
    set_parent_death_signal(signal.SIGKILL)
    print(os.getpid(), flush=True)
    time.sleep(100)
time.sleep(100)
'''
process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE)
pid = int(process.stdout.readline())
process.kill()
process.wait()
wait_for(lambda: gone(pid))
sweep()
json.dump("gone", sys.stdout)
""")
    assert found == "gone"


def test_names_with_brackets_and_spaces_are_read(tmp_path: Path) -> None:
    """The kernel writes a command's name in brackets, unquoted."""
    program = tmp_path / "a) S 1 (b"
    program.symlink_to(sys.executable)
    found = run(f"""
child = subprocess.Popen([{str(program)!r}, *sleep[1:]], stdout=subprocess.PIPE)
child.stdout.readline()
below = descendants(os.getpid())
child.kill()
child.wait()
json.dump(below == [child.pid], sys.stdout)
""")
    assert found is True
