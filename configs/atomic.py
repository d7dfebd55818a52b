"""Writes a settings file whole or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from .errors import XlError


def write_atomic(path: Path, text: str) -> None:
    """Write the whole file or leave the old one: a new file is written beside it and put in its place.

    Raises:
        XlError: the folder cannot be made or written.
    """
    import tempfile  # who only reads settings does without it

    target = Path(os.path.realpath(path))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o644
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, mode)
            os.replace(name, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
        _sync_folder(target.parent)
    except UnicodeEncodeError as error:
        raise XlError(
            f"{path} cannot be written: {error.object[error.start : error.end]!r} is no text",
            "settings are kept as UTF-8, and a byte that is none came with a value",
            "give the value in UTF-8",
        ) from None
    except OSError as error:
        raise XlError(
            f"{path} cannot be written: {error.strerror}",
            "settings are kept in that file",
            "make the folder writable, or set XL_CONFIG_HOME to another one",
            exit_code=1,
        ) from None


def _sync_folder(folder: Path) -> None:
    """Make the new name survive a power cut; some file systems cannot, which is no failure."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
