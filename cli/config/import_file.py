"""`xl config import`: make a profile of an Accelerate or DeepSpeed file, and say what became of every key."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import click

from ...configs import accelerate_file, deepspeed_file, foreign, paths
from ...configs.accelerate_file import Row
from ...configs.documents import Document, flatten, plain
from ...configs.env import read_environ
from ...configs.errors import XlError, raise_all
from ...configs.files import read_document, write_profile
from ...configs.resolve import check_document
from ...configs.unbuilt import launch_note
from ..given import given

_FILES = ("config_file", "hostfile")
"""Endings of the settings that name a file."""


@click.command("import")
@click.argument("file", callback=given)
@click.option("--name", metavar="NAME", callback=given, help="Name of the profile; default: the file's name.")
@click.option("--overwrite", "--force", "force", is_flag=True, help="Replace a profile of that name.")
def import_file(file: str, name: str | None, force: bool) -> None:
    """Write the settings of FILE as a profile and report every key of it."""
    environ, cwd = read_environ(), Path.cwd()
    document = read_document(cwd / file, paths.shown(cwd / file, cwd), "xl config import")
    target = paths.profile_path(environ, name or Path(file).stem)
    if target.stem in paths.presets() and not target.exists():
        raise paths.hides_preset(target.stem, "pass --name NAME")
    if target.exists() and not force:
        raise XlError(
            f"there is a profile {target.stem} already",
            f"importing {document.shown} would replace {target}",
            "pass --name NAME, or --overwrite to replace it",
        )
    base = _base(document, cwd)
    values, rows, problems = _read(document, environ, base)
    for row in rows:
        click.echo(f"{row.status:8} {document.shown}:{row.line}  {_told(row)}")
    raise_all(problems)
    write_profile(target, _found(values, base), f"Taken over from {document.path.name}.")
    click.echo(f"{target} is written; xl config use {target.stem} makes it the active profile")
    note = launch_note(values)
    if note:
        click.echo(f"note: {note}")


def _told(row: Row) -> str:
    """The row's text, which begins with the key's name in xl's words: said once where it is the same."""
    if row.status != "mapped":
        return f"{row.key}: {row.text}"
    return row.text if row.text.startswith(f"{row.key}: ") else f"{row.key} -> {row.text}"


def _base(document: Document, cwd: Path) -> Path:
    """The folder that the file's relative paths count from: its own if they are there, as people keep them.

    Accelerate counts them from wherever it is started; a profile is used from anywhere.
    """
    folder = (cwd / document.path).parent
    named = [plain(entry) for name, entry in flatten(document.entries) if name.endswith(_FILES)]
    here = any(isinstance(name, str) and (folder / name).is_file() for name in named)
    return folder.resolve() if here else cwd


def _found(values: Mapping[str, object], base: Path) -> dict[str, object]:
    """The settings, with files named by where they are, so that a launch from anywhere finds them."""
    written = dict(values)
    for name, value in values.items():
        if name.endswith(_FILES) and isinstance(value, str):
            written[name] = os.path.abspath(base / value)
    return written


def _read(
    document: Document, environ: Mapping[str, str], base: Path
) -> tuple[dict[str, object], list[Row], list[XlError]]:
    if foreign.is_accelerate(document):
        reading = accelerate_file.read(document)
        values = {key: entry.value for key, entry in reading.values.items()}
        problems, _ = check_document(document, environ, base)  # what a launch would say, before it is written
        return values, reading.rows, problems
    if foreign.is_deepspeed(document):
        return _deepspeed(document)
    raise XlError(
        f"{document.shown} is neither an Accelerate nor a DeepSpeed file",
        "it has none of the keys by which those are known, such as distributed_type or zero_optimization",
        f"if it holds settings of xl, xl launch --config-file {document.shown} takes it as it is",
    )


def _deepspeed(document: Document) -> tuple[dict[str, object], list[Row], list[XlError]]:
    """A DeepSpeed file stays the one place of its numbers; the profile only names it."""
    found, problems = deepspeed_file.settings(document)
    shared = {value.origin.place.rpartition("(")[2].rstrip(")"): key for key, value in found.items()}
    rows = [
        Row(name, entry.line, "mapped", f"read as {shared[name]}" if name in shared else "left to DeepSpeed")
        for name, entry in flatten(document.entries)
    ]
    return {"backend": "deepspeed", "deepspeed.config_file": str(document.path.resolve())}, rows, problems
