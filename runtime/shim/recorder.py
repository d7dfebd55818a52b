"""On rank 0, which works on the user's real files: writes down each path before it is touched."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from .file_patches import FilePatches, Function, writes
from .originals import Originals
from .overlay import is_outside

if TYPE_CHECKING:
    from .session import Session

_CHANGED = {"mkdir": (0,), "truncate": (0,), "link": (0, 1), "symlink": (1,)}
_UNLINKED = {"rmdir": (0,), "unlink": (0,), "remove": (0,), "rename": (0, 1), "replace": (0, 1)}


class Recorder:
    """The patched functions of rank 0: each keeps what was there, and calls the real one.

    Args:
        session: the shim's state.
        originals: where it is kept.
        own: files and folders of ours, which no script looks at.
    """

    def __init__(self, session: Session, originals: Originals, own: Sequence[str]) -> None:
        self._originals, self._own = originals, tuple(os.path.abspath(path) for path in own)
        self._patches = FilePatches(session)

    def install(self) -> None:
        """Patch everything that changes files."""
        actions: dict[str, Function] = {"open": self._open}
        actions |= {name: partial(self._touch, at, False) for name, at in _CHANGED.items()}
        actions |= {name: partial(self._touch, at, True) for name, at in _UNLINKED.items()}
        self._patches.replace(actions, self._open, partial(self._touch, (1,), False))
        self._patches.patch(shutil, "rmtree", partial(self._touch, (0,), True))

    def _open(self, real: Function, path: Any, mode: str | int = "r", *args: Any, **kwargs: Any) -> Any:
        if writes(mode):
            self._keep(path, unlinked=False)
        return real(path, mode, *args, **kwargs)

    def _touch(self, at: Sequence[int], unlinked: bool, real: Function, *args: Any, **kwargs: Any) -> Any:
        for index in at:
            if index < len(args):
                self._keep(args[index], unlinked=unlinked)
        return real(*args, **kwargs)

    def _keep(self, path: object, *, unlinked: bool) -> None:
        if not isinstance(path, str | bytes | os.PathLike):
            return
        full = os.path.abspath(os.fsdecode(cast("str", path)))
        ours = any(full == own or full.startswith(f"{own}/") for own in self._own)
        if not ours and not is_outside(full):
            self._originals.keep(full, unlinked=unlinked)
