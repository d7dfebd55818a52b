"""Which settings files a launch from here would use, as written, and what a launch would say of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..configs import paths
from ..configs.documents import flatten, plain
from ..configs.env import OWN_VARIABLES
from ..configs.errors import XlError, XlErrors
from ..configs.project import find_project_file
from ..launcher.findings import Finding, Wishes
from ..launcher.hardware.variables import masked


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """One file of settings.

    Args:
        role: active profile, project file, ...
        name: of the profile or preset; empty for a file without one.
        path: where it is; empty where it could not be found.
        named_by: what makes a launch read it.
        values: its settings by dotted key, unchecked.
        problem: why it cannot be used; None if it can.
    """

    role: str
    name: str
    path: str
    named_by: str
    values: Mapping[str, object] = field(default_factory=dict[str, object])
    problem: str | None = None


def settings_files(environ: Mapping[str, str], cwd: Path) -> tuple[SettingsFile, ...]:
    """The files that a launch from here would read, those that win first."""
    found = [*_named_by_variable(environ, cwd), *_project(cwd), *_active(environ)]
    preset = next((str(file.values["preset"]) for file in found if file.values.get("preset")), None)
    if preset:
        found.append(_profile(environ, "preset", preset, "preset"))
    return tuple(found)


def wishes_of(files: tuple[SettingsFile, ...]) -> Wishes | None:
    """What the files together ask of this machine; None without any file."""
    values: dict[str, object] = {}
    for file in reversed(files):
        values.update(file.values)
    usable = [file for file in files if file.problem is None]
    if not usable:
        return None
    machines = _whole(values.get("num_machines")) or 1
    total = _whole(values.get("num_processes"))
    return Wishes(
        origin=f"the {usable[0].role} {usable[0].name or usable[0].path}".strip(),
        processes_here=_whole(values.get("num_processes_per_machine"))
        or (-(-total // machines) if total else None),
        gpu_ids=str(values["gpu_ids"]) if values.get("gpu_ids") is not None else None,
        cpu=cpu if isinstance(cpu := values.get("cpu"), bool) else None,
        mixed_precision=str(values.get("mixed_precision") or "no"),
        num_machines=machines,
    )


def settings_findings(
    environ: Mapping[str, str], cwd: Path, files: tuple[SettingsFile, ...]
) -> Iterator[Finding]:
    """What a launch from here would refuse or ignore of the settings in these files and `XL_*` variables."""
    project = find_project_file(cwd)
    if project and project.why_not:
        what = f"{project.path} is ignored"
        yield Finding("project-file-ignored", "warning", what, project.why_not, project.fix)
    if not files and not _says_anything(environ):
        return
    from ..configs.resolve import resolve
    from ..configs.unbuilt import unbuilt

    try:
        resolved = resolve({}, environ, cwd)
    except XlError as error:
        problems = error.problems if isinstance(error, XlErrors) else (error,)
        for problem in problems:
            yield Finding("settings-invalid", "error", problem.what, problem.why, problem.fix)
        return
    values = {name: value.value for name, value in resolved.values.items()}
    places = {name: value.origin.place for name, value in resolved.values.items()}
    for problem in unbuilt(values, places):
        yield Finding("settings-not-launched", "warning", problem.what, problem.why, problem.fix)


def _says_anything(environ: Mapping[str, str]) -> bool:
    """Whether a variable is to be checked, for which far more has to be imported."""
    own = {*OWN_VARIABLES} - {"XL_PROFILE", "XL_CONFIG_FILE"}
    return any(name.startswith("XL_") and name not in own for name in environ)


def shown_values(file: SettingsFile) -> dict[str, object]:
    """The file's settings, secrets masked."""
    return {
        name: masked(name, value) if isinstance(value, str) else value for name, value in file.values.items()
    }


def _named_by_variable(environ: Mapping[str, str], cwd: Path) -> Iterator[SettingsFile]:
    if name := environ.get("XL_PROFILE"):
        yield _profile(environ, "profile", name, "XL_PROFILE")
    if name := environ.get("XL_CONFIG_FILE"):
        yield _read("file", "", cwd / name, "XL_CONFIG_FILE")


def _project(cwd: Path) -> Iterator[SettingsFile]:
    if project := find_project_file(cwd):
        if project.refusal:
            yield SettingsFile(
                "project file", "", str(project.path), "the working directory", {}, project.refusal
            )
        else:
            yield _read("project file", "", project.path, "the working directory")


def _active(environ: Mapping[str, str]) -> Iterator[SettingsFile]:
    try:
        name = paths.active_profile(environ)
    except XlError as error:
        yield SettingsFile("active profile", "", "", "xl config use", {}, f"{error.what}: {error.why}")
        return
    if name:
        yield _profile(environ, "active profile", name, "xl config use")


def _profile(environ: Mapping[str, str], role: str, name: str, named_by: str) -> SettingsFile:
    try:
        find = (
            paths.find_preset(name, named_by)
            if role == "preset"
            else paths.find_profile(environ, name, named_by)
        )
    except XlError as error:
        return SettingsFile(role, name, "", named_by, {}, f"{error.what}: {error.fix}")
    return _read(role, name, find, named_by)


def _read(role: str, name: str, path: Path, named_by: str) -> SettingsFile:
    from ..configs.files import read_document  # imports yaml, which nobody without files needs

    try:
        document = read_document(path, str(path), named_by)
    except XlError as error:
        return SettingsFile(role, name, str(path), named_by, {}, f"{error.what}: {error.why}")
    values = {key: plain(entry) for key, entry in flatten(document.entries) if key != "schema_version"}
    return SettingsFile(role, name, str(path), named_by, values)


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
