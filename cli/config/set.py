"""`xl config set`: change settings of a profile, checked before anything is written."""

from __future__ import annotations

from pathlib import Path

import click

from ...configs import paths
from ...configs.atomic import write_atomic
from ...configs.edit import set_value
from ...configs.env import read_environ
from ...configs.errors import XlError, raise_all
from ...configs.files import parse_document, profile_text, read_text
from ...configs.keys import all_keys, canonical, find_key, parse, sections, unknown_key
from ...configs.layers import printed
from ...configs.resolve import check_document


@click.command("set", context_settings={"ignore_unknown_options": True})
@click.argument("pairs", nargs=-1, required=True, metavar="KEY VALUE [KEY VALUE]...")
@click.option(
    "--profile", metavar="NAME", help="Profile to change; it is made if there is none of that name."
)
def set_setting(pairs: tuple[str, ...], profile: str | None) -> None:
    """Change settings of the active profile, or of the one named by --profile.

    A key of a section is written with a dot, as in fsdp.offload_params.

    \b
    Not set, null and no are three different things:
      seed not in the file     the next source decides: preset, then default
      xl config set seed null  the default holds, whatever those sources say
      xl config set cpu no     a value like any other: false
    To have a setting not set, remove its line; xl config path names the file.
    """
    environ, cwd = read_environ(), Path.cwd()
    wanted = _typed(pairs)
    path = _target(paths.active_profile(environ), profile)
    shown = paths.shown(path, cwd)
    text = read_text(path, shown, "xl config set") if path.exists() else profile_text({})
    for key, value in wanted.items():
        text = set_value(text, parse_document(text, path, shown), key, value)
    problems, warnings = check_document(parse_document(text, path, shown), environ, cwd)
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
                raise unknown_key(name, "xl config set")
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


def _target(active: str | None, named: str | None) -> Path:
    environ = read_environ()
    name = named or active
    if name is None:
        raise XlError(
            "no profile is active",
            "settings are kept in a profile, and --profile names none either",
            "xl config set --profile NAME KEY VALUE, or xl config use NAME first",
        )
    if named is None and name not in paths.user_profiles(environ):
        preset = name in paths.presets()
        raise XlError(
            f"the active profile {name} cannot be changed",
            "it is a preset that xl brings"
            if preset
            else f"there is no file of it in {paths.writable_home(environ) / 'profiles'}",
            f"xl config set --profile NAME preset {name} KEY VALUE starts a profile from it"
            if preset
            else f"xl config set --profile {name} KEY VALUE makes it anew, xl config use chooses another",
        )
    return paths.profile_path(environ, name)
