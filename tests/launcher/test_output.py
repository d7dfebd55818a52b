"""Where workers' output goes: all of it to the logs, shown streams to the terminal, lines whole."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from xl.configs.worker import WorkerSettings
from xl.launcher.output import Log, Output, Terminal, WorkerFds
from xl.launcher.plan import WorkerStart
from xl.launcher.streams import Streams

BOTH, ERR, NONE = Streams(True, True), Streams(err=True), Streams()


def start(folder: Path, rank: int, shown: Streams) -> WorkerStart:
    settings = WorkerSettings("run", "plain", rank=rank, world_size=2)
    return WorkerStart(settings, {}, (), str(folder / f"{rank}.log"), shown)


class Screen(Terminal):
    """Keeps what is written, by descriptor: the terminal at the end of the pipes under test."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[tuple[int, bytes]] = []
        self.reads = True

    def write(self, fd: int, data: bytes) -> bool:
        self.writes.append((fd, data))
        return self.reads

    def text(self, fd: int) -> bytes:
        return b"".join(data for to, data in self.writes if to == fd)


@contextmanager
def workers(folder: Path, screen: Terminal, *shown: Streams) -> Generator[list[WorkerFds]]:
    """The descriptors of one worker for each of `shown`; at the end all that they were given has arrived."""
    output = Output(screen, "host", shown)
    fds = [output.open_worker(start(folder, rank, streams)) for rank, streams in enumerate(shown)]
    yield fds
    for each in fds:
        each.close()
    output.close()


def test_all_of_it_reaches_the_logs_and_the_shown_part_the_terminal(tmp_path: Path) -> None:
    screen = Screen()
    with workers(tmp_path, screen, BOTH, NONE) as (one, other):
        os.write(one.stdout, b"out 0\n")
        os.write(one.stderr, b"err 0\n")
        os.write(other.stdout, b"out 1\n")
        os.write(other.stderr, b"err 1\n")
    assert (screen.text(1), screen.text(2)) == (b"out 0\n", b"err 0\n")
    assert sorted((tmp_path / "0.log").read_text().split("\n")) == ["", "err 0", "out 0"]
    assert sorted((tmp_path / "1.log").read_text().split("\n")) == ["", "err 1", "out 1"]


def test_one_shown_rank_is_shown_byte_by_byte(tmp_path: Path) -> None:
    """Nothing is held back for a line's end, and nothing is changed: progress bars move."""
    data = bytes(range(256)) + b"\r50 %\r100 %"
    screen = Screen()
    with workers(tmp_path, screen, BOTH, NONE) as (one, _):
        os.write(one.stdout, data)
    assert screen.text(1) == data
    assert (tmp_path / "0.log").read_bytes() == data


def test_lines_of_several_ranks_have_a_prefix_and_stay_whole(tmp_path: Path) -> None:
    screen = Screen()
    with workers(tmp_path, screen, BOTH, ERR) as (one, other):
        for part in (b"first ", b"half\nsec", b"ond\r\n\nbar 1\rbar 2"):
            os.write(one.stdout, part)
        os.write(other.stdout, b"not shown\n")
        os.write(other.stderr, b"odd \xff\n")
    assert screen.text(1) == b"host:0 first half\nhost:0 second\nhost:0 bar 1\nhost:0 bar 2\n"
    assert screen.text(2) == b"host:1 odd \xff\n"
    assert all(data.endswith(b"\n") for _, data in screen.writes if data)


def test_a_line_without_an_end_is_not_kept_in_memory_for_ever(tmp_path: Path) -> None:
    screen = Screen()
    with workers(tmp_path, screen, BOTH, BOTH) as (one, _):
        for _ in range(40):
            os.write(one.stdout, b"x" * 32768)
    assert len(screen.writes) > 1
    assert screen.text(1).replace(b"host:0 ", b"").replace(b"\n", b"") == b"x" * 40 * 32768


def keep_writing(fd: int) -> None:
    for _ in range(10000):
        os.write(fd, b"more\n" * 1000)


def test_a_reader_that_is_gone_ends_the_stream(tmp_path: Path) -> None:
    """As without xl: the worker's next write finds its reader gone, rather than running on unseen."""
    screen = Screen()
    screen.reads = False
    with workers(tmp_path, screen, BOTH, NONE) as (one, _):
        os.write(one.stdout, b"first\n")
        with pytest.raises(BrokenPipeError):
            keep_writing(one.stdout)


def test_a_terminal_that_is_closed_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    assert Terminal().write(write, b"x") is False
    os.close(write)
    assert Terminal().write(write, b"x") is False


def test_a_full_disk_ends_the_log_and_not_the_output(capfd: pytest.CaptureFixture[str]) -> None:
    log = Log("/dev/full", 3)
    log.write(b"lost")
    log.write(b"lost, too")
    log.close()
    assert capfd.readouterr().err == "xl: the log of rank 3 ends here: No space left on device\n"


def test_a_log_is_appended_to(tmp_path: Path) -> None:
    for text in (b"one\n", b"two\n"):
        log = Log(str(tmp_path / "log"), 0)
        log.write(text)
        log.close()
    log.close()
    assert (tmp_path / "log").read_bytes() == b"one\ntwo\n"


STDIN = """
import os, sys
from pathlib import Path
from xl.configs.worker import WorkerSettings
from xl.launcher.descriptors import fill_standard_descriptors
from xl.launcher.output import Output, Terminal
from xl.launcher.plan import WorkerStart
from xl.launcher.streams import Streams
fill_standard_descriptors()
output = Output(Terminal(), "host", (Streams(), Streams()))
read = []
for rank in range(2):
    settings = WorkerSettings("run", "plain", rank=rank)
    fds = output.open_worker(WorkerStart(settings, {}, (), f"{rank}.log", Streams()))
    read.append(os.read(fds.stdin, 100))
    fds.close()
output.close()
print(read)
"""


@pytest.mark.parametrize(("redirect", "first"), [("", b"typed"), ("<&-", b"")], ids=["open", "closed"])
def test_only_rank_0_has_the_input(tmp_path: Path, redirect: str, first: bytes) -> None:
    command = ["sh", "-c", f'exec "$@" {redirect}', "sh", sys.executable, "-c", STDIN]
    done = subprocess.run(
        command, cwd=tmp_path, input="typed", capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == (f"{[first, b'']}\n", "")
