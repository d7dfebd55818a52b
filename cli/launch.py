"""`xl launch`: run a training script on one or many processes."""

from __future__ import annotations

from pathlib import Path

import click

from ..configs.env import read_environ
from ..configs.resolve import resolve
from .launch_options import LaunchCommand, collect_flags, launch_options


@click.command(cls=LaunchCommand)
@launch_options
@click.pass_context
def launch(
    ctx: click.Context,
    script: str,
    script_args: tuple[str, ...],
    module: bool,
    no_python: bool,
    dry_run: bool,
    quiet: bool,
    explain_split: bool,
    profile: str | None,
    config_file: str | None,
) -> int:
    """Run SCRIPT with its ARGS as it is, on the processes that the settings ask for."""
    resolved = resolve(collect_flags(ctx), read_environ(), Path.cwd(), profile, config_file)
    for name, value in resolved.values.items():
        if value.origin.kind != "default":
            click.echo(f"{name}: {value.value}  ({value.origin.place})")
    click.echo(f"settings: {resolved.label}; {script} {script_args}")
    return 0
