"""`xl launch` from end to end on real scripts: processes, ports, exit codes, output, reports, restarts."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .launches import Launch, finished, write_script

# A script that distributes itself, as its first words show.
PLACE = """
import os, sys, time
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
"""
GROUP = (
    PLACE
    + """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
"""
)
TWO = ["--cpu", "--num-processes", "2"]
FRESH = ["--start", "fresh"]
"""Without the import of torch, where it does not matter how a worker starts."""


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[Launch]]:
    """Launches to be cleared whatever happens."""
    launches: list[Launch] = []
    yield launches
    for launch in launches:
        launch.clear()


# --- processes and ports ---------------------------------------------------------------------------


def test_two_processes_on_cpu_are_two(tmp_path: Path) -> None:
    """P14: the number asked for is the number that runs, on CPU too."""
    write_script(tmp_path, GROUP + "print('total', total.item(), 'of', size)")
    launch = finished(tmp_path, [*TWO, "train.py"])
    assert launch.wait() == 0, launch.text()
    assert launch.out.read_text() == "total 2.0 of 2\n"


@pytest.mark.parametrize("port", [[], ["--main-process-port", "0"]], ids=["absent", "zero"])
def test_two_launches_at_once(tmp_path: Path, started: list[Launch], port: list[str]) -> None:
    """P16, P17: on defaults, and with port 0, two launches never meet on one port."""
    write_script(tmp_path, GROUP + "print(total.item(), os.environ['MASTER_PORT'])")
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
        started.append(Launch(folder, [*TWO, *port, "../train.py"]))
    assert [launch.wait() for launch in started] == [0, 0]
    totals, ports = zip(*(launch.out.read_text().split() for launch in started), strict=True)
    assert totals == ("2.0", "2.0")
    assert ports[0] != ports[1]
    assert "0" not in ports


def test_a_port_in_use_is_refused_before_any_worker_starts(tmp_path: Path) -> None:
    write_script(tmp_path, "raise AssertionError")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        launch = finished(tmp_path, [*TWO, "--main-process-port", str(port), "train.py"])
    assert launch.wait() == 2
    assert f"main_process_port={port} cannot be used" in launch.text()


def test_threads_are_the_usable_cores_of_each_rank(tmp_path: Path) -> None:
    """P39: not all cores for every rank, and not one; the user's own number stays."""
    write_script(
        tmp_path, PLACE + "import torch; print(torch.get_num_threads(), os.environ['OMP_NUM_THREADS'])"
    )
    environ = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    command = [sys.executable, "-m", "xl.cli", "launch", *TWO, "train.py"]
    environ["XDG_STATE_HOME"] = str(tmp_path)
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60)
    each = max(1, len(os.sched_getaffinity(0)) // 2)
    assert done.stdout == f"{each} {each}\n"
    launch = finished(tmp_path, [*TWO, "train.py"], {"OMP_NUM_THREADS": "2"})
    assert launch.out.read_text() == "2 2\n"


def test_blas_threads_do_not_keep_the_zygote_from_forking(tmp_path: Path) -> None:
    """numpy's BLAS starts threads when it is imported; they end before a fork and come back after it."""
    write_script(
        tmp_path,
        PLACE + "import numpy, torch\na = numpy.random.rand(500, 500)\nprint(numpy.isfinite(a @ a).all())\n"
        "print(torch.isfinite(torch.rand(500, 500) @ torch.rand(500, 500)).all().item())",
    )
    launch = finished(tmp_path, [*TWO, "train.py"], {"OMP_NUM_THREADS": "2"})
    assert launch.out.read_text() == "True\nTrue\n"
    assert "interpreter of its own" not in launch.text()


def test_gpus_that_are_not_there_are_not_replaced_in_silence(tmp_path: Path) -> None:
    write_script(tmp_path, "")
    launch = finished(tmp_path, ["--gpu-ids", "7", "train.py"])
    assert launch.wait() == 2
    assert "gpu_ids=7" in launch.text()


# --- how it ends -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "code", "text", "start"),
    [
        # How a forked worker ends is tested without a launch in tests/runtime/test_leaving.py.
        ("sys.exit(3)", 3, "", "zygote"),
        ("sys.exit('so long')", 1, "so long", "fresh"),
        ("sys.exit(0)", 0, "", "fresh"),
        ("raise SystemExit", 0, "", "fresh"),
        ("os._exit(7)", 7, "", "fresh"),
        ("1 / 0", 1, "ZeroDivisionError", "zygote"),
        ("os.kill(os.getpid(), 9)", 137, "SIGKILL", "zygote"),
        ("os.abort()", 134, "SIGABRT", "fresh"),
    ],
)
def test_the_exit_code_is_the_scripts(tmp_path: Path, line: str, code: int, text: str, start: str) -> None:
    write_script(tmp_path, PLACE + line)
    launch = finished(tmp_path, [*TWO, "--start", start, "train.py"])
    assert launch.wait() == code
    assert text in launch.text()


