"""`xl config explain`: where each setting comes from, and what it won against."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import click

from ...configs.env import read_environ
from ...configs.errors import XlError, raise_all
from ...configs.keys import canonical, sections, unknown_key
from ...configs.layers import Value, printed
from ...configs.resolve import resolve
from ..launch_options import SettingsCommand, collect_flags, setting_options


@click.command(cls=SettingsCommand)
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@setting_options
@click.option("--all", "everything", is_flag=True, help="Also show settings that nobody sets.")
@click.pass_context
def explain(
    ctx: click.Context, keys: tuple[str, ...], everything: bool, profile: str | None, config_file: str | None
) -> None:
    """Say where the value of each KEY, or of every setting that is set, comes from and what it won against.

    Takes the flags of xl launch, so that you can ask what would win.
    """
    resolved = resolve(collect_flags(ctx), read_environ(), Path.cwd(), profile, config_file)
    chosen = _chosen(resolved.values, keys, everything)
    for name, value in chosen.items():
        for line in _lines(name, value):
            click.echo(line)
    if not chosen:
        click.echo("Nobody sets anything: defaults and the machine decide. --all shows the defaults.")
    click.echo(f"Settings from: {resolved.label}")
    for warning in resolved.warnings:
        click.echo(f"warning: {warning}", err=True)


def _chosen(values: Mapping[str, Value], keys: tuple[str, ...], everything: bool) -> dict[str, Value]:
    if not keys:
        return {
            name: it for name, it in values.items() if everything or it.origin.kind != "default" or it.losers
        }
    chosen: dict[str, Value] = {}
    problems: list[XlError] = []
    for key in map(canonical, keys):
        found = {name: it for name, it in values.items() if name == key or name.startswith(f"{key}.")}
        if not found and key not in sections():
            problems.append(unknown_key(key, "xl config explain"))
        chosen |= found
    raise_all(problems)
    return chosen


def _lines(name: str, value: Value) -> Iterator[str]:
    yield f"{name} = {printed(value.value)}  ({value.origin.place})"
    for loser in value.losers:
        yield f"    over {printed(loser.value)}  ({loser.origin.place})"
