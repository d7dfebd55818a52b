"""What is said about a value that a setting does not take, and what to type instead where it was given."""

from __future__ import annotations

from .errors import XlError
from .guesses import nearest
from .keys import Key, is_valid

_LONGEST_SHOWN = 60
"""Characters of a wrong value that an error shows."""

_MOST_BITS = 1000
"""Python refuses to print a whole number that is much larger."""


def wrong_value(key: Key, value: object, place: str) -> XlError:
    """The error for a value that the key does not take, with what to type instead."""
    written = shortened(f"'{value}'" if isinstance(value, str) else _shown(value))
    return XlError(
        f"{key.name}: {written} is not {key.expected}",
        f"{place} sets it",
        _fix(key, value, place),
    )


def _shown(value: object) -> str:
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        return f"a number of about {value.bit_length() * 3 // 10} digits"
    return str(value).lower() if isinstance(value, bool) else str(value)


def shortened(text: str) -> str:
    """The text as an error shows it, a long one cut."""
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}… ({len(text)} characters)"


def _exactly(key: Key, place: str, value: str) -> str:
    """What to type where the value is given at that place: a flag, a variable, a command or a file's line."""
    if place.startswith("--"):
        return f"pass {place} {value}"
    if place.startswith("XL_"):
        return f"set {place}={value}"
    return f"{place} {key.name} {value}" if place.startswith("xl ") else f"write {value}"


def _otherwise(key: Key, place: str) -> str:
    """The same for a value that only its form is known of."""
    is_open = key.default is None or key.default == ()
    null = "null to have xl decide" if is_open else f"null for the default, {_shown(key.default)}"
    forms = f"{key.expected}, or {null}"
    if place.startswith("--"):
        return f"pass {place} with {forms}"
    if place.startswith("XL_"):
        return f"set {place} to {forms}"
    return f"{place} {key.name} takes {forms}" if place.startswith("xl ") else f"write {forms}"


def _fix(key: Key, value: object, place: str) -> str:
    if isinstance(value, str) and key.kind in ("whole", "number") and _is_number(key, value):
        return f"write {value.strip()} without quotes"
    if isinstance(value, float) and value.is_integer() and key.kind == "whole":
        return f"write {int(value)}"
    if key.kind == "choice":
        if isinstance(value, str) and value in map(str, key.choices):
            return f"write {value} without quotes"
        by_word = {str(choice).lower(): str(choice) for choice in key.choices}
        guess = nearest(str(value).lower(), by_word)
        if guess:
            return _exactly(key, place, by_word[guess])
    if key.kind == "text" and not isinstance(value, str):
        return f'put it in quotes: "{_shown(value)}"'
    return _otherwise(key, place)


def _is_number(key: Key, text: str) -> bool:
    try:
        parsed = int(text) if key.kind == "whole" else float(text)
    except ValueError:
        return False
    return is_valid(key, parsed)