def test_a_group_left_open_is_no_failure(tmp_path: Path) -> None:
    """Each of the ten ends is a chance for gloo to abort."""
    write_script(tmp_path, GROUP)
    five = ["--cpu", "--num-processes", "5", "train.py"]
    assert [finished(tmp_path, five).wait() for _ in range(2)] == [0, 0]


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_a_group_left_open_is_no_failure_in_200_launches(tmp_path: Path) -> None:
    write_script(tmp_path, GROUP)
    assert {finished(tmp_path, [*TWO, "train.py"]).wait() for _ in range(200)} == {0}


def test_the_first_failing_rank_is_reported(tmp_path: Path) -> None:
    """P19: rank 1's traceback and last lines, and nothing of the launcher's own stack."""
    write_script(
        tmp_path,
        GROUP + "print('before', rank)\nif rank == 1:\n    raise ValueError('the cause')\n"
        "dist.all_reduce(total)",
    )
    launch = finished(tmp_path, [*TWO, "train.py"])
    assert launch.wait() == 1
    report = launch.err.read_text()
    assert "xl: rank 1 failed with exit code 1" in report
    assert "ValueError: the cause" in report
    assert re.search(r'File ".*/train.py", line \d+, in <module>', report)
    assert "before 1" in report
    assert "/runtime/" not in report.replace("xl/runs", "")
    assert "/launcher/" not in report
    log = re.findall(r"the whole output of rank 1: (.*)", report)[0]
    assert "before 1" in Path(log).read_text()


def test_a_rank_killed_from_outside_is_the_cause(tmp_path: Path) -> None:
    """Its peer's error, of a connection that broke, often comes to light first."""
    write_script(tmp_path, GROUP + "if rank == 1:\n    os.kill(os.getpid(), 9)\ndist.all_reduce(total)")
    launch = finished(tmp_path, [*TWO, "train.py"])
    assert launch.wait() == 137
    assert "rank 1 failed with exit code 137" in launch.text()
    assert "out of memory?" in launch.text()


def test_what_rank_0_has_shown_is_not_shown_again(tmp_path: Path) -> None:
    write_script(tmp_path, PLACE + "if rank == 0:\n    raise ValueError('once')\ntime.sleep(100)")
    launch = finished(tmp_path, [*TWO, *FRESH, "train.py"])
    assert launch.text().count("Traceback") == 1


def test_an_error_of_all_ranks_is_shown_once(tmp_path: Path) -> None:
    """Rank 0's traceback is on the terminal, and the others' is the same; one that is late has it, too."""
    write_script(
        tmp_path,
        PLACE + "import torch\nopen(f'at{rank}', 'w').close()\n"
        "while not all(os.path.exists(f'at{r}') for r in (0, 1)):\n    time.sleep(0.01)\n"
        "time.sleep(rank * 0.3)\nraise ValueError('once')",
    )
    launch = finished(tmp_path, [*TWO, "train.py"])
    assert launch.wait() == 1
    assert launch.text().count("Traceback") == 1, launch.text()
    assert launch.text().count("raise ValueError") == 1
    assert "xl: all 2 ranks failed alike with exit code 1: ValueError: once\n" in launch.text()
    assert "the whole output of rank 0" in launch.text()


