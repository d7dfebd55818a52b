"""On rank 0, which works on the user's real files: writes down each path before it is touched."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from .file_patches import FilePatches, Function, writes
from .originals import Originals
from .union import StrPath, below, is_outside

if TYPE_CHECKING:
    from .session import Session

_CHANGED = {"mkdir": (0,), "link": (0, 1), "symlink": (1,), "mkfifo": (0,), "mknod": (0,)}
_UNLINKED = {"rmdir": (0,), "unlink": (0,), "remove": (0,), "rename": (0, 1), "replace": (0, 1)}


class Recorder:
    """The patched functions of rank 0: each keeps what was there, and calls the real one.

    Args:
        session: the shim's state.
        originals: where it is kept.
        own: files and folders of ours, which no script looks at.
    """

    def __init__(self, session: Session, originals: Originals, own: Sequence[str]) -> None:
        self._originals, self._own = originals, tuple(os.path.realpath(path) for path in own)
        self._patches = FilePatches(session)

    def install(self) -> None:
        """Patch everything that changes files."""
        actions: dict[str, Function] = {"open": self._os_open, "truncate": self._truncate}
        actions |= {name: partial(self._touch, at, False) for name, at in _CHANGED.items()}
        actions |= {name: partial(self._touch, at, True) for name, at in _UNLINKED.items()}
        self._patches.replace(actions, self._open, self._save)
        self._patches.patch(shutil, "rmtree", partial(self._touch, (0,), True))

    def _open(self, real: Function, path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if writes(mode):
            self._keep(path, content=True)
        return real(path, mode, *args, **kwargs)

    def _os_open(self, real: Function, path: Any, flags: int, *args: Any, **kwargs: Any) -> Any:
        if writes(flags):
            self._keep(path, content=True)
        return real(path, flags, *args, **kwargs)

    def _truncate(self, real: Function, path: Any, length: int) -> None:
        self._keep(path, content=True)
        real(path, length)

    def _save(self, real: Function, obj: object, f: Any, *args: Any, **kwargs: Any) -> Any:
        self._keep(f, content=True)
        return real(obj, f, *args, **kwargs)

    def _touch(self, at: Sequence[int], unlinked: bool, real: Function, *args: Any, **kwargs: Any) -> Any:
        for index in at:
            self._keep(args[index], unlinked=unlinked)
        return real(*args, **kwargs)

    def _keep(self, path: StrPath, *, unlinked: bool = False, content: bool = False) -> None:
        """Keep what is at `path`: what its links lead to if `content` changes, else the last link itself."""
        text = os.fsdecode(path)
        folder, name = os.path.split(text)
        if content or name in ("", ".", ".."):  # a slash at the end follows a link
            full = os.path.realpath(text)
        else:
            full = os.path.join(os.path.realpath(folder), name)
        outside = is_outside(full) or is_outside(os.path.abspath(text))
        if not outside and not any(below(full, own) for own in self._own):
            self._originals.keep(full, unlinked=unlinked)
            if content:
                self._originals.detach(full)
