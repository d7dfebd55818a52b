"""`xl config` without a sub-command: parses the answers given as flags, and asks the rest."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

import click

from ...configs.errors import XlError
from ..launch_options import SettingsCommand

F = TypeVar("F", bound=Callable[..., object])

_HOME = "xl.cli.config.wizard"


def _load() -> Any:
    try:
        return import_module(_HOME)
    except ModuleNotFoundError as error:
        if error.name != _HOME:
            raise
        return None


_wizard = _load()


def _answers(command: F) -> F:
    decorated: F = _wizard.wizard_options(command) if _wizard else command
    return decorated


class _Nameless(SettingsCommand):
    """Its command path is `xl config`, as the user typed it."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        return super().make_context("", args, parent, **extra)


@click.command(cls=_Nameless)
@_answers
def wizard(**answers: object) -> int:
    """Ask what is not answered yet and write a profile."""
    if _wizard is None:
        raise XlError("there is no wizard", "this build has none", "write a profile with xl config set")
    code: int = _wizard.run_wizard(answers)
    return code
