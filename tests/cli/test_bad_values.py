"""Every flag of `xl launch` and every command of `xl config` with values that nobody means to give.

Each is either taken, as any text is by a setting that is a text, or refused with what, why and fix; none ends
in a traceback. They come through `main`, so that those an operating system would not pass on are tried, too.
"""

from __future__ import annotations

import pytest

from xl.cli.config.wizard_questions import QUESTIONS
from xl.cli.launch_options import setting_parameters
from xl.configs.keys import Key, all_keys
from xl.configs.unbuilt import is_unbuilt
from xl.configs.variables import setting_variables

from .conftest import Cli, Outcome

HUGE = "9" * 5000
VALUES = {
    "empty": "",
    "blank": " ",
    "negative": "-1",
    "fraction": "0.5.1",
    "large": "9" * 30,
    "huge": HUGE,
    "infinite": "1e999",
    "underscores": "1_000",
    "other digits": "٣",
    "word": "x",
    "unicode": "ünï ☃",
    "no text": "\udcff",
    "nowhere": "/nonexistent/deep/file",
    "folder": ".",
    "unreadable": "/proc/self/mem",
    "long": "a" * 5000,
    "NUL": "a\0b",
    "lines": "a\nb",
    "comma": ",",
    "equals": "=",
    "brackets": "{[",
}
OPTIONS = [option.opts[-1] for option in setting_parameters() if not option.is_flag]
KEYS = {key.flag: key for key in all_keys().values()}
STRICT = [flag for flag in OPTIONS if KEYS[flag].kind in ("whole", "number", "bool", "choice")]
TEXTS = [flag for flag in OPTIONS if flag not in STRICT and not is_unbuilt(KEYS[flag].name)]


def taken(key: Key, value: str) -> bool:
    """Whether a value of the list is one of a number's after all."""
    return value == "9" * 30 and key.kind in ("whole", "number") and key.maximum is None


def check_refusal(outcome: Outcome) -> None:
    """What is wrong, why, and how to mend it: of every problem."""
    assert outcome.code == 2, outcome
    assert "Traceback" not in outcome.err
    for problem in outcome.err.strip("\n").split("\n\n"):
        marked = [line for line in problem.split("\n") if line[:7].strip()]
        assert [line[:7] for line in marked] == ["error: ", "why:   ", "fix:   "], outcome.err
        assert all(line[7:].strip() for line in marked), outcome.err
    assert max(map(len, outcome.err.splitlines())) < 1200


@pytest.mark.parametrize("name", VALUES)
def test_a_number_switch_or_choice(cli: Cli, name: str) -> None:
    """All at once, as all problems are reported at once."""
    cli.write("train.py", "raise AssertionError")
    value = VALUES[name]
    outcome = cli.run("launch", "--dry-run", *(word for flag in STRICT for word in (flag, value)), "train.py")
    check_refusal(outcome)
    assert outcome.out == ""
    for key in map(KEYS.__getitem__, STRICT):
        assert (f"error: {key.name}: " in outcome.err) != taken(key, value), key.name


@pytest.mark.parametrize("flag", [*TEXTS, "--rdzv-conf", "--hosts", "--profile", "--config-file"])
@pytest.mark.parametrize("name", VALUES)
def test_a_text(cli: Cli, flag: str, name: str) -> None:
    cli.write("train.py", "raise AssertionError")
    outcome = cli.run("launch", "--dry-run", flag, VALUES[name], "train.py")
    if flag in ("--profile", "--config-file", "--preset") or name in ("NUL", "empty") or outcome.code:
        check_refusal(outcome)
        assert outcome.out == ""


@pytest.mark.parametrize("name", [name for name in VALUES if name != "NUL"])
def test_variables(cli: Cli, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    cli.write("train.py", "raise AssertionError")
    value = VALUES[name]
    for variable in setting_variables():
        monkeypatch.setenv(variable, value)
    outcome = cli.run("launch", "--dry-run", "train.py")
    check_refusal(outcome)
    for key in map(KEYS.__getitem__, STRICT):
        assert (f"error: {key.name}: " in outcome.err) != taken(key, value), key.name


@pytest.mark.parametrize("name", VALUES)
def test_the_wizards_answers(cli: Cli, name: str) -> None:
    answers = [word for question in QUESTIONS for word in (question.flag, VALUES[name])]
    outcome = cli.run("config", "--yes", *answers)
    check_refusal(outcome)
    assert not (cli.home / "profiles").exists()


COMMANDS = (
    "use *",
    "show *",
    "explain *",
    "explain --profile * seed",
    "explain --config-file *",
    "validate *",
    "import *",
    "import acc.yaml --name *",
    "trust *",
    "unset *",
    "unset --profile * seed",
    "set * 1",
    "set seed *",
    "set log_dir *",
    "set env.A *",
    "set gpu_ids=*",
    "set --profile * seed 1",
    "*",
    "schema *",
    "path *",
    "list *",
)
NAMES = ("large", "underscores", "word", "fraction", "infinite")
TAKEN = {
    "import acc.yaml --name *": NAMES,
    "set --profile * seed 1": NAMES,
    "set log_dir *": tuple(name for name in VALUES if name not in ("NUL", "empty", "blank")),
    "set env.A *": tuple(name for name in VALUES if name != "NUL"),
    "set gpu_ids=*": ("large", "underscores", "word", "negative", "infinite", "nowhere", "unreadable"),
}
"""Which of the values a command takes for what they are."""


@pytest.mark.parametrize("line", COMMANDS)
@pytest.mark.parametrize("name", VALUES)
def test_a_command_of_config(cli: Cli, line: str, name: str) -> None:
    cli.profile("big", "backend: ddp\n", active=True)
    cli.write("acc.yaml", "distributed_type: MULTI_GPU\n")
    outcome = cli.run("config", *[word.replace("*", VALUES[name]) for word in line.split()])
    if name in TAKEN.get(line, ()):
        assert (outcome.code, outcome.err) == (0, "")
    else:
        check_refusal(outcome)
