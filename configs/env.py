"""The only reader of the environment; it imports nothing else of xl, as every worker starts with it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

OWN_VARIABLES = {
    "XL_CONFIG_HOME": "the user's config folder",
    "XL_CONFIG_FILE": "as --config-file",
    "XL_PROFILE": "as --profile",
}
"""Variables that are no settings, with what they are for."""

WORKER_VARIABLE = "XL_WORKER"
"""Holds a worker's settings, as JSON; the worker removes it before the script starts."""


def read_environ() -> dict[str, str]:
    """The environment as it is now."""
    return dict(os.environ)


def take_variable(name: str) -> str | None:
    """Return the variable and remove it, so that children of this process do not inherit it."""
    return os.environ.pop(name, None)


def change_environment(values: Mapping[str, str], unset: Iterable[str] = ()) -> None:
    """Set and remove variables of this process."""
    for name in unset:
        os.environ.pop(name, None)
    os.environ.update(values)
