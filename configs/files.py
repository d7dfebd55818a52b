"""Reading settings from YAML and JSON with the line of every key, and writing files in one step.

Importing yaml takes longer than all of xl's settings: who may do without files imports this when needed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from .atomic import write_atomic
from .documents import Document, Entry
from .errors import XlError
from .migrations import SCHEMA_VERSION

_untyped: Any = yaml
"""The functions of yaml that its stubs leave without types."""

_MOST_NODES = 10_000
"""A settings file is far smaller; aliases that multiply stop here."""


class _Loader(yaml.SafeLoader):
    """YAML with JSON's numbers: `010` and `1:30` stay text, where YAML 1.1 reads other numbers."""


_TAGS = {f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float", "str", "seq", "map")}
_NUMBER_TAGS = {"tag:yaml.org,2002:int", "tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp"}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _NUMBER_TAGS]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_untyped.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"^(?:0|-?[1-9][0-9]*)$"), list("-0123456789"), Loader=_Loader
)
_untyped.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^-?(?:0|[1-9][0-9]*)(?:\.[0-9]+(?:[eE][-+]?[0-9]+)?|[eE][-+]?[0-9]+)$"),
    list("-0123456789"),
    Loader=_Loader,
)


class _Dumper(yaml.SafeDumper):
    """Puts what `_Loader` reads as a number in quotes where it is a text, such as `1e5`."""


_Dumper.yaml_implicit_resolvers = {
    first: [*resolvers, *_Loader.yaml_implicit_resolvers.get(first, ())]
    for first, resolvers in yaml.SafeDumper.yaml_implicit_resolvers.items()
}


def read_document(path: Path, shown: str, named_by: str) -> Document:
    """The settings of a YAML or JSON file.

    Args:
        named_by: who asks for the file, for the message when it is not there.

    Raises:
        XlError: the file is missing, unreadable, not UTF-8, not YAML or JSON, or not a mapping.
    """
    return parse_document(read_text(path, shown, named_by), path, shown)


def parse_document(text: str, path: Path, shown: str) -> Document:
    """The settings of a text that is, or is to become, the content of a file."""
    is_json = path.suffix == ".json"
    if is_json:
        _check_json(text, shown)
        text = text.replace("\t", " ")
    return Document(path, shown, _Tree(shown, is_json).read(text))


def compose(text: str) -> Node | None:
    """The YAML nodes of a text that was read before, with the place of each in it."""
    loader = _Loader(text)
    try:
        return loader.get_single_node()
    finally:
        loader.dispose()


