"""The help of commands with the settings' flags: headings, and those that a launch refuses by name only."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import click

from ..configs.keys import Key
from ..configs.unbuilt import is_unbuilt
from .launch_options import GROUPS

_WIDEST_FLAG = 34
"""Columns; the words of a longer flag begin on the next line."""

_REFUSED = "Not in this version (profiles keep them, xl launch refuses them)"


def write_options(
    params: Sequence[click.Parameter], ctx: click.Context, formatter: click.HelpFormatter, *, in_full: bool
) -> None:
    """Write the options below their headings.

    Args:
        in_full: describe refused ones in their places, too.
    """
    groups: dict[str, list[tuple[str, str]]] = {}
    refused: dict[str, list[str]] = {}
    for param in params:
        record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
        heading = str(getattr(param, "heading", "Options"))
        if record is None:
            continue
        if _is_refused(param) and not in_full:
            refused.setdefault(heading, []).append(param.opts[-1])
        else:
            groups.setdefault(heading, []).append(record)
    for heading in sorted(groups, key=_position):
        with formatter.section(heading):
            formatter.write_dl(groups[heading], col_max=_WIDEST_FLAG)
    if refused:
        with formatter.section(_REFUSED):
            for heading in sorted(refused, key=_position):
                formatter.write(_named_only(heading, refused[heading], formatter.width))


def _is_refused(param: click.Parameter) -> bool:
    key: object = getattr(param, "key", None)
    return is_unbuilt(key.name) if isinstance(key, Key) else param.name == "no_python"


def _position(heading: str) -> int:
    names = [name for name, _ in GROUPS]
    order = [*names[:2], "Profiles", *names[2:5], "Options", *names[5:]]
    return order.index(heading) if heading in order else len(order)


def _named_only(heading: str, flags: Sequence[str], width: int) -> str:
    """The flags in a paragraph; click's own wrapping would break them at their dashes."""
    text = textwrap.fill(
        f"{heading}: {', '.join(flags)}",
        width,
        initial_indent="  ",
        subsequent_indent="    ",
        break_on_hyphens=False,
        break_long_words=False,
    )
    return f"{text}\n"
