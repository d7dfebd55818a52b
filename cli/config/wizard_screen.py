"""Shows the wizard's lines, wrapped to the terminal."""

from __future__ import annotations

import shutil
import textwrap

import click


def say(line: str, colour: str | None = None) -> None:
    """Show a line; one that is too long is wrapped at words, its rest indented like its beginning."""
    width = max(20, min(shutil.get_terminal_size().columns, 100) - 1)
    indent = " " * (len(line) - len(line.lstrip()))
    wrapped = [line]
    if len(line) > width:  # shorter ones stay as they are: tables align by several spaces
        wrapped = textwrap.wrap(line, width, subsequent_indent=indent, break_on_hyphens=False)
    click.echo("\n".join(click.style(part, fg=colour) if colour else part for part in wrapped))
