"""The version of the settings files, and the steps that bring older files up to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SCHEMA_VERSION = 1
"""Raise it when a key is renamed or retired, and say so in `STEPS`."""


@dataclass(frozen=True, slots=True)
class Step:
    """What changed between a version and the next.

    Args:
        renamed: old key to new key.
        retired: key to the reason why it is gone; its value is dropped with a warning.
    """

    renamed: Mapping[str, str]
    retired: Mapping[str, str]


STEPS: Sequence[Step] = ()
"""Step i leads from version i + 1 to version i + 2."""


@dataclass(frozen=True, slots=True)
class Migrated:
    """What became of a key of an older file: its name now, or None with the reason."""

    name: str | None
    note: str | None = None


def migrate(name: str, version: int, steps: Sequence[Step] = STEPS) -> Migrated:
    """The name that a key of a file of that version has now."""
    note = None
    for step in steps[max(version, 1) - 1 :]:
        if name in step.retired:
            return Migrated(None, f"{name} is no longer used: {step.retired[name]}")
        if name in step.renamed:
            new = step.renamed[name]
            note, name = f"{name} is called {new} now", new
    return Migrated(name, note)
