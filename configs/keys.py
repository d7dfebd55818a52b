"""Every setting as a flat table (`fsdp.version`): type, flag, variable, and how a value is checked."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from functools import lru_cache
from types import NoneType, UnionType
from typing import Literal, Union, cast, get_args, get_origin

from .errors import XlError
from .guesses import nearest
from .profile import SECTIONS, Profile

Kind = Literal["whole", "number", "bool", "text", "choice", "list", "mapping"]

_KINDS: dict[object, Kind] = {
    int: "whole",
    float: "number",
    bool: "bool",
    str: "text",
    tuple: "list",
    dict: "mapping",
}
_BOOLS = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}
_LISTS_AS_TEXT = {"gpu_ids", "show_ranks"}
_SYNONYMS: dict[str, dict[str, str]] = {
    "fsdp.auto_wrap_policy": {
        "TRANSFORMER_BASED": "TRANSFORMER_BASED_WRAP",
        "SIZE_BASED": "SIZE_BASED_WRAP",
    },
    "fsdp.sharding_strategy": {
        "1": "FULL_SHARD",
        "2": "SHARD_GRAD_OP",
        "3": "NO_SHARD",
        "4": "HYBRID_SHARD",
        "5": "HYBRID_SHARD_ZERO2",
    },
}
OTHER_NAMES = {
    "nproc_per_node": "num_processes_per_machine",
    "nproc": "num_processes_per_machine",
    "nnodes": "num_machines",
    "node_rank": "machine_rank",
    "master_addr": "main_process_ip",
    "master_port": "main_process_port",
    "use_cpu": "cpu",
    "precision": "mixed_precision",
    "fp16": "mixed_precision",
    "bf16": "mixed_precision",
    "deepspeed_config": "deepspeed.config_file",
    "deepspeed_config_file": "deepspeed.config_file",
}
"""Words of other launchers, as hints only: they mean the same, so the fix can name the right key."""


@dataclass(frozen=True, slots=True)
class Key:
    """One setting.

    Args:
        name: the key; inside a section with a dot.
        default: what holds when nobody sets it; None: decided from the machine.
        choices: the values of a closed choice, in its spelling.
        path: the value names a file or folder.
    """

    name: str
    kind: Kind
    default: object
    description: str
    flag: str
    choices: tuple[str | int, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    path: bool = False

    @property
    def variable(self) -> str:
        return "XL_" + self.name.replace(".", "_").upper()

    @property
    def expected(self) -> str:
        """What a value must be, in words."""
        if self.kind == "choice":
            return "one of " + ", ".join(map(str, self.choices))
        words = {
            "whole": "a whole number",
            "number": "a number",
            "bool": "true or false",
            "text": "text",
            "list": "a list of texts",
            "mapping": "a mapping of names to texts",
        }[self.kind]
        low, high = self.minimum, self.maximum
        if low is not None and high is not None:
            return f"{words} from {low} to {high}"
        return words if low is None else f"{words} of at least {low}"


@lru_cache(maxsize=1)
def all_keys() -> Mapping[str, Key]:
    """Every key by its dotted name, in the profile's order; without `schema_version`."""
    found: dict[str, Key] = {}
    for it in fields(Profile):
        if it.name in SECTIONS:
            inner = ((f"{it.name}.{part.name}", part) for part in fields(SECTIONS[it.name]))
            found.update((name, _key(name, part)) for name, part in inner)
        elif it.name != "schema_version":
            found[it.name] = _key(it.name, it)
    return found


def _key(name: str, declared: Field[object]) -> Key:
    kind, choices = _kind(declared.type)
    said = declared.metadata
    extra = said.get("json_schema_extra", {})
    return Key(
        name=name,
        kind=kind,
        default=None if declared.default is MISSING else declared.default,
        description=said["description"],
        flag="--" + extra.get("flag", name.replace(".", "-").replace("_", "-")),
        choices=choices,
        minimum=said.get("ge"),
        maximum=said.get("le"),
        path=extra.get("path", False),
    )


