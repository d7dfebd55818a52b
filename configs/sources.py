"""Turns each source of settings, a file, the flags, a preset, into one layer of checked values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import cast

from . import foreign, paths, trust
from .documents import Document, Entry, flatten
from .errors import XlError
from .keys import all_keys, canonical, check, find_key, nearest_key, sections, unknown_key, variable_key
from .layers import Flags, Layer, Origin, OriginKind, Value
from .migrations import SCHEMA_VERSION, migrate
from .project import ProjectFile


@dataclass(slots=True)
class Sources:
    """Reads sources and collects what is wrong with them, so that all of it is reported at once."""

    environ: Mapping[str, str]
    cwd: Path
    problems: list[XlError] = field(default_factory=lambda: list[XlError]())
    warnings: list[str] = field(default_factory=lambda: list[str]())

    def flags(self, flags: Mapping[str, object]) -> Layer:
        """The layer of the command line."""
        layer = Layer("flag", "flags")
        places = flags.places if isinstance(flags, Flags) else {}
        for name, value in flags.items():
            known = all_keys().get(name)
            place = places.get(name) or (known.flag if known else name)
            self._add(layer, name, value, place)
        return layer

    def file(self, path: Path, kind: OriginKind, named_by: str, label: str = "") -> Layer | None:
        """The layer of a file; None when the file cannot be read."""
        from .files import read_document  # imports yaml, which a launch without files does not need

        shown = paths.shown(path, self.cwd)
        try:
            document = read_document(path, shown, named_by)
        except XlError as problem:
            self.problems.append(problem)
            return None
        return self.document(document, kind, label or shown)

    def document(self, document: Document, kind: OriginKind, label: str) -> Layer:
        """The layer of a file that was read, in xl's own form or in Accelerate's."""
        layer = Layer(kind, label)
        if foreign.is_accelerate(document):
            self._accelerate(layer, document)
        elif foreign.is_deepspeed(document):
            self.problems.append(foreign.not_settings(document))
        else:
            self._own(layer, document)
        for key, value in layer.values.items():
            layer.values[key] = self._located(key, value, document)
        return layer

    def project(self, found: ProjectFile) -> Layer | None:
        """The layer of the project file, if it may be used."""
        if found.refusal:
            self.warnings.append(found.refusal)
            return None
        layer = self.file(found.path, "project", "the project")
        doubtful = [key for key in layer.values if trust.needs_trust(key)] if layer else []
        if layer and doubtful and not trust.is_trusted(found.path, self.environ):
            places = (layer.values[key].origin.place for key in doubtful)
            self.problems += map(trust.untrusted, doubtful, places, repeat(found.path))
        return layer

    def _own(self, layer: Layer, document: Document) -> None:
        version = self._version(document)
        for written, entry in flatten(document.entries):
            if written == "schema_version":
                continue
            place = document.place(entry)
            migrated = migrate(canonical(written), version)
            if migrated.note:
                self.warnings.append(f"{place}: {migrated.note}")
            if migrated.name is None:
                continue
            if version > SCHEMA_VERSION and not _known(migrated.name):
                guess = nearest_key(migrated.name)
                hint = f"; did you mean {guess}?" if guess else ""
                self.warnings.append(f"{place}: this xl does not know {written} and ignores it{hint}")
                continue
            self._add(layer, migrated.name, entry.value, place)

    def _version(self, document: Document) -> int:
        entry = document.entries.get("schema_version", Entry(SCHEMA_VERSION, 0))
        version = entry.value
        if isinstance(version, bool) or not isinstance(version, int) or version < 1:
            self.problems.append(
                XlError(
                    f"schema_version: {version} is not a version",
                    f"{document.place(entry)} sets it",
                    f"write schema_version: {SCHEMA_VERSION}, or remove the line",
                )
            )
            return SCHEMA_VERSION
        if version > SCHEMA_VERSION:
            self.warnings.append(
                f"{document.place(entry)}: written for a newer xl (schema_version {version}, this one knows "
                f"{SCHEMA_VERSION}); settings that are new in it are ignored"
            )
        return version

    def _accelerate(self, layer: Layer, document: Document) -> None:
        from . import accelerate_file

        read = accelerate_file.read(document)
        self.problems += read.problems
        self.warnings += read.warnings
        for name, entry in read.values.items():
            self._add(layer, name, entry.value, document.place(entry))

    def _add(self, layer: Layer, name: str, value: object, place: str) -> None:
        """Add a checked value to the layer; a section's null stands for all keys of the section."""
        if name in layer.values:
            first = layer.values[name].origin.place
            self.problems.append(
                XlError(f"{name} is set twice", f"{first} and {place} set it", "keep one of the two")
            )
            return
        try:
            found = self._checked(name, value, place)
        except XlError as problem:
            self.problems.append(problem)
            return
        for key, checked in found.items():
            layer.values.setdefault(key, Value(checked, Origin(layer.kind, place)))

    def _checked(self, name: str, value: object, place: str) -> dict[str, object]:
        if name in sections():
            return _section(name, value, place)
        key = find_key(name)
        if key is None:
            raise unknown_key(name, place)
        return {name: check(key, value, place)}

    def _located(self, name: str, value: Value, document: Document) -> Value:
        """Paths in a project file count from its folder: a launch may start in any folder below."""
        key = find_key(name)
        text = value.value
        if not (key and key.path and isinstance(text, str)):
            return value
        if text.startswith("~/") and self.environ.get("HOME"):
            return Value(self.environ["HOME"] + text[1:], value.origin)
        if value.origin.kind == "project" and document.path.parent != self.cwd:
            return Value(str(document.path.parent / text), value.origin)
        return value


def _known(name: str) -> bool:
    return name in sections() or find_key(name) is not None


def _section(name: str, value: object, place: str) -> dict[str, object]:
    if isinstance(value, dict):
        texts = cast("dict[str, object]", value) if name == "env" else {}
        return {f"env.{key}": check(variable_key(key), text, place) for key, text in texts.items()}
    if value is None:
        return {key: None for key in all_keys() if key.startswith(f"{name}.")} or {name: None}
    fix = f"write the settings of {name} below it, indented"
    raise XlError(f"{name}: {value} is not a section", f"{place} sets it", fix)
