"""Goes through the wizard's questions: takes what flags answer, has the rest asked or takes defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ...configs.errors import XlError
from .wizard_answers import Answers
from .wizard_machine import Offer
from .wizard_question import Question, WrongAnswerError, take
from .wizard_questions import QUESTIONS

Ask = Callable[[Question, Answers, Offer], str]
"""Returns an answer that `take` accepts."""


@dataclass(slots=True)
class Filled:
    """The outcome of going through the questions without asking.

    Args:
        defaulted: questions that no flag answered and whose default was taken.
        problems: flags that are wrong, and questions without a flag or a default.
    """

    answers: Answers = field(default_factory=Answers)
    defaulted: list[Question] = field(default_factory=list[Question])
    problems: list[XlError] = field(default_factory=list[XlError])


def interview(
    offer: Offer,
    given: Mapping[str, str],
    ask: Ask,
    say: Callable[[str], None],
    questions: Sequence[Question] = QUESTIONS,
) -> Answers:
    """Ask every question that matters and that no flag answers; a wrong flag is explained and then asked.

    Args:
        given: what flags answer, by field, as typed.
        say: shows a line.
    """
    answers = Answers()
    for question in questions:
        if question.field in given:
            try:
                answers = take(question, given[question.field], answers, offer)
            except WrongAnswerError as wrong:
                say(f"{question.flag}: {wrong}")
                answers = _ask(question, answers, offer, ask, say)
        elif question.relevant(answers, offer):
            answers = _ask(question, answers, offer, ask, say)
        else:
            continue
        for line in question.after(answers, offer):
            say(line)
    return answers


def _ask(question: Question, answers: Answers, offer: Offer, ask: Ask, say: Callable[[str], None]) -> Answers:
    for line in question.before(answers, offer):
        say(line)
    return take(question, ask(question, answers, offer), answers, offer)


def fill(offer: Offer, given: Mapping[str, str], say: Callable[[str], None]) -> Filled:
    """Answer every question from flags and defaults; every problem is collected, none is raised."""
    filled = Filled()
    for question in QUESTIONS:
        if question.field not in given and not question.relevant(filled.answers, offer):
            continue
        text = given.get(question.field)
        if text is None:
            filled.defaulted.append(question)
            text = question.default(filled.answers, offer)
        try:
            if not text and question.field not in given:
                raise WrongAnswerError("has no default after these answers")
            filled.answers = take(question, text, filled.answers, offer)
        except WrongAnswerError as wrong:
            filled.problems.append(_problem(question, wrong))
            continue
        for line in question.after(filled.answers, offer):
            say(line)
    return filled


def _problem(question: Question, wrong: WrongAnswerError) -> XlError:
    return XlError(
        f"{question.flag} {wrong}" if "has no default" in str(wrong) else f"{question.flag}: {wrong}",
        f"it answers the question {question.prompt!r}",
        f"pass {question.flag} with another value; xl config --help says what it takes",
    )
