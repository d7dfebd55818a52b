"""Where the workers' output goes: every byte to the rank's log file, shown streams to the terminal as well.

Each stream of each worker has a thread that copies it. A thread that waits for a slow terminal stops reading,
so that the worker waits too, as it would without xl; the main thread waits for none of them.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
from dataclasses import dataclass
from typing import BinaryIO

from .plan import WorkerStart
from .streams import Streams

_CHUNK = 1 << 16
_LONGEST_LINE = 1 << 20
_LINE_END = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True, slots=True)
class WorkerFds:
    """What becomes a worker's stdin, stdout and stderr; closed here once the worker has them."""

    stdin: int
    stdout: int
    stderr: int

    def close(self) -> None:
        for fd in {self.stdin, self.stdout, self.stderr}:
            os.close(fd)


class Terminal:
    """The launcher's own stdout and stderr; one write at a time, so that lines stay whole."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.pty: int | None = None  # the launcher's side of rank 0's terminal, if it has one

    def write(self, fd: int, data: bytes) -> bool:
        """Write all of `data`; returns whether the reader is still there."""
        with self._lock:
            view = memoryview(data)
            while view:
                try:
                    view = view[os.write(fd, view) :]
                except BrokenPipeError:
                    return False
                except OSError:  # a closed descriptor, or a terminal that is gone
                    return False
        return True

    def copy_size(self) -> None:
        """Give rank 0's terminal the size of ours."""
        if self.pty is not None:
            import fcntl
            import struct
            import termios

            with contextlib.suppress(OSError):
                size = fcntl.ioctl(1, termios.TIOCGWINSZ, struct.pack("HHHH", 0, 0, 0, 0))
                fcntl.ioctl(self.pty, termios.TIOCSWINSZ, size)


class Log:
    """A rank's log file; a full disk ends the log, not the training."""

    def __init__(self, path: str, rank: int) -> None:
        self._rank = rank
        self._lock = threading.Lock()
        self._file: BinaryIO | None = open(path, "ab", buffering=0)  # noqa: SIM115  # closed by the last stream

    def write(self, data: bytes) -> None:
        with self._lock:
            if self._file is None:
                return
            try:
                self._file.write(data)
            except OSError as error:
                self._file.close()
                self._file = None
                print(f"xl: the log of rank {self._rank} ends here: {error.strerror}", file=sys.stderr)

    def close(self) -> None:
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None


@dataclass(slots=True)
class _Stream:
    """One stream of one worker on its way to the log and, where `terminal_fd` is set, to the terminal."""

    source: int
    log: Log
    terminal: Terminal
    terminal_fd: int | None
    prefix: bytes
    partial: bytes = b""

    def run(self) -> None:
        while data := self._read():
            self.log.write(data)
            if self.terminal_fd is not None and not self._show(self.terminal_fd, data):
                break  # as without xl: the worker's next write finds its reader gone
        if self.partial and self.terminal_fd is not None:
            self.terminal.write(self.terminal_fd, self.prefix + self.partial + b"\n")
        os.close(self.source)

    def _read(self) -> bytes:
        try:
            return os.read(self.source, _CHUNK)
        except OSError:  # a pseudo-terminal ends with EIO
            return b""

    def _show(self, fd: int, data: bytes) -> bool:
        if not self.prefix:
            return self.terminal.write(fd, data)
        # A progress bar's carriage return would write over other ranks' lines: with prefixes it ends a line.
        *lines, self.partial = _LINE_END.split(self.partial + data)
        if len(self.partial) > _LONGEST_LINE:
            lines, self.partial = [*lines, self.partial], b""
        shown = b"".join(self.prefix + line + b"\n" for line in lines if line)
        return self.terminal.write(fd, shown)


class Output:
    """The output of all workers of one attempt.

    Args:
        terminal: ours.
        hostname: begins the prefix of each line where several ranks are shown.
    """

    def __init__(self, terminal: Terminal, hostname: str, shown: tuple[Streams, ...]) -> None:
        self._terminal = terminal
        self._hostname = hostname
        self._alone = sum(streams.any for streams in shown) <= 1
        self._threads: list[threading.Thread] = []
        self._logs: list[Log] = []

    def open_worker(self, start: WorkerStart) -> WorkerFds:
        """Begin to copy a worker's output; returns the descriptors to start it with."""
        rank = start.settings.rank
        log = Log(start.log, rank)
        self._logs.append(log)
        prefix = b"" if self._alone else f"{self._hostname}:{rank} ".encode()
        both = start.shown.out and start.shown.err
        if rank == 0 and self._alone and both and os.isatty(1) and os.isatty(2):
            # One terminal for both, so that what the script writes to them stays in order.
            source, end = self._open_pty()
            self._copy(_Stream(source, log, self._terminal, 1, prefix))
            return WorkerFds(_stdin(rank), end, end)
        ends: list[int] = []
        for fd, shown in ((1, start.shown.out), (2, start.shown.err)):
            if rank == 0 and self._alone and shown and os.isatty(fd):
                source, end = self._open_pty()
            else:
                source, end = os.pipe()
            self._copy(_Stream(source, log, self._terminal, fd if shown else None, prefix))
            ends.append(end)
        return WorkerFds(_stdin(rank), *ends)

    def _open_pty(self) -> tuple[int, int]:
        import tty

        source, end = os.openpty()
        tty.setraw(end)  # bytes pass as they are; the real terminal does what a terminal does
        self._terminal.pty = source
        self._terminal.copy_size()
        return source, end

    def _copy(self, stream: _Stream) -> None:
        thread = threading.Thread(target=stream.run, daemon=True)
        thread.start()
        self._threads.append(thread)

    def close(self, timeout_s: float | None = None) -> None:
        """Wait, at most `timeout_s`, until all that the workers wrote has arrived; no worker may be left.

        Without a limit a stalled terminal stalls us, as it would stall a script that prints its last line.
        """
        end = None if timeout_s is None else time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(None if end is None else max(0.0, end - time.monotonic()))
        self._terminal.pty = None
        for log in self._logs:
            log.close()


def _stdin(rank: int) -> int:
    """Rank 0 reads what we would; the others read nothing."""
    if rank == 0 and not _in_background():
        try:
            return os.dup(0)
        except OSError:  # started with stdin closed
            pass
    return os.open(os.devnull, os.O_RDONLY)


def _in_background() -> bool:
    """Whether the terminal's input belongs to another job of the shell, which rank 0 would take from it."""
    try:
        return os.tcgetpgrp(0) != os.getpgrp()
    except OSError:  # stdin is no terminal of ours
        return False
