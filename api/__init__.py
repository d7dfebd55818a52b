"""Public names of xl, loaded on first use: importing xl imports neither torch nor the command line."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xl.configs.errors import XlError as XlError
    from xl.launcher.plan import LaunchPlan as LaunchPlan

__version__ = "0.1.0"
__all__ = ["LaunchPlan", "XlError", "__version__"]

_HOMES = {"LaunchPlan": "xl.launcher.plan", "XlError": "xl.configs.errors"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'xl' has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
