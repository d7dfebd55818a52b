"""The command lines of xl's own processes: the bootstrap of one worker, and the zygote that starts all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .worker import Target


def _python_code(module: str) -> str:
    # `python -m` would look for xl, and what xl imports, in the working directory first; -P came with 3.11.
    return f"import sys; sys.path[0] or sys.path.pop(0); from {module} import main; main()"


@dataclass(frozen=True, slots=True)
class Program:
    """What a worker runs.

    Args:
        after_torch: xl leaves torch alone until the script has imported it, because the script sets variables
            that torch reads at its import.
    """

    target: Target
    after_torch: bool = False

    def to_argv(self) -> list[str]:
        return [
            "prepare-after-torch" if self.after_torch else "prepare-first",
            "module" if self.target.module else "script",
            self.target.name,
            *self.target.args,
        ]

    @classmethod
    def from_argv(cls, argv: Sequence[str]) -> Program:
        when, how, name, *args = argv
        return cls(
            Target(name, tuple(args), module=how == "module"), after_torch=when == "prepare-after-torch"
        )


def bootstrap_argv(python: str, program: Program) -> list[str]:
    """Return the command of one worker; its settings are in the variable `XL_WORKER`."""
    return [python, "-c", _python_code("xl.runtime.bootstrap"), *program.to_argv()]


def zygote_argv(python: str, socket_fd: int, launcher: int, fork: bool, program: Program) -> list[str]:
    """Return the command of the process that starts the workers.

    Args:
        socket_fd: its inherited end of the launcher's socket.
        launcher: the process id it must be a child of.
        fork: import torch and fork; else start an interpreter for each worker.
    """
    mode = "fork" if fork else "fresh"
    code = _python_code("xl.runtime.zygote")
    return [python, "-c", code, str(socket_fd), str(launcher), mode, *program.to_argv()]