def test_a_failure_that_follows_is_told(tmp_path: Path) -> None:
    """It is not cut off by the end of the launch, and it does not take the blame."""
    write_script(
        tmp_path,
        PLACE + "open(f'at{rank}', 'w').close()\n"
        "while not all(os.path.exists(f'at{r}') for r in (0, 1)):\n    time.sleep(0.01)\n"
        "time.sleep(0.3 - rank * 0.3)\nraise ValueError('cause' if rank else 'consequence')",
    )
    launch = finished(tmp_path, [*TWO, *FRESH, "train.py"])
    assert launch.wait() == 1
    assert "xl: rank 1 failed with exit code 1 (1 other failed after it): ValueError: cause" in launch.text()
    assert "shown above is the error of rank 0: ValueError: consequence" in launch.text()


def test_the_patience_for_other_failures_ends_by_a_signal(tmp_path: Path, started: list[Launch]) -> None:
    """Rank 0 would fail a moment after the signal, which ends it first."""
    write_script(
        tmp_path,
        PLACE + "open(f'at{rank}', 'w').close()\n"
        "while not all(os.path.exists(f'at{r}') for r in (0, 1)):\n    time.sleep(0.01)\n"
        "if rank:\n    open('failing', 'w').close()\n    raise ValueError('cause')\n"
        "while True:\n    time.sleep(0.1)",
    )
    launch = Launch(tmp_path, [*TWO, *FRESH, "--max-restarts", "1", "train.py"])
    started.append(launch)
    launch.wait_for(lambda: (tmp_path / "failing").exists())
    launch.process.terminate()
    assert launch.wait(10) == 143
    assert "restart 1 of 1" not in launch.text()


def test_a_log_folder_that_cannot_be_made_is_said_first(tmp_path: Path) -> None:
    write_script(tmp_path, "raise AssertionError")
    launch = finished(tmp_path, [*TWO, "--log-dir", "/proc/x", "train.py"])
    assert launch.wait() == 2
    assert launch.err.read_text().startswith("error: the log folder /proc/x/")


def test_the_line_comes_before_torch_is_imported(tmp_path: Path) -> None:
    """A slow machine imports torch for many seconds; until then a silent terminal looks like a hang."""
    (tmp_path / "fakes").mkdir()
    (tmp_path / "fakes" / "torch.py").write_text(
        "import os\nos.write(2, b'importing\\n')\nraise ImportError('stop')"
    )
    write_script(tmp_path, PLACE)
    launch = finished(tmp_path, [*TWO, "train.py"], {"PYTHONPATH": str(tmp_path / "fakes")})
    line, *rest = launch.err.read_text().splitlines()
    assert line.startswith("xl: profile none")
    assert "importing" in rest


def test_closed_streams_are_not_taken_by_others(tmp_path: Path) -> None:
    """With stdin closed the store's socket got number 0, and rank 0 read from it."""
    write_script(tmp_path, PLACE + "print(rank, repr(sys.stdin.read()))")
    xl = [sys.executable, "-m", "xl.cli", "launch", "-q", *FRESH, *TWO, "train.py"]
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = ["sh", "-c", 'exec "$@" <&-', "sh", *xl]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 ''\n", "")


