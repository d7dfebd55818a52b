"""Says when a script starts other programs: each process does so, and xl does not see what they change."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from .frames import is_installed, outside_stdlib, package_of

if TYPE_CHECKING:
    from .session import Session


def install(session: Session) -> None:
    """Patch the two ways to a program, `os.system` and `subprocess`, on rank 0, which speaks for all."""
    if session.rank > 0:
        return
    for owner, name in ((os, "system"), (subprocess.Popen, "__init__")):
        session.patch(owner, name, _noted(session, cast("Callable[..., Any]", getattr(owner, name))))


def _noted(session: Session, inner: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(inner)
    def start(*args: Any, **kwargs: Any) -> Any:
        if session.aside is None and (where := _script_line()) is not None:
            session.note(
                f"the script starts another program ({where}): it runs on each of the {session.size} "
                "processes; if it changes files, do that before the launch or pass --num-processes 1"
            )
        return inner(*args, **kwargs)

    return start


def _script_line() -> str | None:
    """File and line of the script's own code that led here, or None where a library asks."""
    frame = outside_stdlib(sys._getframe(2))  # pyright: ignore[reportPrivateUsage]
    if frame is None or package_of(frame) == "xl":
        return None
    path = frame.f_code.co_filename
    if is_installed(path):
        return None
    return f"{os.path.basename(path)}:{frame.f_lineno}"
