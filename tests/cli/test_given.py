"""Names that are empty: an error each, which names the argument or option."""

from __future__ import annotations

import pytest

from .conftest import Cli

EMPTY = [
    (["launch", ""], "SCRIPT"),
    (["launch", "-m", ""], "SCRIPT"),
    (["launch", "--profile", "", "train.py"], "--profile"),
    (["launch", "--config-file", "", "train.py"], "--config-file"),
    (["config", "use", ""], "NAME"),
    (["config", "show", ""], "NAME"),
    (["config", "validate", ""], "FILE"),
    (["config", "trust", ""], "FILE"),
    (["config", "import", ""], "FILE"),
    (["config", "import", "a.yaml", "--name", ""], "--name"),
    (["config", "set", "--profile", "", "seed", "1"], "--profile"),
    (["config", "unset", "--profile", "", "seed"], "--profile"),
    (["config", "unset", ""], "KEY"),
    (["config", "explain", ""], "KEY"),
    (["config", "explain", "--profile", ""], "--profile"),
]


@pytest.mark.parametrize(("args", "label"), EMPTY, ids=lambda value: " ".join(value))
@pytest.mark.parametrize("value", ["", "a\0b"], ids=["empty", "NUL"])
def test_an_empty_name_is_an_error(cli: Cli, args: list[str], label: str, value: str) -> None:
    cli.write("train.py", "raise AssertionError")
    cli.write("a.yaml", "distributed_type: MULTI_GPU\n")
    outcome = cli.run(*[word or value for word in args])
    assert outcome.code == 2
    assert outcome.out == ""
    what = f"{label} is empty" if not value else f"{label} holds a NUL character"
    assert outcome.err.startswith(f"error: {what}\nwhy:   "), outcome.err
    assert f"{label}" in outcome.err.partition("fix: ")[2]


def test_an_empty_variable_is_one_that_is_not_set(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XL_PROFILE", "")
    monkeypatch.setenv("XL_CONFIG_FILE", "")
    outcome = cli.run("config", "explain", "seed")
    assert (outcome.code, outcome.err) == (0, "")
    assert "Settings from: none" in outcome.out
