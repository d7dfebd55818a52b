"""One question of the wizard as data, and how an answer to it is checked; no terminal here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from .wizard_answers import Answers
from .wizard_machine import Offer


class WrongAnswerError(Exception):
    """An answer that cannot be taken; the text says why."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer of a list.

    Args:
        value: as it is typed after the flag.
        title: what it means.
        refused: why it cannot be chosen here; None: it can.
        listed: whether the menu shows it; the flag knows it in any case.
    """

    value: str
    title: str
    refused: str | None = None
    listed: bool = True


Read = Callable[[str, Answers, Offer], object]
Lines = Callable[[Answers, Offer], Sequence[str]]


def _always(_answers: Answers, _offer: Offer) -> bool:
    return True


def _nothing(_answers: Answers, _offer: Offer) -> Sequence[str]:
    return ()


@dataclass(frozen=True, slots=True)
class Question:
    """One question.

    Args:
        field: the answer's name in `Answers`.
        flag: the option that answers it.
        prompt: the question, short enough to leave room for the answer.
        meaning: what the option's help says.
        read: turns the text of an answer into its value, or raises WrongAnswerError.
        default: the text that Enter gives; empty where there is no sensible one.
        relevant: whether the earlier answers call for it.
        choices: what is offered; None: any text.
        before: lines shown above it.
        after: lines shown below its answer.
    """

    field: str
    flag: str
    prompt: str
    meaning: str
    read: Read
    default: Callable[[Answers, Offer], str]
    relevant: Callable[[Answers, Offer], bool] = _always
    choices: Callable[[Answers, Offer], Sequence[Choice]] | None = None
    before: Lines = _nothing
    after: Lines = _nothing


def take(question: Question, text: str, answers: Answers, offer: Offer) -> Answers:
    """The answers with this one added.

    Raises:
        WrongAnswerError: the text is none.
    """
    if question.choices is not None:
        _check_choice(question.choices(answers, offer), text)
    return replace(answers, **{question.field: question.read(text.strip(), answers, offer)})


def shortened(text: str, width: int = 20) -> str:
    """The text in quotes, cut so that messages stay short."""
    return repr(text if len(text) <= width else text[: width - 3] + "...")


def _check_choice(choices: Sequence[Choice], text: str) -> None:
    for choice in choices:
        if choice.value == text.strip():
            if choice.refused:
                raise WrongAnswerError(f"{choice.value}: {choice.refused}")
            return
    raise WrongAnswerError(
        f"{shortened(text)} is none of {', '.join(c.value for c in choices if not c.refused)}"
    )