def test_restarts_are_counted_for_the_job(tmp_path: Path) -> None:
    write_script(
        tmp_path,
        GROUP
        + "attempt = int(os.environ['TORCHELASTIC_RESTART_COUNT'])\nprint('attempt', attempt, total.item())\n"
        "if rank == 1 - attempt % 2 and attempt < int(sys.argv[1]):\n    raise ValueError('again')\n"
        "dist.barrier()",
    )
    launch = finished(tmp_path, [*TWO, "--max-restarts", "2", "train.py", "2"])
    assert launch.wait() == 0, launch.text()
    assert [line.split()[1] for line in launch.out.read_text().splitlines()] == ["0", "1", "2"]
    assert "restart 2 of 2" in launch.text()
    launch = finished(tmp_path, [*TWO, "--max-restarts", "1", "train.py", "2"])
    assert launch.wait() == 1
    assert len(launch.out.read_text().splitlines()) == 2


# --- signals ---------------------------------------------------------------------------------------


def fake_torch(folder: Path, text: str) -> dict[str, str]:
    """Variables by which the zygote imports this as torch: it stands for a kernel that is slow or refuses."""
    modules = {
        "__init__": f"class cuda:\n    is_initialized = staticmethod(lambda: False)\ndef seed(): ...\n{text}",
        "distributed": "def __getattr__(name): return lambda *_, **__: None",
        "utils/__init__": "",
        "utils/data": "",
    }
    for name, content in modules.items():
        path = folder / "fakes" / "torch" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return {"PYTHONPATH": str(folder / "fakes")}


def test_a_signal_is_obeyed_while_workers_are_started(tmp_path: Path, started: list[Launch]) -> None:
    """More orders than the socket takes, to a zygote that is slow: the launcher must not wait in between."""
    environ = fake_torch(tmp_path, "import os, time\nos.register_at_fork(before=lambda: time.sleep(0.3))")
    write_script(tmp_path, PLACE + "open(f'ready{rank}', 'w').close()\ntime.sleep(1000)")
    launch = Launch(tmp_path, ["--cpu", "--num-processes", "150", "train.py"], environ)
    started.append(launch)
    launch.wait_for(lambda: (tmp_path / "ready0").exists())
    launch.process.terminate()
    assert launch.wait(10) == 143
    assert len(list(tmp_path.glob("ready*"))) < 20


def test_a_worker_that_cannot_be_started_ends_the_launch(tmp_path: Path) -> None:
    """As where the limit of processes is reached meanwhile; tests run as the administrator, who has none."""
    environ = fake_torch(
        tmp_path, "import os\ndef no(): raise OSError(11, 'too many processes')\nos.fork = no"
    )
    write_script(tmp_path, PLACE)
    launch = finished(tmp_path, [*TWO, "train.py"], environ)
    assert launch.wait() == 1
    assert "error: the process of rank 0 cannot be started\nwhy:   too many processes" in launch.text()
    assert "Traceback" not in launch.text()


SAVING = (
    PLACE
    + """
import signal
def save(*_):
    time.sleep(3)
    open(f"saved{rank}", "w").close()
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
open(f"ready{rank}", "w").close()
time.sleep(100)
"""
)


@pytest.mark.parametrize(("grace", "saved"), [("1", False), ("10", True)])
def test_grace_period(tmp_path: Path, started: list[Launch], grace: str, saved: bool) -> None:
    """P24: a worker that saves for 3 s at SIGTERM gets the time that the profile gives it."""
    write_script(tmp_path, SAVING)
    launch = Launch(tmp_path, [*TWO, "--grace-period-s", grace, "train.py"])
    started.append(launch)
    launch.wait_for(lambda: (tmp_path / "ready0").exists() and (tmp_path / "ready1").exists())
    launch.process.terminate()
    assert launch.wait() == 143
    assert [(tmp_path / f"saved{rank}").exists() for rank in (0, 1)] == [saved, saved]


def test_a_second_interrupt_does_not_wait(tmp_path: Path, started: list[Launch]) -> None:
    write_script(tmp_path, SAVING)
    launch = Launch(tmp_path, [*TWO, "--grace-period-s", "60", "train.py"])
    started.append(launch)
    launch.wait_for(lambda: (tmp_path / "ready0").exists() and (tmp_path / "ready1").exists())
    launch.process.terminate()
    time.sleep(0.3)
    launch.process.terminate()
    assert launch.wait(2) == 143