def read_text(path: Path, shown: str, named_by: str) -> str:
    """The text of a UTF-8 file."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise XlError(
            f"{shown} does not exist",
            f"{named_by} names it",
            "correct the path; xl config list shows profiles",
        ) from None
    except OSError as error:
        raise XlError(
            f"{shown} cannot be read: {error.strerror}", f"{named_by} names it", "name a file you can read"
        ) from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise XlError(
            f"{shown}:{line} is not UTF-8",
            f"byte 0x{raw[error.start]:02x} is no text",
            "save the file as UTF-8",
        ) from None


def _check_json(text: str, shown: str) -> None:
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        raise XlError(
            f"{shown}:{error.lineno} is not JSON",
            f"{error.msg} (column {error.colno})",
            "correct that line, or name the file .yaml if it is YAML",
        ) from None
    except RecursionError:
        raise XlError(
            f"{shown} is not a settings file", "it is nested too deeply", "name another file"
        ) from None


class _Tree:
    """Turns a composed document into entries; the one place that knows YAML's nodes."""

    def __init__(self, shown: str, is_json: bool) -> None:
        self.shown, self.is_json, self.nodes = shown, is_json, 0

    def read(self, text: str) -> dict[str, Entry]:
        try:
            loader = _Loader(text)
            try:
                node = loader.get_single_node()
                if node is None:
                    return {}
                if not isinstance(node, MappingNode):
                    raise self._error(
                        node, "is not a mapping of settings", "a file holds lines such as 'seed: 1'"
                    )
                return self._mapping(loader, node)
            finally:
                loader.dispose()
        except yaml.MarkedYAMLError as error:
            raise self._syntax(error) from None
        except yaml.YAMLError as error:
            raise XlError(
                f"{self.shown} is not YAML", str(error).split("\n")[0], "save it as plain text"
            ) from None
        except RecursionError:
            raise XlError(
                f"{self.shown} is not a settings file", "it is nested too deeply", "name another file"
            ) from None

    def _mapping(self, loader: _Loader, node: MappingNode) -> dict[str, Entry]:
        self._check_duplicates(node)
        loader.flatten_mapping(node)
        entries: dict[str, Entry] = {}
        for key, value in cast("list[tuple[Node, Node]]", node.value):
            if not isinstance(key, ScalarNode):
                raise self._error(
                    key, "has a key that is not text", "write a setting's name before the colon"
                )
            entries[str(key.value)] = Entry(self._value(loader, value), _line(key))
        return entries

    def _check_duplicates(self, node: MappingNode) -> None:
        lines: dict[str, int] = {}
        for key, _ in cast("list[tuple[Node, Node]]", node.value):
            if not isinstance(key, ScalarNode):
                continue
            name = str(key.value)
            if name in lines:
                raise self._error(
                    key,
                    f"sets {name} a second time",
                    f"line {lines[name]} sets it already; keep one of the two",
                )
            lines[name] = _line(key)

    def _value(self, loader: _Loader, node: Node) -> object:
        if node.tag not in _TAGS:
            raise self._error(node, f"has the tag {node.tag}", "write the value without a tag")
        self.nodes += 1
        if self.nodes > _MOST_NODES:
            raise self._error(node, "holds too many values", "a settings file has at most a few hundred")
        if isinstance(node, MappingNode):
            return self._mapping(loader, node)
        if isinstance(node, SequenceNode):
            return [self._value(loader, item) for item in cast("list[Node]", node.value)]
        value: object = cast("Any", loader).construct_object(node)
        if self.is_json and isinstance(value, str):
            # JSON writes characters beyond 16 bits as two escapes, which YAML leaves apart.
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return value

    def _error(self, node: Node, what: str, fix: str) -> XlError:
        return XlError(f"{self.shown}:{_line(node)} {what}", "settings are keys with values", fix)

    def _syntax(self, error: yaml.MarkedYAMLError) -> XlError:
        mark = error.problem_mark or error.context_mark
        where = f"{self.shown}:{mark.line + 1}" if mark else self.shown
        problem = error.problem or "it cannot be read"
        if "\\t" in problem:
            return XlError(
                f"{where} is indented with a tab", "YAML allows spaces only", "replace the tab with spaces"
            )
        context = f"{error.context}, " if error.context else ""
        return XlError(f"{where} is not YAML", f"{context}{problem}", "correct that line")


def _line(node: Node) -> int:
    return node.start_mark.line + 1


def profile_text(values: Mapping[str, object], header: str = "", *, as_json: bool = False) -> str:
    """A profile file's text.

    Args:
        values: settings by dotted or nested key.
        header: comment lines put first (YAML only).
    """
    nested: dict[str, object] = {"schema_version": SCHEMA_VERSION}
    for name, value in values.items():
        head, dot, rest = name.partition(".")
        if dot:
            cast("dict[str, object]", nested.setdefault(head, {}))[rest] = _writable(value)
        else:
            nested[head] = _writable(value)
    if as_json:
        return json.dumps(nested, indent=2) + "\n"
    comment = "".join(f"# {line}\n" if line else "#\n" for line in header.splitlines())
    return comment + dump_yaml(nested)


def dump_yaml(value: object, *, flow: bool = False) -> str:
    """The value as YAML text; `flow` keeps it on one line."""
    text: str = _untyped.dump(
        _writable(value),
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=flow,
        width=2**30 if flow else 80,
    )
    return text


def _writable(value: object) -> object:
    if isinstance(value, Mapping):
        return {name: _writable(inner) for name, inner in cast("Mapping[str, object]", value).items()}
    return list(cast("tuple[object, ...]", value)) if isinstance(value, tuple) else value


def write_profile(path: Path, values: Mapping[str, object], header: str = "") -> None:
    """Write a profile file in one step; YAML, or JSON where the name says so."""
    write_atomic(path, profile_text(values, header, as_json=path.suffix == ".json"))
