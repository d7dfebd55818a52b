"""Real launches for tests: starts `xl launch`, finds every process of it, and waits for their end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil


class Launch:
    """One `xl launch` under way, with its output in files of `folder`.

    All of its processes, orphans and sessions of their own included, inherit a variable that no other has.
    """

    def __init__(
        self,
        folder: Path,
        args: Sequence[str],
        environ: Mapping[str, str] | None = None,
        stdout: int | None = None,
    ) -> None:
        self.folder = folder
        self.mark = f"LAUNCH_MARK={uuid.uuid4().hex}"
        name, _, value = self.mark.partition("=")
        self.out, self.err = folder / "stdout", folder / "stderr"
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "xl.cli", "launch", *args],
                cwd=folder,
                env={
                    **os.environ,
                    "OMP_NUM_THREADS": "1",
                    "HOME": str(folder),
                    "XDG_STATE_HOME": str(folder / "state"),
                    name: value,
                    **(environ or {}),
                },
                stdin=subprocess.DEVNULL,
                stdout=stdout if stdout is not None else out,
                stderr=err,
                start_new_session=True,
            )

    def processes(self) -> list[psutil.Process]:
        """Every living process of this launch, the launcher included."""
        found: list[psutil.Process] = []
        for process in psutil.process_iter():
            try:
                environ = Path(f"/proc/{process.pid}/environ").read_bytes()
                if self.mark.encode() in environ and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (OSError, psutil.Error):
                continue
        return found

    def zygote(self) -> int:
        """The process id of the process that starts the workers."""
        for process in psutil.Process(self.process.pid).children():
            if any("xl.runtime.zygote" in word for word in process.cmdline()):
                return process.pid
        raise AssertionError("no zygote")

    def workers(self) -> list[psutil.Process]:
        """The workers of a launch whose script starts nothing itself."""
        return psutil.Process(self.zygote()).children()

    def wait(self, timeout_s: float = 60.0) -> int:
        """Return the exit code."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.clear()
            raise AssertionError(f"the launch did not end\n{self.text()}") from None

    def text(self) -> str:
        """What it has printed so far."""
        return self.out.read_text(errors="replace") + self.err.read_text(errors="replace")

    def wait_for(self, condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
        """Wait until something has come true while the launch runs."""
        end = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > end or self.process.poll() is not None:
                if condition():
                    return
                text = self.text()
                self.clear()
                raise AssertionError(f"it did not happen\n{text}")
            time.sleep(0.02)

    def all_gone(self, within_s: float) -> bool:
        """Whether every process has ended after `within_s` at the latest."""
        end = time.monotonic() + within_s
        while self.processes():
            if time.monotonic() > end:
                return False
            time.sleep(0.02)
        return True

    def clear(self) -> None:
        """Kill what is left."""
        for process in self.processes():
            process.send_signal(signal.SIGKILL)
        self.process.wait()


def finished(folder: Path, args: Sequence[str], environ: Mapping[str, str] | None = None) -> Launch:
    """A launch that has run to its end."""
    launch = Launch(folder, args, environ)
    launch.wait()
    return launch


def write_script(folder: Path, text: str, name: str = "train.py") -> str:
    """Save a script and return its name."""
    (folder / name).write_text(text)
    return name
