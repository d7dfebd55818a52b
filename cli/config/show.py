"""`xl config show`: the settings files in use, as they are written."""

from __future__ import annotations

from pathlib import Path

import click

from ...configs import paths
from ...configs.documents import flatten, plain
from ...configs.env import read_environ
from ...configs.errors import XlError
from ...configs.project import find_project_file
from ...configs.unbuilt import launch_note
from ..given import given


@click.command()
@click.argument("name", required=False, callback=given)
def show(name: str | None) -> None:
    """Print a profile or preset, or, without NAME, every file that a launch here would read."""
    environ, cwd = read_environ(), Path.cwd()
    if name is not None:
        _print(paths.find_profile(environ, name, "xl config show"), f"profile {name}")
        return
    shown = False
    project = find_project_file(cwd)
    if project:
        _print(project.path, f"project file ({project.refusal})" if project.refusal else "project file")
        shown = True
    active = paths.active_profile(environ)
    if active:
        _print(paths.find_profile(environ, active, "xl config use"), f"active profile {active}")
        shown = True
    if not shown:
        click.echo("No profile is active and there is no xl.yaml: defaults and the machine decide.")
        click.echo("Type xl config to write a profile.")


def _print(path: Path, title: str) -> None:
    click.echo(f"# {title}: {path}")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise XlError(
            f"{path} cannot be read", str(error), "repair the file, or choose another profile"
        ) from None
    click.echo(text.rstrip("\n"))
    _warn(text, path)


def _warn(text: str, path: Path) -> None:
    """Say what is written there and a launch would refuse; what else is wrong with it, `validate` finds."""
    from ...configs.files import parse_document  # imports yaml

    try:
        entries = parse_document(text, path, str(path)).entries
    except XlError as error:
        click.echo(f"warning: {error.what}; xl config validate says more", err=True)
        return
    note = launch_note({name.replace("-", "_"): plain(entry) for name, entry in flatten(entries)})
    if note:
        click.echo(f"warning: {note}", err=True)
