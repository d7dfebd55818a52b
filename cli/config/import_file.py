"""`xl config import`: make a profile of an Accelerate or DeepSpeed file, and say what became of every key."""

from __future__ import annotations

from pathlib import Path

import click

from ...configs import accelerate_file, deepspeed_file, paths
from ...configs.accelerate_file import Row
from ...configs.env import read_environ
from ...configs.errors import XlError, raise_all
from ...configs.files import Document, flatten, read_document, write_profile


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--name", metavar="NAME", help="Name of the profile; default: the file's name.")
@click.option("--overwrite", "--force", "force", is_flag=True, help="Replace a profile of that name.")
def import_file(file: Path, name: str | None, force: bool) -> None:
    """Write the settings of FILE as a profile and report every key of it."""
    environ, cwd = read_environ(), Path.cwd()
    document = read_document(cwd / file, paths.shown(cwd / file, cwd), "xl config import")
    target = paths.profile_path(environ, name or file.stem)
    if target.exists() and not force:
        raise XlError(
            f"there is a profile {target.stem} already",
            f"it is {target}",
            "pass --name NAME, or --overwrite to replace it",
        )
    values, rows, problems = _read(document)
    for row in rows:
        click.echo(f"{row.status:8} {document.shown}:{row.line}  {row.key}: {row.text}")
    raise_all(problems)
    write_profile(target, values, f"Taken over from {file.name}.")
    click.echo(f"{target} is written; xl config use {target.stem} makes it the active profile")


def _read(document: Document) -> tuple[dict[str, object], list[Row], list[XlError]]:
    if accelerate_file.is_accelerate(document):
        reading = accelerate_file.read(document)
        values = {key: entry.value for key, entry in reading.values.items()}
        return values, reading.rows, reading.problems
    if deepspeed_file.is_deepspeed(document):
        return _deepspeed(document)
    raise XlError(
        f"{document.shown} is neither an Accelerate nor a DeepSpeed file",
        "it has none of the keys by which those are known",
        f"xl launch --config-file {document.shown} uses a file of xl's own",
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
