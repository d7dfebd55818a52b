"""The profile that `xl config set` and `unset` change: which one it is, and how it is written back."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...configs import paths
from ...configs.documents import Document
from ...configs.errors import XlError
from ...configs.files import parse_document


@dataclass(frozen=True, slots=True)
class ProfileFile:
    """A profile to be changed.

    Args:
        shown: the file's name as messages show it.
    """

    path: Path
    shown: str

    def document(self, text: str) -> Document:
        """What that text would hold as this profile's file."""
        return parse_document(text, self.path, self.shown)


def profile_to_change(
    environ: Mapping[str, str], cwd: Path, named: str | None, command: str, words: Sequence[str]
) -> ProfileFile:
    """The profile named by `--profile`, which need not exist, or else the active one.

    Args:
        words: what the user typed behind the command, for messages.

    Raises:
        XlError: there is none, or it would be a preset, which is xl's own and stays as it is.
    """
    name = named if named is not None else paths.active_profile(environ)
    typed = shlex.join(words)
    values = f" {typed}" if command.endswith(" set") else ""
    if name is None:
        raise XlError(
            "no profile is active",
            "settings are kept in a profile, and --profile names none either",
            f"{command} --profile NAME {typed}, or xl config use NAME first",
        )
    path = paths.profile_path(environ, name)
    if not path.is_file() and name in paths.presets():
        raise XlError(
            f"the {'' if named else 'active '}profile {name} cannot be changed",
            "it is a preset that xl brings, and a profile of that name would hide it",
            f"xl config set --profile my-{name} preset {name}{values} makes a profile that starts from it",
        )
    if named is None and not path.is_file():
        raise XlError(
            f"the active profile {name} cannot be changed",
            f"there is no file of it in {path.parent}",
            f"xl config set --profile {name} KEY VALUE makes it anew, xl config use chooses another",
        )
    return ProfileFile(path, paths.shown(path, cwd))
