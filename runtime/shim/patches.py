"""Replaces attributes and puts them back, newest first, as they were stored."""

from __future__ import annotations

_INHERITED = object()


class Patches:
    """What was replaced so far. A static method comes back as one, and an inherited attribute not at all."""

    def __init__(self) -> None:
        self._done: list[tuple[object, str, object]] = []

    def replace(self, owner: object, name: str, replacement: object) -> None:
        """Set `owner.name`; `restore` puts the original back."""
        self._done.append((owner, name, vars(owner).get(name, _INHERITED)))
        setattr(owner, name, replacement)

    def restore(self) -> None:
        """Undo every replacement."""
        while self._done:
            owner, name, original = self._done.pop()
            if original is _INHERITED:
                delattr(owner, name)
            else:
                setattr(owner, name, original)
