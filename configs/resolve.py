"""The one resolver: every source of settings in one order, each value with its origin and its losers.

The order, highest first: flag, `XL_*` variable, profile or file named on the command line, project file
`xl.yaml`, the user's active profile (when no other was named), preset, default. Sections merge key by key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from . import consistency, paths
from .documents import Document
from .errors import XlError, raise_all
from .keys import all_keys, nest
from .layers import Layer, Origin, OriginKind, Value, printed
from .profile import Profile, make_profile
from .project import find_project_file
from .sources import Sources
from .unbuilt import launch_note
from .variables import variables_layer

_RANKS = {kind: rank for rank, kind in enumerate(get_args(OriginKind))}
_DEFAULT = Origin("default", "default")


@dataclass(frozen=True, slots=True)
class Resolved:
    """What a launch will do, and who said so.

    Args:
        values: every setting by its dotted key, with origin and losers; `env.NAME` for each variable.
        label: one line naming the files, profiles and presets in use; `none` if there are none.
        warnings: what the user should know, in whole sentences.
    """

    profile: Profile
    values: Mapping[str, Value]
    label: str
    warnings: tuple[str, ...]


def resolve(
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    cwd: Path,
    profile: str | None = None,
    config_file: str | None = None,
) -> Resolved:
    """The settings of a launch.

    Args:
        flags: typed values by dotted key, only of flags that were typed; None asks for the default.
        environ: a snapshot of the environment.
        cwd: working directory; relative paths count from it.
        profile: name of a profile or preset named on the command line.
        config_file: settings file named on the command line.

    Raises:
        XlError: with every problem of every source at once.
    """
    cwd = cwd.resolve()
    sources = Sources(environ, cwd)
    layers = [
        sources.flags(flags),
        variables_layer(environ, sources.problems),
        *_named(sources, profile, config_file),
        *_project(sources),
    ]
    if not any(layer.kind == "file" for layer in layers):  # a profile named here stands for the active one
        layers += _active(sources)
    layers += _preset(sources, layers)
    raise_all(sources.problems)
    values = merge(layers)
    _warn_of_overruled_preset(layers, values, sources.warnings)
    problems, warnings = consistency.settle(values, _RANKS, cwd)
    raise_all(problems)
    return Resolved(
        profile=make_profile(nest(_wanted(values))),
        values=values,
        label=" + ".join(_labels(layers)) or "none",
        warnings=(*sources.warnings, *warnings),
    )


def check_document(
    document: Document, environ: Mapping[str, str], cwd: Path
) -> tuple[list[XlError], list[str]]:
    """What is wrong with a settings file on its own, and what should be known about it."""
    sources = Sources(environ, cwd)
    layer = sources.document(document, "file", document.shown)
    layers = [layer, *_preset(sources, [layer])]
    if sources.problems:
        return sources.problems, sources.warnings
    values = merge(layers)
    problems, warnings = consistency.settle(values, _RANKS, cwd)
    note = launch_note({name: found.value for name, found in values.items()})
    return problems, [*sources.warnings, *warnings, *([note] if note else [])]


def _named(sources: Sources, profile: str | None, config_file: str | None) -> Iterable[Layer]:
    """The profile or file named on the command line, else by a variable."""
    named = {"--profile": profile, "--config-file": config_file}
    if profile is None and config_file is None:  # an empty variable is one that is not set
        named = {name: sources.environ.get(name) or None for name in ("XL_PROFILE", "XL_CONFIG_FILE")}
    given = {place: value for place, value in named.items() if value is not None}
    if len(given) == 2:
        one, other = given
        sources.problems.append(
            XlError(
                "a profile and a file are both named",
                f"{one} names {given[one]}, {other} names {given[other]}",
                "name one of the two",
            )
        )
        return ()
    for place, value in given.items():
        layer = _named_layer(sources, place, value)
        return (layer,) if layer else ()
    return ()


def _named_layer(sources: Sources, place: str, value: str) -> Layer | None:
    if place in ("--config-file", "XL_CONFIG_FILE"):
        return sources.file(sources.cwd / value, "file", place)
    try:
        path = paths.find_profile(sources.environ, value, place)
    except XlError as problem:
        sources.problems.append(problem)
        return None
    return sources.file(path, "file", place, f"profile {value}")


def _project(sources: Sources) -> Iterable[Layer]:
    found = find_project_file(sources.cwd)
    layer = sources.project(found) if found else None
    return (layer,) if layer else ()


def _active(sources: Sources) -> Iterable[Layer]:
    try:
        name = paths.active_profile(sources.environ)
        if name is None:
            return ()
        path = paths.find_profile(sources.environ, name, "xl config use")
    except XlError as problem:
        sources.problems.append(problem)
        return ()
    layer = sources.file(path, "profile", "xl config use", f"active profile {name}")
    return (layer,) if layer else ()


def _preset(sources: Sources, layers: Sequence[Layer]) -> Iterable[Layer]:
    """The preset that the highest source names."""
    wanted = next((layer.values["preset"] for layer in layers if "preset" in layer.values), None)
    if wanted is None or wanted.value is None:
        return ()
    try:
        path = paths.find_preset(str(wanted.value), wanted.origin.place)
    except XlError as problem:
        sources.problems.append(problem)
        return ()
    layer = sources.file(path, "preset", wanted.origin.place, f"preset {wanted.value}")
    if layer is None:
        return ()
    place = Origin("preset", layer.label)
    return (Layer("preset", layer.label, {key: Value(it.value, place) for key, it in layer.values.items()}),)


def merge(layers: Sequence[Layer]) -> dict[str, Value]:
    """Every setting with its winner; layers come highest first. A None asks for the default."""
    merged = {name: Value(key.default, _DEFAULT) for name, key in all_keys().items() if key.kind != "mapping"}
    for layer in reversed(layers):
        if "env" in layer.values:
            merged = {name: value for name, value in merged.items() if not name.startswith("env.")}
        for name, found in layer.values.items():
            if name == "env":
                continue
            below = merged.get(name)
            losers = (Value(below.value, below.origin), *below.losers) if below else ()
            key = all_keys().get(name)
            value = key.default if found.value is None and key else found.value
            merged[name] = Value(value, found.origin, losers)
    return merged


def _wanted(values: Mapping[str, Value]) -> dict[str, object]:
    """What the profile is built from; a None is its own default, or a variable taken back."""
    return {name: found.value for name, found in values.items() if found.value is not None}


def _labels(layers: Iterable[Layer]) -> list[str]:
    return [layer.label for layer in layers if layer.kind in ("file", "project", "profile", "preset")]


def _warn_of_overruled_preset(
    layers: Sequence[Layer], values: Mapping[str, Value], warnings: list[str]
) -> None:
    """A preset ranks below every file, which surprises who names one on the command line."""
    preset = next((layer for layer in layers if layer.kind == "preset"), None)
    named = values["preset"]
    if preset is None:
        return
    for name, asked in preset.values.items():
        winner = values[name]
        if winner.value != asked.value and _RANKS[winner.origin.kind] > _RANKS[named.origin.kind]:
            warnings.append(
                f"{preset.label} ({named.origin.place}) asks for {name}={printed(asked.value)}, but "
                f"{winner.origin.place} says {printed(winner.value)} and ranks higher; "
                + _way_out(winner.origin, str(named.value))
            )


def _way_out(winner: Origin, preset: str) -> str:
    """What makes the preset's value hold."""
    if winner.kind == "variable":
        return f"unset {winner.place} to have the preset's"
    if winner.kind == "file":
        return f"pass --profile {preset} and name no other file"
    return f"--profile {preset} ranks above both"