def _kind(annotation: object) -> tuple[Kind, tuple[str | int, ...]]:
    """What the type says: `int | None`, `Literal[1, 2]`, `tuple[str, ...]`; every setting may be None."""
    if get_origin(annotation) in (Union, UnionType):
        (annotation,) = (option for option in get_args(annotation) if option is not NoneType)
    origin = get_origin(annotation) or annotation
    if origin is Literal:
        return "choice", get_args(annotation)
    return _KINDS[origin], ()


def sections() -> tuple[str, ...]:
    """Names of the keys that hold further keys, `env` included."""
    return (*SECTIONS, "env")


def find_key(name: str) -> Key | None:
    """The key of that dotted name; `env.NAME` is a text."""
    head, dot, rest = name.partition(".")
    if head == "env" and dot and rest:
        return variable_key(rest)
    return all_keys().get(name)


def variable_key(variable: str) -> Key:
    """The key of one variable of the processes."""
    return Key(f"env.{variable}", "text", None, f"Variable {variable} of the processes.", "--env")


def canonical(name: str) -> str:
    """The name as the table has it: dashes become underscores, a section's name may be repeated.

    `fsdp.fsdp_version` is `fsdp.version`, as other tools' files repeat it.
    """
    if name.startswith("env."):
        return name
    head, dot, rest = name.replace("-", "_").partition(".")
    repeated = f"{head}.{rest.removeprefix(head + '_')}"
    return repeated if dot and repeated in all_keys() else head + dot + rest


def unknown_key(name: str, place: str, otherwise: str = "") -> XlError:
    """The error for a key that nobody knows, with the nearest known one.

    Args:
        otherwise: the fix where no key is near; by default that of a line in a file.
    """
    guess = nearest_key(name)
    otherwise = otherwise or "xl config explain --all lists every setting; remove this one"
    fix = f"did you mean {guess}?" if guess else otherwise
    return XlError(f"unknown setting {name}", f"{place} names it, and xl has no such setting", fix)


def nearest_key(name: str) -> str | None:
    """The known key that `name` most likely stands for."""
    if name in OTHER_NAMES:
        return OTHER_NAMES[name]
    known = all_keys()
    by_flag = {key.flag.removeprefix("--").replace("-", "_"): key.name for key in known.values()}
    spellings = {**by_flag, **{key.replace(".", "_"): key for key in known}, **{key: key for key in known}}
    last = name.rpartition(".")[2]
    for text in (name, last):
        guess = nearest(text, spellings, cutoff=0.7)
        if guess:
            return spellings[guess]
    inner = {key.rpartition(".")[2]: key for key in reversed(list(known))}
    guess = nearest(last, inner, cutoff=0.7)
    return inner[guess] if guess else None


def parse(key: Key, text: str, place: str) -> object:
    """The value that a text from a flag, a variable or `xl config set` stands for; `null` is None."""
    word = text.strip()
    is_plain = word.isascii() and "_" not in word  # int() reads 1_000 and other scripts' digits, too
    if word == "null":
        return None
    if word == "" and key.kind != "mapping" and not key.name.startswith("env."):
        raise XlError(
            f"{key.name}: the value is empty",
            f"{place} gives nothing, and {key.expected} is needed",
            "give a value, or null to ask for the default",
        )
    value: object = word
    try:
        if key.kind == "whole" or (key.kind == "choice" and isinstance(key.choices[0], int)):
            value = int(word if is_plain else "")
        elif key.kind == "number":
            value = float(word if is_plain else "")
        elif key.kind == "bool":
            value = _BOOLS[word.lower()]
        elif key.kind == "mapping":
            value = parse_mapping(key, (text,), place)
        elif key.name.startswith("env."):
            value = text
    except (ValueError, KeyError):
        raise _wrong(key, text, place) from None
    return check(key, value, place)


