"""`xl config list`: the user's profiles and the presets, with what each is for."""

from __future__ import annotations

import shutil
import textwrap
from pathlib import Path

import click

from ...configs import paths
from ...configs.env import read_environ


@click.command("list")
def list_profiles() -> None:
    """List your profiles, the active one marked with *, and the presets."""
    environ = read_environ()
    active = paths.active_profile(environ)
    own, shipped = paths.user_profiles(environ), paths.presets()
    click.echo("Profiles:" if own else "Profiles: none yet; xl config writes one")
    _print(own, active)
    click.echo("Presets:")
    _print({name: path for name, path in shipped.items() if name not in own}, active)
    if active and active not in own and active not in shipped:
        click.echo(
            f"The active profile {active} does not exist; xl config use NAME chooses another.", err=True
        )


def _print(found: dict[str, Path], active: str | None) -> None:
    width = max(map(len, found), default=0)
    for name, path in found.items():
        mark = "*" if name == active else " "
        head = f"{mark} {name:{width}}  "
        columns = min(shutil.get_terminal_size().columns, 100)
        lines = textwrap.wrap(_purpose(path), max(columns - len(head), 20), break_on_hyphens=False)
        click.echo((head + f"\n{' ' * len(head)}".join(lines)).rstrip())


def _purpose(path: Path) -> str:
    """The comment on the file's first line."""
    try:
        with path.open(encoding="utf-8") as file:
            first = file.readline()
    except (OSError, UnicodeDecodeError):
        return "(cannot be read)"
    return first.lstrip("#").strip() if first.startswith("#") else ""
