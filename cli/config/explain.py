"""`xl config explain`: where each setting comes from, and what it won against."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from ...configs.env import read_environ
from ...configs.errors import XlError, raise_all
from ...configs.keys import canonical, sections, unknown_key
from ...configs.layers import Value, printed
from ...configs.resolve import resolve
from ..given import given
from ..launch_options import SettingsCommand, collect_flags, setting_options


@click.command(cls=SettingsCommand)
@click.argument("keys", nargs=-1, callback=given, metavar="[KEY]...")
@setting_options
@click.option("--all", "everything", is_flag=True, help="Also show every setting that is not set.")
@click.pass_context
def explain(
    ctx: click.Context, keys: tuple[str, ...], everything: bool, profile: str | None, config_file: str | None
) -> None:
    """Say where the value of each KEY, or of every setting that is set, comes from and what it won against.

    A KEY is a setting (fsdp.version) or a section of them (fsdp). Takes the flags of xl launch, so that you
    can ask what would win.
    """
    resolved = resolve(collect_flags(ctx), read_environ(), Path.cwd(), profile, config_file)
    chosen = _chosen(resolved.values, keys, everything)
    asked = set(map(canonical, keys))
    unset = {name for name, it in chosen.items() if not (everything or it.losers or name in asked)}
    unset = {name for name in unset if chosen[name].origin.kind == "default"}
    for name, value in chosen.items():
        if name not in unset:
            _say(name, value, with_default=name in asked)
    for section in dict.fromkeys(name.partition(".")[0] for name in chosen if name in unset):
        count = sum(name.startswith(f"{section}.") for name in unset)
        click.echo(f"{count} settings of {section} are not set, so their defaults hold; --all shows them")
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
            every = "xl config explain --all lists every setting"
            problems.append(unknown_key(key, "xl config explain", every))
        chosen |= found
    raise_all(problems)
    return chosen


def _say(name: str, value: Value, *, with_default: bool) -> None:
    click.echo(f"{name} = {printed(value.value)}  ({value.origin.place})")
    for loser in value.losers:
        if with_default or loser.origin.kind != "default":
            click.echo(f"    over {printed(loser.value)}  ({loser.origin.place})")
