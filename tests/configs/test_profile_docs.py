"""docs/profile.md lists every key as the code has it."""

from pathlib import Path

import pytest

from xl.configs.keys import all_keys

PAGE = (Path(__file__).parents[2] / "docs" / "profile.md").read_text()


@pytest.mark.parametrize("name", list(all_keys()))
def test_the_page_has_the_key(name: str) -> None:
    key = all_keys()[name]
    (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| `{name}` |")]
    assert f"| `{key.flag}` |" in row
    assert key.description.replace("|", " or ") in row
