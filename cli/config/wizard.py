"""The wizard of `xl config`: looks at the machine, asks what matters, shows the memory, writes a profile."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import click

from ...configs import paths
from ...configs.env import read_environ
from ...configs.errors import XlError, raise_all
from ...configs.files import profile_text, write_profile
from ...configs.project import find_project_file
from ...configs.unbuilt import launch_note
from ...launcher.findings import Facts, find_problems
from ...launcher.hardware.snapshot import read_hardware
from ...launcher.hardware.software import read_software
from .wizard_answers import Answers, header, settings
from .wizard_flow import fill, interview
from .wizard_machine import Offer, make_offer
from .wizard_questions import QUESTIONS
from .wizard_screen import say

F = TypeVar("F", bound=Callable[..., object])

LEFT, INTERRUPTED = 1, 130
_NOTHING = "Nothing was written."
_ALIASES = {"--mixed-precision": ("--precision",)}


def wizard_options(command: F) -> F:
    """Add one option for each answer, and `--cpu`, `--yes` and `--overwrite`."""
    options = [
        click.option(
            *(question.flag, *_ALIASES.get(question.flag, ()), question.field),
            metavar="ANSWER",
            help=question.meaning,
        )
        for question in QUESTIONS
    ]
    options += [
        click.option("--cpu", is_flag=True, help="As --device cpu."),
        click.option(
            "-y", "--yes", is_flag=True, help="Ask nothing: take the default for every other answer."
        ),
        click.option("--overwrite", is_flag=True, help="Replace a profile of that name."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def run_wizard(params: Mapping[str, object]) -> int:
    """Make a profile from these options and, on a terminal, from the answers to questions.

    Returns:
        The exit code: 0 written, 1 left by Esc or by saying no, 130 Ctrl-C.

    Raises:
        XlError: an answer is wrong, or is missing and there is no terminal to ask on.
    """
    given = {q.field: str(params[q.field]) for q in QUESTIONS if params.get(q.field) is not None}
    if params.get("cpu") and given.setdefault("device", "cpu") != "cpu":
        raise click.UsageError(f"--cpu and --device {given['device']} contradict each other")
    environ = read_environ()
    overwrite = bool(params.get("overwrite"))
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if params.get("yes") or not terminal:
        return _without_asking(given, environ, overwrite, yes=bool(params.get("yes")))
    from .wizard_prompts import EscapeError

    try:
        return _asking(given, environ, overwrite)
    except EscapeError:
        click.echo(_NOTHING)
        return LEFT
    except KeyboardInterrupt:
        click.echo(_NOTHING)
        return INTERRUPTED


def _look(environ: Mapping[str, str]) -> tuple[Offer, list[str]]:
    """What this machine offers, and the lines that say so with what is broken."""
    hardware, software = read_hardware(environ, {}), read_software()
    offer = make_offer(hardware, software, environ)
    errors = [f for f in find_problems(Facts(hardware, software, environ)) if f.severity == "error"]
    return offer, [*offer.lines(), *(f"Error: {error.what}. Fix: {error.fix}" for error in errors)]


def _without_asking(
    given: Mapping[str, str], environ: Mapping[str, str], overwrite: bool, *, yes: bool
) -> int:
    offer, lines = _look(environ)
    filled = fill(offer, given, lines.append)
    missing = [question.flag for question in filled.defaulted]
    if missing and not yes:
        raise XlError(
            "there is no terminal to ask on",
            f"not answered yet: {', '.join(missing)}",
            "pass --yes to take the defaults, or each of these with an answer: xl config --help says which",
        )
    raise_all(filled.problems)
    name = filled.answers.name
    path = paths.profile_path(environ, name)
    if path.exists() and not overwrite:
        raise XlError(
            f"the profile {name} is there already",
            f"{path} holds it",
            "pass --overwrite to replace it, or another --name",
        )
    for line in lines:
        say(line)
    _save(filled.answers, environ)
    return 0


def _asking(given: Mapping[str, str], environ: Mapping[str, str], overwrite: bool) -> int:
    from .wizard_prompts import ask, confirm

    offer, lines = _look(environ)
    for line in (*lines, "Enter takes what is shown, Esc leaves without writing anything.", ""):
        say(line)
    answers = interview(offer, given, ask, say)
    naming = [question for question in QUESTIONS if question.field == "name"]
    while not overwrite and paths.profile_path(environ, answers.name).exists():
        if confirm(f"The profile {answers.name} is there already. Replace it?", default=False):
            break
        named = interview(offer, {}, ask, say, naming)
        answers = replace(answers, name=named.name)
    click.echo("\n" + profile_text(settings(answers), header(answers)))
    if not confirm("Save it and make it the active profile?", default=True):
        click.echo(_NOTHING)
        return LEFT
    _save(answers, environ)
    return 0


def _save(answers: Answers, environ: Mapping[str, str]) -> None:
    path = paths.profile_path(environ, answers.name)
    write_profile(path, settings(answers), header(answers))
    paths.set_active(environ, answers.name)
    click.echo(f"Saved and active:\n  {path}")  # not wrapped, so that it can be copied
    for line in _above(environ):
        say(line)
    note = launch_note(settings(answers))
    if note:
        say(f"Note: {note}.")
    click.echo("Next: xl launch train.py")


def _above(environ: Mapping[str, str]) -> list[str]:
    """What a launch from here reads before the active profile."""
    lines = [
        f"Note: {name}={environ[name]} is set and ranks above the active profile."
        for name in ("XL_PROFILE", "XL_CONFIG_FILE")
        if environ.get(name)
    ]
    project = find_project_file(Path.cwd())
    if project and not project.refusal:
        lines.append(f"Note: {project.path} ranks above the active profile in this folder.")
    return lines
