"""The user's config folder: named profiles, which one is active, and the presets that xl brings."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from .errors import XlError
from .guesses import nearest

_SUFFIXES = (".yaml", ".yml", ".json")
LONGEST_NAME = 64
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def config_home(environ: Mapping[str, str]) -> Path | None:
    """The user's config folder, which need not exist; None where the environment names no home."""
    if environ.get("XL_CONFIG_HOME"):
        return Path(environ["XL_CONFIG_HOME"])
    for variable, inner in (("XDG_CONFIG_HOME", ""), ("APPDATA", ""), ("HOME", ".config")):
        if environ.get(variable):
            return Path(environ[variable], inner, "xl")
    return None


def writable_home(environ: Mapping[str, str]) -> Path:
    """The user's config folder for writing."""
    home = config_home(environ)
    if home is None:
        raise XlError(
            "there is no config folder",
            "HOME, XDG_CONFIG_HOME and XL_CONFIG_HOME are all unset or empty",
            "set XL_CONFIG_HOME to a folder",
        )
    return home


def runs_folder(environ: Mapping[str, str]) -> Path:
    """Where logs of launches go that name no folder; without a home below the temporary folder."""
    for variable, inner in (("XDG_STATE_HOME", ""), ("HOME", ".local/state")):
        if environ.get(variable):
            return Path(environ[variable], inner, "xl", "runs")
    return Path(environ.get("TMPDIR") or "/tmp", "xl", "runs")


def shown(path: Path, cwd: Path) -> str:
    """The path as messages show it: relative where it is inside the working directory."""
    return str(path.relative_to(cwd)) if path.is_relative_to(cwd) else str(path)


def check_name(name: str) -> str:
    """The profile's name, if it can be one."""
    if name.lower().endswith(_SUFFIXES):
        raise XlError(
            f"{name!r} cannot be a profile's name",
            "a profile is named without its file's ending",
            f"say {os.path.splitext(name)[0]}; xl launch takes a file by --config-file {name}",
        )
    if len(name) > LONGEST_NAME:
        raise XlError(
            f"{name[:LONGEST_NAME]}… cannot be a profile's name",
            f"it has {len(name)} characters, and a name has at most {LONGEST_NAME}",
            "choose a shorter name",
        )
    if not _NAME.fullmatch(name):
        plain = _plain_letters(name)
        raise XlError(
            f"{name!r} cannot be a profile's name",
            "a name is made of a-z, A-Z, 0-9, '.', '_' and '-', and begins with a letter or digit",
            f"choose another name, such as {plain}" if plain else "choose another name",
        )
    return name


def _plain_letters(name: str) -> str:
    """The name with what cannot stand in it replaced: `ünï x` is `uni-x`."""
    import unicodedata  # only a mistake needs it

    ascii_only = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return re.sub(r"[^A-Za-z0-9._-]+", "-", ascii_only).strip("-._")


def hides_preset(name: str, fix: str) -> XlError:
    """The error for a new profile that has a preset's name."""
    return XlError(
        f"the profile cannot be called {name}",
        f"xl brings a preset {name}, which a profile of that name would hide",
        fix,
    )


def profile_path(environ: Mapping[str, str], name: str) -> Path:
    """Where the named profile is kept, or would be."""
    folder = writable_home(environ) / "profiles"
    candidates = [folder / f"{check_name(name)}{suffix}" for suffix in _SUFFIXES]
    return next((path for path in candidates if path.is_file()), candidates[0])


def user_profiles(environ: Mapping[str, str]) -> dict[str, Path]:
    """The user's profiles by name."""
    home = config_home(environ)
    return _by_name(home / "profiles") if home else {}


def presets() -> dict[str, Path]:
    """The presets by name."""
    return _by_name(Path(__file__).parent / "presets")


def _by_name(folder: Path) -> dict[str, Path]:
    try:
        found = sorted(folder.iterdir(), key=lambda path: path.stem)
    except OSError:
        # Not there, or another user's, as with sudo and a kept HOME.
        return {}
    files = (path for path in found if path.suffix in _SUFFIXES and path.is_file())
    return {path.stem: path for path in files if not path.name.startswith(".")}


def find_profile(environ: Mapping[str, str], name: str, named_by: str) -> Path:
    """The file of the user's profile of that name, else of the preset."""
    own, shipped = user_profiles(environ), presets()
    if name in own:
        return own[name]
    if name in shipped:
        return shipped[name]
    known = [*own, *shipped]
    guess = nearest(name, known)
    what = f"there is no profile {name}"
    if Path(name).suffix in _SUFFIXES:
        raise XlError(
            what,
            f"{named_by} takes a profile's name, not a file",
            f"xl config import {name} makes a profile of Accelerate's or DeepSpeed's file; "
            f"xl launch takes xl's own by --config-file {name}",
        )
    home = config_home(environ)
    raise XlError(
        what,
        f"{named_by} asks for it, and neither {home / 'profiles' if home else 'a config folder'} nor the "
        "presets hold one of that name",
        f"did you mean {guess}?" if guess else "use one of " + ", ".join(known),
    )


def find_preset(name: str, named_by: str) -> Path:
    """The file of the preset of that name."""
    shipped = presets()
    if name in shipped:
        return shipped[name]
    guess = nearest(name, shipped)
    raise XlError(
        f"there is no preset {name}",
        f"{named_by} asks for it, and xl brings none of that name",
        f"did you mean {guess}?" if guess else "use one of " + ", ".join(shipped),
    )


def active_file(environ: Mapping[str, str]) -> Path | None:
    """The file that holds the active profile's name."""
    home = config_home(environ)
    return home / "active" if home else None


def set_active(environ: Mapping[str, str], name: str | None) -> None:
    """Make the named profile the active one, or none of them."""
    pointer = writable_home(environ) / "active"
    if name is not None:
        from .atomic import write_atomic  # readers do without what it imports

        write_atomic(pointer, f"{name}\n")
        return
    try:
        pointer.unlink(missing_ok=True)
    except OSError as error:
        what = f"{pointer} cannot be removed: {error.strerror}"
        raise XlError(what, "it holds the active profile's name", "make its folder writable") from None


def active_profile(environ: Mapping[str, str]) -> str | None:
    """Name of the active profile."""
    pointer = active_file(environ)
    if pointer is None:
        return None
    try:
        return pointer.read_text(encoding="utf-8").strip() or None
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise XlError(
            f"{pointer} cannot be read: {error}",
            "it holds the name of the active profile",
            f"remove {pointer}, or set XL_CONFIG_HOME to another folder",
        ) from None
