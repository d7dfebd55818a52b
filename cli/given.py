"""The check of names on the command line: an empty one, as of a variable that is not set, is an error."""

from __future__ import annotations

from typing import TypeVar

import click

from ..configs.errors import XlError

T = TypeVar("T", str, tuple[str, ...], None)


def given(_ctx: click.Context, param: click.Parameter, value: T) -> T:
    """The callback of arguments and options that take names of files, profiles or settings."""
    is_option = isinstance(param, click.Option)
    label = param.opts[0] if is_option else param.human_readable_name.strip("[].")
    for text in (value,) if isinstance(value, str) else value or ():
        if not text:
            raise XlError(
                f"{label} is empty",
                "it names nothing; a shell's variable that is not set does this",
                f"give {label} a value{', or leave it out' if is_option else ''}",
            )
        if "\0" in text:
            raise XlError(
                f"{label} holds a NUL character",
                "no file or profile has one in its name",
                f"correct {label}: {text!r}",
            )
    return value
