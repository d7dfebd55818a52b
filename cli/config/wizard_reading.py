"""Reads what was typed as an answer: its value, or in one line why it is none."""

from __future__ import annotations

import ipaddress
import re

from ...configs.errors import XlError
from ...configs.paths import LONGEST_NAME, check_name, presets
from ...configs.sizing import parse_memory, parse_model_size
from .wizard_answers import Answers
from .wizard_machine import Offer
from .wizard_question import WrongAnswerError, shortened

MOST_PROCESSES, MOST_MACHINES = 4096, 65536


def read_text(text: str, _answers: Answers, _offer: Offer) -> object:
    return text


def _whole(text: str, what: str, least: int, most: int) -> int:
    # int() takes digits of other scripts and underscores, which nobody means here.
    if not re.fullmatch(r"[0-9]{1,9}", text) or not least <= int(text) <= most:
        raise WrongAnswerError(f"{shortened(text)}: {what} is a whole number from {least} to {most}")
    return int(text)


def read_device(text: str, _answers: Answers, offer: Offer) -> object:
    return ("gpu" if offer.gpus else "cpu") if text == "auto" else text


def read_gpu_memory(text: str, _answers: Answers, _offer: Offer) -> object:
    if text.lower() == "unknown":
        return None
    try:
        return parse_memory(text)
    except XlError:
        raise WrongAnswerError(f"{shortened(text)}: write GiB such as 80, or unknown") from None


def read_machines(text: str, _answers: Answers, _offer: Offer) -> object:
    return _whole(text, "the number of machines", 1, MOST_MACHINES)


def read_rank(text: str, answers: Answers, _offer: Offer) -> object:
    if text.lower() == "later":
        return None
    return _whole(text, "the rank", 0, answers.num_machines - 1)


def read_address(text: str, _answers: Answers, _offer: Offer) -> object:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        pass
    # A name of digits and dots is an address with a mistake in it.
    label = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
    if len(text) > 253 or not re.fullmatch(rf"{label}(\.{label})*", text) or re.fullmatch(r"[0-9.]+", text):
        raise WrongAnswerError(f"{shortened(text)} is no address: write 10.0.0.1 or a host name")
    return text


def read_port(text: str, _answers: Answers, _offer: Offer) -> object:
    return _whole(text, "the port", 1, 65535)


def read_processes(text: str, answers: Answers, offer: Offer) -> object:
    if answers.device == "gpu" and offer.gpus and answers.num_machines == 1:
        return _whole(text, "the number of processes (one for each GPU)", 1, len(offer.gpus))
    return _whole(text, "the number of processes", 1, MOST_PROCESSES)


def read_model_size(text: str, _answers: Answers, _offer: Offer) -> object:
    try:
        return parse_model_size(text)
    except XlError:
        raise WrongAnswerError(f"{shortened(text)}: write 7B, 350M, 70000000 or small") from None


def read_accumulation(text: str, _answers: Answers, _offer: Offer) -> object:
    return _whole(text, "the number of batches", 1, 10**6)


def read_name(text: str, _answers: Answers, _offer: Offer) -> object:
    if len(text) > LONGEST_NAME:
        raise WrongAnswerError(f"{shortened(text)}: a name has at most {LONGEST_NAME} characters")
    if text in presets():
        raise WrongAnswerError(f"{text}: xl brings a preset of that name, which a profile would hide")
    try:
        return check_name(text)
    except XlError:
        raise WrongAnswerError(f"{shortened(text)}: letters, digits, . _ - and no .yaml or .json") from None
