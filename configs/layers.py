"""Where a value comes from: its origin, the values it won against, and one source's values as a layer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, cast

OriginKind = Literal["argument", "flag", "variable", "file", "project", "profile", "preset", "default"]


@dataclass(frozen=True, slots=True)
class Origin:
    """One source of one value.

    Args:
        kind: which of the sources; they rank in the order of `OriginKind`.
        place: printable place, such as `configs/train.yaml:7`, `--num-processes`, `XL_SEED`, `preset ddp`.
    """

    kind: OriginKind
    place: str


@dataclass(frozen=True, slots=True)
class Value:
    """A value with its origin and the values it won against, highest first.

    A None of the profile's type says: decided from the machine.
    """

    value: object
    origin: Origin
    losers: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class Layer:
    """The values of one source, by dotted key; None: the source asks for the default."""

    kind: OriginKind
    label: str
    values: dict[str, Value] = field(default_factory=lambda: dict[str, Value]())


class Flags(dict[str, object]):
    """Typed values of the flags by profile key, with the flag that set each, as it was typed."""

    def __init__(self) -> None:
        super().__init__()
        self.places: dict[str, str] = {}

    def set(self, key: str, value: object, place: str) -> None:
        self[key] = value
        self.places[key] = place


def printed(value: object) -> str:
    """The value in words, as a file would have it."""
    if value is None:
        return "decided from the machine"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(cast("tuple[str, ...]", value)) or "nothing"
    return str(value)
