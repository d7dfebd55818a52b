"""Changes or removes one setting in a settings file's text; other lines, comments too, stay as they are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import cast

from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from .documents import Document, flatten, plain
from .errors import XlError
from .files import compose, dump_yaml, parse_document
from .keys import canonical


def set_value(text: str, document: Document, key: str, value: object) -> str:
    """The file's text with that setting changed or added.

    Raises:
        XlError: the file is written in a way that cannot be changed line by line, as with YAML's aliases.
    """
    if document.path.suffix == ".json":
        return _set_json(text, document, key, value)
    root = compose(text)
    changed = _set_in_yaml(text, root, key, value)
    wanted = _settings(document) | {key: _listed(value)}
    if "." in key:
        # A section without a setting of its own counts as a value; it has one now.
        wanted.pop(key.partition(".")[0], None)
    try:
        found = _settings(parse_document(changed, document.path, document.shown))
    except XlError:
        found = None
    if found != wanted:
        by_hand = f"{key.replace('.', ': {', 1)}: {_inline(value)}{'}' if '.' in key else ''}"
        raise _by_hand(f"{key} cannot be changed in {document.shown}", f"edit it by hand: {by_hand}")
    return changed


def unset_value(text: str, document: Document, key: str) -> str:
    """The file's text without that setting, or without all settings of that section.

    Raises:
        XlError: the file is written in a way that cannot be changed line by line, as with YAML's aliases.
    """
    if document.path.suffix == ".json":
        settings = cast("dict[str, object]", json.loads(text))
        return json.dumps(_without(settings, key), indent=2, ensure_ascii=False) + "\n"
    changed = _unset_in_yaml(text, compose(text), key)
    wanted = {
        name: it for name, it in _settings(document).items() if name != key and not name.startswith(f"{key}.")
    }
    try:
        found = _settings(parse_document(changed, document.path, document.shown))
    except XlError:
        found = None
    if found != wanted:
        raise _by_hand(f"{key} cannot be taken out of {document.shown}", "remove its line by hand")
    return changed


def _by_hand(what: str, fix: str) -> XlError:
    return XlError(what, "the file is written in a way that xl cannot change line by line", fix)


def _without(settings: dict[str, object], key: str, prefix: str = "") -> dict[str, object]:
    """The mapping without that setting; a section that had no other goes with it."""
    kept: dict[str, object] = {}
    for name, value in settings.items():
        full = canonical(prefix + name)
        if full == key:
            continue
        if isinstance(value, dict) and key.startswith(f"{full}."):
            value = _without(cast("dict[str, object]", value), key, f"{full}.")
            if not value:
                continue
        kept[name] = value
    return kept


def _unset_in_yaml(text: str, node: Node | None, key: str, prefix: str = "") -> str:
    pairs = _pairs(node)
    for at, (name, value) in enumerate(pairs):
        full = canonical(prefix + str(name.value))
        if full == key or (key.startswith(f"{full}.") and len(_pairs(value)) == 1):
            return _cut(text, node, pairs, at)
        if key.startswith(f"{full}."):
            return _unset_in_yaml(text, value, key, f"{full}.")
    return text


def _cut(text: str, node: Node | None, pairs: list[tuple[Node, Node]], at: int) -> str:
    """The text without one entry of a mapping: its lines, or, inside braces, its words."""
    name, value = pairs[at]
    start, end = name.start_mark.index, _end(value)
    if isinstance(node, MappingNode) and node.flow_style:
        if at + 1 < len(pairs):
            return text[:start] + text[pairs[at + 1][0].start_mark.index :]
        return text[: _end(pairs[at - 1][1]) if at else start] + text[end:]
    # A text written as a block, and an empty value, end behind their line.
    end = max(len(text[:end].rstrip()), start)
    following = text.find("\n", end)
    return text[: text.rfind("\n", 0, start) + 1] + (text[following + 1 :] if following >= 0 else "")


def _listed(value: object) -> object:
    return list(cast("tuple[object, ...]", value)) if isinstance(value, tuple) else value


def _settings(document: Document) -> dict[str, object]:
    return {canonical(name): plain(entry) for name, entry in flatten(document.entries)}


def _set_json(text: str, document: Document, key: str, value: object) -> str:
    settings = cast("dict[str, object]", json.loads(text)) if document.entries else {}
    head, dot, rest = key.partition(".")
    for section in [name for name in settings if canonical(name) == head]:
        head = section
    if dot:
        inner = settings.get(head)
        section = cast("dict[str, object]", inner) if isinstance(inner, dict) else {}
        settings[head] = {name: it for name, it in section.items() if canonical(f"{head}.{name}") != key} | {
            rest: value
        }
    else:
        settings[head] = value
    return json.dumps(settings, indent=2, ensure_ascii=False) + "\n"


def _set_in_yaml(text: str, root: Node | None, key: str, value: object) -> str:
    head, dot, rest = key.partition(".")
    found = _find(root, head)
    if not dot:
        return (
            _replace(text, found, _inline(value))
            if found
            else _append(text, root, f"{head}: {_inline(value)}")
        )
    line = f"{rest}: {_inline(value)}"
    if found is None:
        return _append(text, root, f"{head}:\n  {line}")
    if isinstance(found, MappingNode) and found.value:
        inner = _find(found, rest, head)
        return _replace(text, inner, _inline(value)) if inner else _insert(text, found, line)
    return _replace(text, found, f"\n  {line}")


def _find(node: Node | None, name: str, section: str = "") -> Node | None:
    """The value of that key in a mapping."""
    prefix = f"{section}." if section else ""
    for key, value in _pairs(node):
        if isinstance(key, ScalarNode) and canonical(prefix + str(key.value)) == prefix + name:
            return value
    return None


def _pairs(node: Node | None) -> list[tuple[Node, Node]]:
    return cast("list[tuple[Node, Node]]", node.value) if isinstance(node, MappingNode) else []


def _inline(value: object) -> str:
    """The value on one line, quoted as inside brackets, which is right outside of them, too."""
    return dump_yaml([value], flow=True).strip()[1:-1]


def _replace(text: str, node: Node, new: str) -> str:
    start, end = node.start_mark.index, _end(node)
    if start == end or new.startswith("\n"):
        # An empty value has no place of its own: it stands right behind the colon.
        return text[:start].rstrip(" ") + (new if new.startswith("\n") else f" {new}") + text[end:]
    # A text written as a block ends behind its last line break.
    return text[:start] + new + text[len(text[:end].rstrip()) :]


def _insert(text: str, section: MappingNode, line: str) -> str:
    """Add a line to a section, below its last one."""
    if section.flow_style:
        start = section.start_mark.index + 1
        return f"{text[:start]}{line}, {text[start:]}"
    at = text.find("\n", _end(section))
    at = len(text) if at < 0 else at
    indent = " " * _pairs(section)[0][0].start_mark.column
    return f"{text[:at]}\n{indent}{line}{text[at:]}"


def _append(text: str, root: Node | None, line: str) -> str:
    if isinstance(root, MappingNode) and root.flow_style:
        return f"{text[: root.start_mark.index + 1]}{line}, {text[root.start_mark.index + 1 :]}"
    return f"{text}{'' if text.endswith(chr(10)) or not text else chr(10)}{line}\n"


def _end(node: Node) -> int:
    """Where the node's own text ends; a block's mark would lie behind the comments that follow it."""
    ends = [_end(child) for child in _children(node)]
    is_block = isinstance(node, (MappingNode, SequenceNode)) and not node.flow_style
    return max(ends) if is_block and ends else node.end_mark.index


def _children(node: Node) -> Iterator[Node]:
    if isinstance(node, SequenceNode):
        yield from cast("list[Node]", node.value)
    for key, value in _pairs(node):
        yield key
        yield value
