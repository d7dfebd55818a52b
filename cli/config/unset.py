"""`xl config unset`: take settings out of a profile, so that the next source decides."""

from __future__ import annotations

from pathlib import Path

import click

from ...configs.atomic import write_atomic
from ...configs.documents import Document, flatten
from ...configs.edit import unset_value
from ...configs.env import read_environ
from ...configs.errors import XlError, raise_all
from ...configs.files import read_text
from ...configs.keys import canonical, find_key, sections, unknown_key
from ...configs.resolve import check_document
from ..given import given
from .editing import profile_to_change


@click.command("unset")
@click.argument("keys", nargs=-1, required=True, callback=given, metavar="KEY...")
@click.option("--profile", metavar="NAME", callback=given, help="Profile to change; default: the active one.")
def unset(keys: tuple[str, ...], profile: str | None) -> None:
    """Take each KEY out of the active profile, or of the one named by --profile.

    The next source then decides: preset, then default. A KEY is a setting (fsdp.version) or a section of them
    (fsdp); one that xl does not know can be taken out, too. xl config set KEY null is something else: it asks
    for the default whatever lower sources say.
    """
    environ, cwd = read_environ(), Path.cwd()
    target = profile_to_change(environ, cwd, profile, "xl config unset", keys)
    text = read_text(target.path, target.shown, "xl config unset")
    before = target.document(text)
    names = list(dict.fromkeys(map(canonical, keys)))
    raise_all(problem for name in names if (problem := _not_there(name, before)))
    for name in names:
        text = unset_value(text, target.document(text), name)
    known = {problem.what for problem in check_document(before, environ, cwd)[0]}
    problems, warnings = check_document(target.document(text), environ, cwd)
    raise_all(problem for problem in problems if problem.what not in known)
    write_atomic(target.path, text)
    for warning in [*(problem.what for problem in problems), *warnings]:
        click.echo(f"warning: {warning}", err=True)
    click.echo(f"{target.path}:")
    for name in names:
        click.echo(f"  {name}: not set any more")


def _not_there(name: str, document: Document) -> XlError | None:
    written = {canonical(key) for key, _ in flatten(document.entries)} | set(document.entries)
    if name in written or any(key.startswith(f"{name}.") for key in written):
        return None
    if find_key(name) is None and name not in sections():
        return unknown_key(name, "xl config unset", "xl config show prints what is set")
    return XlError(
        f"{name} is not set in {document.shown}",
        "there is no such line in it",
        f"xl config explain {name} says where its value comes from",
    )
