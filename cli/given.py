"""The type of names on the command line: one that is empty, as of a variable that is not set, is an error."""

from __future__ import annotations

import click

from ..configs.errors import XlError


class _Given(click.ParamType):
    name = "text"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if text and "\0" not in text:
            return text
        is_option = isinstance(param, click.Option)
        label = param.opts[0] if is_option else param.human_readable_name.strip("[].") if param else "a name"
        if text:
            raise XlError(
                f"{label} holds a NUL character",
                "no file or profile has one in its name",
                f"correct {label}: {text!r}",
            )
        raise XlError(
            f"{label} is empty",
            "it names nothing; a shell's variable that is not set does this",
            f"give {label} a value{', or leave it out' if is_option else ''}",
        )


GIVEN = _Given()
