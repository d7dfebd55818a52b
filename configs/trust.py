"""Project files the user trusts with settings that could run other code: loader variables and ssh."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import cast

from .errors import XlError
from .paths import config_home, writable_home

# Every launch asks `needs_trust`; what the rest imports is left to the few that come to it.

_LOADER_PREFIXES = ("LD_", "DYLD_")
_LOADER_NAMES = {"PATH", "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONUSERBASE", "BASH_ENV"}
_SSH_KEYS = {"hosts", "ssh_options"}


def needs_trust(key: str) -> bool:
    """Whether a project file may set that key only when the user trusts it."""
    if key in _SSH_KEYS:
        return True
    head, _, variable = key.partition(".")
    return head == "env" and (variable.startswith(_LOADER_PREFIXES) or variable in _LOADER_NAMES)


def content_hash(path: Path) -> str:
    """The hash by which a file's content is known again."""
    import hashlib

    return hashlib.sha256(path.read_bytes()).hexdigest()


def is_trusted(path: Path, environ: Mapping[str, str]) -> bool:
    """Whether the user trusted this file with the content it has now."""
    return (content_hash(path), str(path.resolve())) in _records(environ)


def trust(path: Path, environ: Mapping[str, str]) -> None:
    """Remember the file with its present content; an older record of it goes."""
    from .atomic import write_atomic

    store = writable_home(environ) / "trusted"
    others = [(known, name) for known, name in _records(environ) if name != str(path.resolve())]
    write_atomic(store, _lines([*others, (content_hash(path), str(path.resolve()))]))


def untrusted(key: str, place: str, path: Path) -> XlError:
    """The error for a setting of a file that is not trusted."""
    return XlError(
        f"{key} in {place} is not trusted",
        "a project file that came with other people's code could run programs by it",
        f"read the file, then type: xl config trust {path}",
    )


def _records(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    import json

    home = config_home(environ)
    try:
        lines = (home / "trusted").read_text(encoding="utf-8").splitlines() if home else []
        pairs = [cast("list[str]", json.loads(line)) for line in lines]
    except (OSError, ValueError):
        # What cannot be read trusts nothing.
        return []
    return [(known, name) for known, name in pairs]


def _lines(records: Iterable[tuple[str, str]]) -> str:
    """One JSON list a line: a path may hold any character."""
    import json

    return "".join(json.dumps([known, name]) + "\n" for known, name in records)