def test_usr1_reaches_every_worker(tmp_path: Path, started: list[Launch]) -> None:
    """P32: the pre-emption signal runs the save hook on all ranks, and the requeue code comes out."""
    write_script(
        tmp_path,
        PLACE + "import signal\nasked = []\nsignal.signal(signal.SIGUSR1, lambda *_: asked.append(1))\n"
        "open(f'ready{rank}', 'w').close()\n"
        "while not asked:\n    time.sleep(0.01)\n"
        "open(f'saved{rank}', 'w').close()\n"
        "while not all(os.path.exists(f'saved{r}') for r in (0, 1)):\n    time.sleep(0.01)\n"
        "sys.exit(85)",
    )
    launch = Launch(tmp_path, [*TWO, "train.py"])
    started.append(launch)
    launch.wait_for(lambda: (tmp_path / "ready0").exists() and (tmp_path / "ready1").exists())
    launch.process.send_signal(signal.SIGUSR1)
    assert launch.wait() == 85
    assert (tmp_path / "saved0").exists()
    assert (tmp_path / "saved1").exists()


def test_suspended_and_continued(tmp_path: Path, started: list[Launch]) -> None:
    write_script(
        tmp_path, PLACE + "i = 0\nwhile True:\n    print(i, flush=True)\n    i += 1\n    time.sleep(0.01)"
    )
    launch = Launch(tmp_path, [*TWO, "train.py"])
    started.append(launch)
    launch.wait_for(lambda: launch.out.stat().st_size > 100)
    launch.process.send_signal(signal.SIGTSTP)
    launch.wait_for(lambda: all(process.status() == "stopped" for process in launch.workers()))
    size = launch.out.stat().st_size
    launch.process.send_signal(signal.SIGCONT)
    launch.wait_for(lambda: launch.out.stat().st_size > size + 100)


def test_nohup_is_respected(tmp_path: Path, started: list[Launch]) -> None:
    write_script(tmp_path, PLACE + "open(f'ready{rank}', 'w').close()\ntime.sleep(2)")
    command = ["nohup", sys.executable, "-m", "xl.cli", "launch", *TWO, "train.py"]
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    with (tmp_path / "out").open("w") as out:
        process = subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=out, stderr=out)
    while not (tmp_path / "ready1").exists():
        time.sleep(0.02)
    process.send_signal(signal.SIGHUP)
    assert process.wait(30) == 0


# --- output ----------------------------------------------------------------------------------------


def test_lines_of_several_ranks_stay_whole(tmp_path: Path) -> None:
    """P21: long lines of 4 ranks at once; each begins with host:rank and none is torn."""
    write_script(tmp_path, PLACE + "for i in range(50):\n    print(str(rank) * 5000, flush=True)")
    launch = finished(tmp_path, ["--cpu", *FRESH, "--num-processes", "4", "--tee", "3", "train.py"])
    assert launch.wait() == 0
    host = socket.gethostname()
    lines = launch.out.read_text().splitlines()
    assert len(lines) == 200
    assert set(lines) == {f"{host}:{rank} {str(rank) * 5000}" for rank in range(4)}


def test_rank_0_is_shown_and_every_rank_is_logged(tmp_path: Path) -> None:
    # print() may write piece by piece, between which the other stream's may come
    write_script(tmp_path, PLACE + "sys.stdout.write(f'out {rank}\\n')\nsys.stderr.write(f'err {rank}\\n')")
    launch = finished(tmp_path, [*TWO, *FRESH, "--log-dir", "logs", "train.py"])
    assert launch.out.read_text() == "out 0\n"
    assert "err 0" in launch.err.read_text()
    assert "err 1" not in launch.err.read_text()
    (folder,) = (tmp_path / "logs").iterdir()
    for rank in (0, 1):
        assert sorted((folder / f"rank{rank}.log").read_text().split("\n")) == [
            "",
            f"err {rank}",
            f"out {rank}",
        ]


