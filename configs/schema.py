"""The profile as pydantic reads it: the JSON Schema of a settings file, and a check of whole profiles."""

from __future__ import annotations

from functools import lru_cache

from pydantic import TypeAdapter

from .profile import Profile


@lru_cache(maxsize=1)
def adapter() -> TypeAdapter[Profile]:
    """Pydantic's validator; it refuses whatever `keys.check` refuses, and the tests hold the two together."""
    return TypeAdapter(Profile)


def json_schema() -> dict[str, object]:
    """The JSON Schema of a settings file, without the dialect's name."""
    return adapter().json_schema()
