"""A real terminal of 80 columns and 24 lines around `xl`, whose screen the tests read."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pexpect
import pyte

COLUMNS, LINES = 80, 24
ENTER, ESC, CTRL_C, CTRL_D, CTRL_U, DOWN = "\r", "\x1b", "\x03", "\x04", "\x15", "\x1b[B"


_XL = "import sys; from xl.cli.main import main; sys.exit(main())"


class Terminal:
    """Runs `xl` in a pseudo-terminal and keeps what its screen shows.

    Args:
        home: working directory and home folder; settings are kept in its folder `xl`.
        program: Python code in place of the command.
    """

    def __init__(
        self, args: list[str], home: Path, columns: int = COLUMNS, program: str = _XL, **variables: str
    ) -> None:
        self.screen = pyte.HistoryScreen(columns, LINES, history=500)
        self.stream = pyte.ByteStream(self.screen)
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("XL_", "CUDA_", "OMP_"))
        }
        self.child: pexpect.spawn[bytes] = pexpect.spawn(
            sys.executable,
            ["-c", program, *args],
            cwd=str(home),
            env={**kept, "HOME": str(home), "XL_CONFIG_HOME": str(home / "xl"), "TERM": "xterm", **variables},
            dimensions=(LINES, columns),
            timeout=30,
        )
        self.child.delaybeforesend = None
        # prompt_toolkit asks where the cursor is; a terminal answers.
        self.screen.write_process_input = self._reply

    def lines(self) -> list[str]:
        """All lines so far, those that scrolled away included."""
        top = ["".join(line[x].data for x in range(self.screen.columns)) for line in self.screen.history.top]
        return [line.rstrip() for line in [*top, *self.screen.display]]

    def text(self) -> str:
        return "\n".join(self.lines()).rstrip()

    def wait_for(self, wanted: str | Callable[[str], bool], seconds: float = 30) -> str:
        """Read until the screen shows the text, or the condition holds; returns the screen."""
        end = time.monotonic() + seconds
        while not (wanted(self.text()) if callable(wanted) else wanted in self.text()):
            if time.monotonic() > end or not self._read():
                raise AssertionError(f"waited for {wanted!r}, the screen shows:\n{self.text()}")
        return self.text()

    def wait_for_prompt(self, prompt: str, times: int = 1) -> str:
        """Read until this was asked so many times and the cursor stands in the question."""
        return self.wait_for(lambda text: text.count(f"? {prompt}") >= times and self._in_question(prompt))

    def send(self, keys: str) -> None:
        self.child.send(keys)

    def answer(self, prompt: str, keys: str = ENTER, times: int = 1) -> None:
        """Wait for the question, then press the keys."""
        self.wait_for_prompt(prompt, times)
        self.send(keys)

    def exit_code(self) -> int:
        """Read to the end."""
        while self._read():
            pass
        self.child.close()
        code = self.child.exitstatus
        if code is None:
            raise AssertionError(f"killed by signal {self.child.signalstatus}:\n{self.text()}")
        return code

    def _in_question(self, prompt: str) -> bool:
        # The cursor stands behind a text question, and in the menu below the question of a choice.
        above = self.screen.display[: self.screen.cursor.y + 1]
        asked = [line for line in above if line.startswith("? ")]
        return bool(asked) and asked[-1].startswith(f"? {prompt}")

    def _reply(self, data: str) -> None:
        self.child.send(data)

    def _read(self) -> bool:
        try:
            self.stream.feed(self.child.read_nonblocking(4096, timeout=1))
        except pexpect.TIMEOUT:
            return True
        except pexpect.EOF:
            return False
        return True
