"""`xl config trust`: let a project file set what could run other programs."""

from __future__ import annotations

from pathlib import Path

import click

from ...configs import paths, project
from ...configs.documents import flatten, plain
from ...configs.env import read_environ
from ...configs.errors import XlError
from ...configs.files import read_document
from ...configs.keys import canonical
from ...configs.trust import needs_trust
from ...configs.trust import trust as remember
from ..given import given


@click.command()
@click.argument("file", required=False, callback=given)
def trust(file: str | None) -> None:
    """Trust FILE, or the project file here, as it is now; a later change of the file ends the trust."""
    environ, cwd = read_environ(), Path.cwd()
    found = project.find_project_file(cwd)
    if file is None and found is None:
        raise XlError("there is no xl.yaml here", f"{cwd} and its repository have none", "name the file")
    target = cwd / file if file else found.path if found else cwd
    document = read_document(target, paths.shown(target, cwd), "xl config trust")
    remember(target, environ)
    click.echo(f"{target} is trusted until it changes. It sets:")
    settings = [(canonical(key), entry) for key, entry in flatten(document.entries)]
    telling = [f"  {key}: {plain(entry)}" for key, entry in settings if needs_trust(key)]
    click.echo("\n".join(telling) or "  nothing that needs it")
