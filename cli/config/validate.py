"""`xl config validate`: everything that is wrong with settings files, at once."""

from __future__ import annotations

from pathlib import Path

import click

from ...configs import paths
from ...configs.env import read_environ
from ...configs.errors import XlError, raise_all
from ...configs.files import read_document
from ...configs.resolve import check_document, resolve
from ...configs.unbuilt import launch_note
from ..given import given


@click.command()
@click.argument("files", nargs=-1, callback=given, metavar="[FILE]...")
def validate(files: tuple[str, ...]) -> None:
    """Check each FILE on its own, or, without FILE, everything that a launch here would read."""
    environ, cwd = read_environ(), Path.cwd()
    if not files:
        resolved = resolve({}, environ, cwd)
        note = launch_note({name: value.value for name, value in resolved.values.items()})
        _report(resolved.label, (*resolved.warnings, *([note] if note else [])))
        return
    problems: list[XlError] = []
    for file in files:
        try:
            document = read_document(cwd / file, paths.shown(cwd / file, cwd), "xl config validate")
        except XlError as problem:
            problems.append(problem)
            continue
        found, warnings = check_document(document, environ, cwd)
        problems += found
        if not found:
            _report(document.shown, warnings)
    raise_all(problems)


def _report(name: str, warnings: list[str] | tuple[str, ...]) -> None:
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    click.echo(f"{name}: nothing is wrong" if name != "none" else "no settings file is in use")
