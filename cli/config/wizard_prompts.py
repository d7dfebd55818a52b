"""Asks the wizard's questions on a terminal with questionary; Esc leaves at every one."""

from __future__ import annotations

from typing import cast

import click
import questionary
from prompt_toolkit.application import Application
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent, merge_key_bindings

from .wizard_answers import Answers
from .wizard_machine import Offer
from .wizard_question import Question, WrongAnswerError, take
from .wizard_screen import say


class EscapeError(Exception):
    """The user pressed Esc, or Ctrl-D on an empty line."""


def ask(question: Question, answers: Answers, offer: Offer) -> str:
    """The answer as text; a wrong one is explained below it and asked again.

    Raises:
        EscapeError: the user left by Esc.
        KeyboardInterrupt: the user left by Ctrl-C.
    """
    default = question.default(answers, offer)
    if question.choices is not None:
        return _pick(question, answers, offer, default)
    while True:
        text = str(_run(questionary.text(question.prompt, default=default)))
        try:
            take(question, text, answers, offer)
        except WrongAnswerError as wrong:
            # Questionary's own validation explains at the foot of the screen, far from the answer.
            say(f"  {wrong}", "red")
        else:
            return text


def confirm(text: str, *, default: bool) -> bool:
    """Whether the user says yes; raises as `ask` does."""
    return bool(_run(questionary.confirm(text, default=default)))


def _pick(question: Question, answers: Answers, offer: Offer, default: str) -> str:
    if question.choices is None:
        raise AssertionError(f"{question.field} has no choices")
    listed = [choice for choice in question.choices(answers, offer) if choice.listed]
    open_to_all = [choice.value for choice in listed if not choice.refused]
    width = max(len(choice.value) for choice in listed)
    shown = [
        questionary.Choice(
            choice.value if choice.refused else f"{choice.value:{width}}  {choice.title}",
            value=choice.value,
            disabled=choice.refused,
        )
        for choice in listed
    ]
    start = default if default in open_to_all else open_to_all[0]
    menu = questionary.select(
        question.prompt, shown, default=start, instruction="(arrows, Enter)", erase_when_done=True
    )
    value = str(_run(menu))
    # In place of the menu, as questionary would repeat the whole title.
    click.echo(f"{click.style('?', fg='cyan')} {click.style(question.prompt, bold=True)} {value}")
    return value


def _run(question: questionary.Question) -> object:
    application = cast("Application[object]", question.application)
    keys = KeyBindings()

    # Eager: a lone Esc is acted upon at once; arrow keys have been told apart before bindings are looked at.
    @keys.add("escape", eager=True)
    def _(event: KeyPressEvent) -> None:
        event.app.exit(exception=EscapeError(), style="class:aborting")

    bound = [application.key_bindings] if application.key_bindings else []
    application.key_bindings = merge_key_bindings([*bound, keys])
    try:
        return question.unsafe_ask()
    except EOFError:
        raise EscapeError from None
