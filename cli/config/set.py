"""`xl config set`: change settings of a profile, checked before anything is written."""

from __future__ import annotations

from pathlib import Path

import click

from ...configs.atomic import write_atomic
from ...configs.edit import set_value
from ...configs.env import read_environ
from ...configs.errors import XlError, raise_all
from ...configs.files import profile_text, read_text
from ...configs.keys import all_keys, canonical, find_key, parse, sections, unknown_key
from ...configs.layers import printed
from ...configs.resolve import check_document
from ..given import given
from .editing import profile_to_change


@click.command("set", context_settings={"ignore_unknown_options": True})
@click.argument("pairs", nargs=-1, required=True, metavar="KEY VALUE [KEY VALUE]...")
@click.option(
    "--profile",
    metavar="NAME",
    callback=given,
    help="Profile to change; it is made if there is none of that name.",
)
def set_setting(pairs: tuple[str, ...], profile: str | None) -> None:
    """Change settings of the active profile, or of the one named by --profile.

    A key of a section is written with a dot, as in fsdp.offload_params.

    \b
    Not set, null and no are three different things:
      seed not in the file     the next source decides: preset, then default
      xl config set seed null  the default holds, whatever those sources say
      xl config set cpu no     a value like any other: false
      xl config unset seed     not in the file any more
    """
    environ, cwd = read_environ(), Path.cwd()
    wanted = _typed(pairs)
    target = profile_to_change(environ, cwd, profile, "xl config set", pairs)
    path = target.path
    text = read_text(path, target.shown, "xl config set") if path.exists() else profile_text({})
    for key, value in wanted.items():
        text = set_value(text, target.document(text), key, value)
    problems, warnings = check_document(target.document(text), environ, cwd)
    raise_all(problems)
    write_atomic(path, text)
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    click.echo(f"{path}:")
    for key, value in wanted.items():
        click.echo(f"  {key}: {_confirmed(key, value)}")


def _confirmed(key: str, value: object) -> str:
    if value is not None:
        return printed(value)
    known = find_key(key)
    return f"null (the default holds, which is: {printed(known.default if known else None)})"


def _typed(pairs: tuple[str, ...]) -> dict[str, object]:
    """The settings of `KEY VALUE` and `KEY=VALUE` arguments, with every problem at once."""
    texts: dict[str, str] = {}
    words = iter(pairs)
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            following = next(words, None)
            if following is None:
                raise XlError(
                    f"{key} has no value",
                    "settings are given as KEY VALUE or KEY=VALUE",
                    f"xl config set {key} VALUE; the value null asks for the default",
                )
            value = following
        texts[canonical(key)] = value
    problems: list[XlError] = []
    typed: dict[str, object] = {}
    for name, text in texts.items():
        key = find_key(name)
        try:
            if name in sections():
                raise _section(name)
            if key is None:
                raise unknown_key(name, "xl config set", "xl config explain --all lists every setting")
            typed[name] = parse(key, text, "xl config set")
        except XlError as problem:
            problems.append(problem)
    raise_all(problems)
    return typed


def _section(name: str) -> XlError:
    example = next((known for known in all_keys() if known.startswith(f"{name}.")), "env.NAME")
    return XlError(
        f"{name} is a section, not a setting",
        f"a value belongs to one of its settings, such as {example}",
        f"xl config set {example} VALUE; xl config explain --all {name} lists them",
    )