def parse_mapping(key: Key, texts: Iterable[str], place: str) -> dict[str, str]:
    """`NAME=VALUE` texts as a mapping."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise XlError(
                f"{key.name}: {text!r} is not NAME=VALUE",
                f"{place} sets it",
                f"write {place} {name or 'NAME'}=VALUE",
            )
        pairs[name] = value
    return pairs


def check(key: Key, value: object, place: str) -> object:
    """The value in the profile's own form, or an error that says what it must be.

    These forms stand for others without a doubt and are taken: `no` and `off` where YAML made them False
    and "no" is a choice; a choice in other letter case; a whole number where text is wanted; a text with
    commas for a list; a list for `gpu_ids` and `show_ranks`. A number in quotes is an error.
    """
    if value is None:
        return None
    value = _coerce(key, value)
    if _holds_nul(value):
        raise XlError(
            f"{key.name}: the value holds a NUL character",
            f"{place} sets it, and no name, path or variable can have one",
            "write it without \\0",
        )
    if not is_valid(key, value):
        raise _wrong(key, value, place)
    return value


def _holds_nul(value: object) -> bool:
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, dict):
        pairs = cast("dict[object, object]", value)
        return any(map(_holds_nul, (*pairs, *pairs.values())))
    return isinstance(value, tuple) and any(map(_holds_nul, cast("tuple[object, ...]", value)))


def is_valid(key: Key, value: object) -> bool:
    """Whether the value, in its final form, is one of the key's; the same as pydantic finds, but for its
    taking True and 1.0 for the choice 1.
    """
    match key.kind:
        case "choice":
            return any(type(choice) is type(value) and choice == value for choice in key.choices)
        case "whole" | "number":
            return type(value) is (int if key.kind == "whole" else float) and _is_in_range(key, value)
        case "bool":
            return isinstance(value, bool)
        case "text":
            return isinstance(value, str)
        case "list":
            return isinstance(value, tuple) and _are_texts(cast("tuple[object, ...]", value))
        case "mapping":
            pairs = cast("dict[object, object]", value) if isinstance(value, dict) else {None: None}
            return _are_texts(pairs) and _are_texts(pairs.values())


def _is_in_range(key: Key, value: float) -> bool:
    low = -math.inf if key.minimum is None else key.minimum
    high = math.inf if key.maximum is None else key.maximum
    return low <= value <= high and (isinstance(value, int) or math.isfinite(value))


def _are_texts(values: Iterable[object]) -> bool:
    return all(isinstance(value, str) for value in values)


def _coerce(key: Key, value: object) -> object:
    whole = value if isinstance(value, int) and not isinstance(value, bool) else None
    items = _items(value)
    match key.kind:
        case "choice":
            return _choice(key, value)
        case "text" if items is not None and key.name in _LISTS_AS_TEXT:
            return ",".join(map(str, items))
        case "text" if whole is not None:
            return str(whole)
        case "number" if whole is not None:
            return _float(whole)
        case "list" if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        case "list" if items is not None:
            return tuple(items)
        case _:
            return value


def _float(whole: int) -> float:
    try:
        return float(whole)
    except OverflowError:
        return math.inf  # which no setting takes


def _items(value: object) -> list[object] | None:
    return cast("list[object]", value) if isinstance(value, list) else None


def _choice(key: Key, value: object) -> object:
    if isinstance(value, bool):
        return "no" if "no" in key.choices and not value else value
    word = _SYNONYMS.get(key.name, {}).get(str(value).upper(), value)
    if isinstance(word, str):
        return next((c for c in key.choices if isinstance(c, str) and c.lower() == word.lower()), word)
    return word


def _wrong(key: Key, value: object, place: str) -> XlError:
    from .wrong_value import wrong_value  # only a mistake needs it

    return wrong_value(key, value, place)


def nest(flat: Mapping[str, object]) -> dict[str, object]:
    """Dotted keys as nested mappings."""
    nested: dict[str, object] = {}
    for name, value in flat.items():
        head, dot, rest = name.partition(".")
        if dot:
            cast("dict[str, object]", nested.setdefault(head, {}))[rest] = value
        else:
            nested[head] = value
    return nested
