"""Whose code is running: the frames of the stack by the package they belong to."""

from __future__ import annotations

import sys
from types import FrameType

_PATHS_OF_LIBRARIES = ("site-packages", "dist-packages")


def package_of(frame: FrameType) -> str:
    """Return the top package of a frame's code; `__main__` for the script."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def outside_stdlib(frame: FrameType | None, *also: str) -> FrameType | None:
    """Return the nearest frame, from `frame` outwards, that is not of the standard library or of `also`."""
    while frame is not None:
        package = package_of(frame)
        if package not in also and (package == "__main__" or package not in sys.stdlib_module_names):
            return frame
        frame = frame.f_back
    return None


def is_installed(path: str) -> bool:
    """Whether a source file belongs to an installed library."""
    return any(part in path for part in _PATHS_OF_LIBRARIES)


def recomputed_outside() -> str | None:
    """What to say of a call inside torch's checkpointing, which makes it again in backward; else None."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        if frame.f_globals.get("__name__") == "torch.utils.checkpoint":
            return "the script recomputes it in backward (torch.utils.checkpoint)"
        frame = frame.f_back
    return None
