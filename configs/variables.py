"""The `XL_*` variables: one for each setting, and xl's own."""

from __future__ import annotations

from collections.abc import Mapping

from .env import OWN_VARIABLES
from .errors import XlError
from .guesses import nearest
from .keys import all_keys, parse
from .layers import Layer, Origin, Value

OWN_PREFIXES = ("XL_WORKER_",)
"""What xl hands to the processes it starts; a launch inside a launch sees them."""


def setting_variables() -> dict[str, str]:
    """The variable of each setting, with the setting's key."""
    return {key.variable: key.name for key in all_keys().values() if key.kind != "mapping"}


def variables_layer(environ: Mapping[str, str], problems: list[XlError]) -> Layer:
    """The settings that `XL_*` variables give; what is wrong with any of them goes to `problems`."""
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
