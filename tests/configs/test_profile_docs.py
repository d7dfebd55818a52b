"""docs/profile.md says of every key, and of every variable, what the code has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from xl.configs.env import OWN_VARIABLES
from xl.configs.keys import Key, all_keys
from xl.configs.unbuilt import choices_to_come, is_unbuilt
from xl.configs.variables import setting_variables

PAGE = (Path(__file__).parents[2] / "docs" / "profile.md").read_text()


def row(key: Key) -> str:
    """The key's line of the table."""
    return f"| `{key.name}` | `{key.flag}` | {default(key)} | {' '.join(meaning(key))} |"


def default(key: Key) -> str:
    if key.kind == "mapping" or key.default == ():
        return "none"
    if key.default is None:
        return "from the machine"
    return str(key.default).lower() if isinstance(key.default, bool) else str(key.default)


def meaning(key: Key) -> Iterator[str]:
    yield key.description.replace("|", " or ")
    if key.choices:
        yield f"One of {', '.join(f'`{choice}`' for choice in key.choices)}."
    if is_unbuilt(key.name):
        yield "*Not in this version.*"
    elif to_come := choices_to_come(key.name, key.choices):
        yield f"*Not in this version: {', '.join(to_come)}.*"


def test_the_table_is_that_of_the_code() -> None:
    """Key by key in the profile's order; to mend it, copy the lines that the comparison shows."""
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    assert rows == [row(key) for key in all_keys().values()]


def test_the_page_tells_which_keys_have_no_variable() -> None:
    without = {key.variable for key in all_keys().values()} - set(setting_variables())
    assert without == {"XL_ENV"}
    assert "there is no `XL_ENV`" in PAGE


def test_the_page_names_the_variables_that_are_no_settings() -> None:
    for name in OWN_VARIABLES:
        assert f"- `{name}`" in PAGE
