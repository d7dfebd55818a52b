"""The only reader of the environment, and the `XL_*` variables: one for each setting, and xl's own."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from .errors import XlError
from .guesses import nearest
from .layers import Layer, Origin, Value

OWN_VARIABLES = {
    "XL_CONFIG_HOME": "the user's config folder",
    "XL_CONFIG_FILE": "as --config-file",
    "XL_PROFILE": "as --profile",
}
"""Variables that are no settings, with what they are for."""

WORKER_VARIABLE = "XL_WORKER"
"""Holds a worker's settings, as JSON; the worker removes it before the script starts."""

OWN_PREFIXES = ("XL_WORKER_",)
"""What xl hands to the processes it starts; a launch inside a launch sees them."""


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


def setting_variables() -> dict[str, str]:
    """The variable of each setting, with the setting's key."""
    from .keys import all_keys

    return {key.variable: key.name for key in all_keys().values() if key.kind != "mapping"}


def variables_layer(environ: Mapping[str, str], problems: list[XlError]) -> Layer:
    """The settings that `XL_*` variables give; what is wrong with any of them goes to `problems`."""
    from .keys import all_keys, parse

    layer = Layer("variable", "XL_* variables")
    names = setting_variables()
    for variable in sorted(name for name in environ if name.startswith("XL_")):
        if variable in OWN_VARIABLES or variable.startswith(OWN_PREFIXES):
            continue
        if variable not in names:
            problems.append(_unknown(variable, names))
            continue
        key = all_keys()[names[variable]]
        try:
            value = parse(key, environ[variable], variable)
        except XlError as problem:
            problems.append(problem)
        else:
            layer.values[key.name] = Value(value, Origin("variable", variable))
    return layer


def _unknown(variable: str, names: Mapping[str, str]) -> XlError:
    if variable == "XL_ENV":
        fix = "set the variables themselves, or pass --env NAME=VALUE"
    else:
        guess = nearest(variable, [*names, *OWN_VARIABLES], cutoff=0.7)
        fix = f"did you mean {guess}?" if guess else f"unset {variable}; xl config schema lists every setting"
    return XlError(f"unknown variable {variable}", "variables that begin with XL_ are xl's settings", fix)
