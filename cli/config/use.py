"""`xl config use`: choose the profile that launches use when none is named."""

from __future__ import annotations

import click

from ...configs import paths
from ...configs.env import read_environ
from ...configs.errors import XlError
from ..given import given


@click.command()
@click.argument("name", required=False, callback=given)
@click.option("--none", "nothing", is_flag=True, help="Have no active profile.")
def use(name: str | None, nothing: bool) -> None:
    """Make the profile or preset NAME the active one."""
    environ = read_environ()
    if (name is None) == (not nothing):
        raise XlError(
            "say which profile to use", "one of NAME and --none is needed", "xl config list shows the names"
        )
    if name is None:
        paths.set_active(environ, None)
        click.echo("No profile is active.")
        return
    path = paths.find_profile(environ, name, "xl config use")
    paths.set_active(environ, name)
    click.echo(f"{name} is active: {path}")
