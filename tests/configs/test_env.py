"""The environment is read as a copy, and changed only where that is asked for."""

from __future__ import annotations

import os

from xl.configs.env import change_environment, read_environ, take_variable


def test_the_snapshot_is_a_copy() -> None:
    snapshot = read_environ()
    snapshot["XL_SEED"] = "1"
    assert "XL_SEED" not in read_environ()


def test_variables_are_set_taken_and_removed() -> None:
    change_environment({"XL_TEST_ONE": "1", "XL_TEST_TWO": "2"})
    assert take_variable("XL_TEST_ONE") == "1"
    assert take_variable("XL_TEST_ONE") is None
    change_environment({}, ["XL_TEST_TWO", "XL_TEST_NONE"])
    assert not any(name.startswith("XL_TEST_") for name in os.environ)
