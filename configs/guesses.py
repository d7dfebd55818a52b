"""What a misspelt word most likely stands for."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known word that is most like `word`; None if none is at least `cutoff` (0 to 1) alike."""
    import difflib  # only a mistake needs it

    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)), None)
