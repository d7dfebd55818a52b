"""`xl config path`: where settings are kept."""

from __future__ import annotations

from pathlib import Path

import click

from ...configs import paths
from ...configs.env import read_environ
from ...configs.project import find_project_file


@click.command()
def path() -> None:
    """Print the config folder, the active profile's file and the project file."""
    environ = read_environ()
    home, active = paths.config_home(environ), paths.active_profile(environ)
    project = find_project_file(Path.cwd())
    click.echo(f"config folder:  {home or 'none (HOME is not set)'}")
    found = paths.find_profile(environ, active, "xl config use") if active else "none"
    click.echo(f"active profile: {found}")
    click.echo(f"project file:   {project.path if project else 'none'}")