def test_output_bytes_are_unchanged(tmp_path: Path) -> None:
    write_script(tmp_path, PLACE + "sys.stdout.buffer.write(bytes(range(256)) * 1000)")
    launch = finished(tmp_path, [*TWO, "train.py"])
    assert launch.out.read_bytes() == bytes(range(256)) * 1000


def test_a_reader_that_leaves_ends_the_script_as_without_xl(tmp_path: Path, started: list[Launch]) -> None:
    write_script(tmp_path, PLACE + "while True:\n    print('x' * 100)")
    read, write = os.pipe()
    launch = Launch(tmp_path, [*TWO, "train.py"], stdout=write)
    started.append(launch)
    os.close(write)
    os.read(read, 10)
    os.close(read)
    assert launch.wait() == 1
    assert "BrokenPipeError" in launch.text()


def test_rank_0_reads_standard_input(tmp_path: Path) -> None:
    write_script(tmp_path, PLACE + "print(repr(sys.stdin.read()))\n")
    command = [sys.executable, "-m", "xl.cli", "launch", *TWO, "--show-ranks", "all", "train.py"]
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environ, input="typed\n", capture_output=True, text=True, timeout=60
    )
    host = socket.gethostname()
    assert sorted(done.stdout.splitlines()) == [f"{host}:0 'typed\\n'", f"{host}:1 ''"]


# --- before the start ------------------------------------------------------------------------------


def test_a_line_names_what_is_about_to_run(tmp_path: Path) -> None:
    write_script(tmp_path, PLACE)
    launch = finished(tmp_path, [*TWO, *FRESH, "train.py"])
    (line,) = launch.err.read_text().splitlines()
    assert re.fullmatch(
        r"xl: profile none · 2 processes on CPU · backend ddp · precision no · logs .*/xl/runs/\S+", line
    )


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["trian.py"], "did you mean train.py"),
        (["."], "is a folder"),
        (["-m", "nothing.here"], "no module nothing.here"),
        (["-"], "standard input"),
        ([*TWO, "--backend", "fsdp", "train.py"], "backend=fsdp is not there yet"),
        (
            [*TWO, "--mixed-precision", "bf16", "ranks.py"],
            "mixed_precision=bf16 cannot be applied to ranks.py",
        ),
        ([*TWO, "--mixed-precision", "fp8", "train.py"], "mixed_precision=fp8 is not there yet"),
        (["--num-machines", "2", "--machine-rank", "0", "train.py"], "num_machines=2 is not there yet"),
        (["--num-processes", "100000000", "train.py"], "num_processes=100000000 does not fit this machine"),
    ],
)
def test_wrong_use_is_refused_before_any_worker_starts(tmp_path: Path, args: list[str], text: str) -> None:
    write_script(tmp_path, "open('ran', 'w')")
    write_script(tmp_path, PLACE + "open('ran', 'w')", "ranks.py")
    launch = finished(tmp_path, args)
    assert launch.wait() == 2
    assert text in launch.text()
    assert "Traceback" not in launch.text()
    assert not (tmp_path / "ran").exists()


def test_a_dry_run_starts_nothing(tmp_path: Path) -> None:
    write_script(tmp_path, PLACE + "open('ran', 'w')")
    launch = finished(tmp_path, [*TWO, "--dry-run", "train.py", "--lr", "1"])
    assert launch.wait() == 0
    assert "WORLD_SIZE=2" in launch.out.read_text()
    assert "train.py --lr 1" in launch.out.read_text()
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "state").exists()


def test_arguments_reach_the_script_untouched(tmp_path: Path) -> None:
    write_script(tmp_path, PLACE + "import json; print(json.dumps(sys.argv))")
    args = ["--num-processes", "7", "-m", "--", "a b", "'\"$HOME\n"]
    launch = finished(tmp_path, [*TWO, "train.py", *args])
    assert json.loads(launch.out.read_text()) == ["train.py", *args]
