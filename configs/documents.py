"""A settings file as read: values with the line of each key, and the ways to walk through them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast


@dataclass(frozen=True, slots=True)
class Entry:
    """A value of a file and the line of its key. `value` is a scalar, a list, or a mapping of entries."""

    value: object
    line: int


@dataclass(frozen=True, slots=True)
class Document:
    """A settings file as read.

    Args:
        shown: the file's name as messages show it.
    """

    path: Path
    shown: str
    entries: dict[str, Entry]

    def place(self, entry: Entry) -> str:
        return f"{self.shown}:{entry.line}"


def mapping(entry: Entry) -> dict[str, Entry] | None:
    """The entries of a mapping; None for any other value."""
    value = entry.value
    return cast("dict[str, Entry]", value) if isinstance(value, dict) else None


def flatten(entries: Mapping[str, Entry], prefix: str = "") -> Iterator[tuple[str, Entry]]:
    """Every entry that is not a mapping with keys of its own, by its dotted key."""
    for name, entry in entries.items():
        inner = mapping(entry)
        if inner:
            yield from flatten(inner, f"{prefix}{name}.")
        else:
            yield prefix + name, entry


def plain(value: object) -> object:
    """Entries as ordinary values, without lines."""
    if isinstance(value, Entry):
        return plain(value.value)
    if isinstance(value, dict):
        entries = cast("dict[str, object]", value)
        return {name: plain(inner) for name, inner in entries.items()}
    if isinstance(value, list):
        items = cast("list[object]", value)
        return [plain(item) for item in items]
    return value
