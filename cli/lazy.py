"""A click group that imports a command's module only when that command runs, so that help stays fast."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import NamedTuple

import click


class Lazy(NamedTuple):
    """Where a command is and what it does in one line; a tuple, because help needs no dataclass otherwise.

    Args:
        module: dotted name below `xl.cli`.
        attribute: the click command in it.
    """

    module: str
    attribute: str
    summary: str


class LazyGroup(click.Group):
    """A group whose commands are named in a table."""

    lazy: Mapping[str, Lazy] = {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = self.lazy.get(cmd_name)
        if found is None:
            return super().get_command(ctx, cmd_name)
        command: object = getattr(import_module(f"xl.cli.{found.module}"), found.attribute)
        if not isinstance(command, click.Command):
            raise AssertionError(f"{found.module}.{found.attribute} is no command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, it.summary) for name, it in self.lazy.items()])
