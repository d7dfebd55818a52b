"""A union of two layers of files, as Linux' overlayfs makes: private ones above, the user's real ones below.

A path is seen in the upper layer if it is there, else in the lower one, unless it is *hidden* there: removed
by this process (a whiteout), or replaced by a folder of its own that shows nothing of the old one (an opaque
folder). A folder that is in both layers shows the names of both. The lower layer is what rank 0 found, see
`originals`. Symbolic links are followed here and not by the system, for a target may lie in either layer.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

from .originals import Originals

T = TypeVar("T")
StrPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]

_SYSTEM = ("/proc/", "/dev/", "/sys/")
_TOOLS = ("torchinductor_", ".triton", "__pycache__")
"""Folders of compilers, which other programs read by their real path; their file names are unique."""

_MAX_LINKS = 40  # as the kernel has it
_MAX_REACHED = 10_000


def is_outside(full: str) -> bool:
    """Whether an absolute path is a device, the system's, or a compiler's cache: left alone."""
    return full.startswith(_SYSTEM) or any(tool in full for tool in _TOOLS)


def below(full: str, folder: str) -> bool:
    """Whether the path `full` is `folder` or lies in it."""
    return full == folder or full.startswith(f"{folder}/")


class Spot(NamedTuple):
    """What a path leads to.

    Args:
        full: the absolute path as the script sees it, without symbolic links (but the last, if not followed).
        place: where the system finds it, or does not: all folders of this path are real ones.
        mode: of the file itself as `lstat` gives it; None: it is missing.
        real: it is left alone, `place` is `full`.
        ending: for an entry of a folder, what followed its name, or was in place of a name: `/`, `.` or `..`.
    """

    full: str
    place: str
    mode: int | None
    real: bool = False
    ending: str = ""

    @property
    def is_folder(self) -> bool:
        return self.mode is not None and stat.S_ISDIR(self.mode)


class Union:
    """Finds what this process sees at a path. Needs the real functions of `os`.

    Args:
        root: the folder that is the upper layer; it may not exist yet.
        originals: what rank 0 has changed in the lower layer.
        own: real files that are left alone.
    """

    def __init__(self, root: str, originals: Originals, own: Iterable[str] = ()) -> None:
        self.root = os.path.abspath(root)
        self._originals = originals
        self._hidden: dict[str, set[str]] = {}  # by folder: names that the lower layer must not show in it
        self._reached: dict[str, tuple[object, Spot]] = {}  # by a folder's name: what it was, where it leads
        self._reached_at = 0
        self._own = {os.path.realpath(path) for path in own}  # and temporary ones that this process made

    @property
    def seen(self) -> int:
        """How much of what rank 0 has changed is known here."""
        return self._originals.seen

    def refresh(self) -> int:
        """Learn what rank 0 has changed since; return `seen`."""
        return self._originals.refresh()

    def logical(self, path: StrPath) -> str:
        """Return the absolute path as the script sees it; links are not followed."""
        text = os.fsdecode(path)
        text = text if text.startswith("/") else f"{os.getcwd()}/{text}"
        for layer in (self.root, self._originals.where("")):
            if below(text, layer):
                return text[len(layer) :] or "/"
        return text

    def find(self, path: StrPath, *, follow: bool = True, settle: bool = True) -> Spot:
        """Return what `path` leads to.

        Args:
            path: as the script names it.
            follow: whether to follow a link that the final component is.
            settle: look again if rank 0 changed files meanwhile; without, the caller does.

        Raises:
            OSError: as the system, if a folder of the path is missing or no folder, or links form a loop.
        """
        while True:
            seen = self._originals.refresh()
            try:
                spot = self._find(path, follow=follow)
            except OSError:
                if not settle or self._originals.refresh() == seen:
                    raise
            else:
                if not settle or self._originals.refresh() == seen:
                    return spot

    def _find(self, path: StrPath, *, follow: bool) -> Spot:
        if not os.fspath(path):
            raise _error(errno.ENOENT, path)
        text = self.logical(path)
        if is_outside(os.path.normpath(text)):
            return Spot(text, text, _mode(text), real=True)
        if self._originals.seen != self._reached_at:
            self._reached.clear()
            self._reached_at = self._originals.seen
        folder, _, name = text.rpartition("/")
        if name in ("", ".", ".."):
            return self._go(_Walk(path, text.split("/")), follow=follow)
        spot = self._folder(path, folder)
        if spot.real and is_outside(spot.full):
            full = f"{spot.full}/{name}"
            return Spot(full, full, _mode(full), real=True)
        walk = _Walk(path, [name])
        walk.enter(spot.full.rstrip("/"))  # a process forked from this one may have written there since
        walk.place = spot.place
        return self._go(walk, follow=follow)

    def _folder(self, path: StrPath, folder: str) -> Spot:
        """Where the folder of `path` is. Most files are in a folder that was reached before."""
        identity = _identity(folder)  # another program may have changed a link on the way
        known = self._reached.get(folder)
        if known is not None and known[0] == identity:
            return known[1]
        walk = _Walk(path, [*folder.split("/"), ""])
        spot = self._go(walk, follow=True)
        if spot.mode is None and not spot.real:
            raise _error(errno.ENOENT, path)
        if len(self._reached) >= _MAX_REACHED:
            self._reached.clear()
        self._reached[folder] = identity, spot
        return spot

    def _go(self, walk: _Walk, *, follow: bool) -> Spot:
        """Walk to the end."""
        while walk.pending:
            name = walk.pending.pop()
            if name == "..":
                walk.enter(walk.full.rpartition("/")[0])
                if walk.full:
                    walk.place, walk.mode, walk.upper = self._look(walk.full, upper=True)
            elif name not in ("", "."):
                found = self._step(walk, name, follow)
                if found is not None:
                    return found
        return self._own_or(Spot(walk.full or "/", walk.place, walk.mode))

    def entry(self, path: StrPath) -> Spot:
        """Return the entry in its folder that `path` names, to make, remove or rename it.

        Raises:
            OSError: as `find`.
        """
        text = os.fsdecode(path)
        bare = text.rstrip("/")
        name = bare.rpartition("/")[2]
        if name in ("", ".", ".."):
            return self.find(path)._replace(ending=name or "/")
        return self.find(bare, follow=False)._replace(ending="/" if bare != text else "")

    def _step(self, walk: _Walk, name: str, follow: bool) -> Spot | None:
        """Go on to `name`; a spot is the end of the way, where it is not a folder."""
        full = f"{walk.full}/{name}"
        if f"{full}/" in _SYSTEM:
            full = "/".join([full, *reversed(walk.pending)])
            return Spot(full, full, _mode(full), real=True)
        place, mode, upper = self._look(full, upper=walk.upper)
        rest = any(walk.pending)
        if mode is None:
            if rest:
                raise _error(errno.ENOENT, walk.path)
            return self._own_or(Spot(full, self.root + full, None))
        if stat.S_ISLNK(mode) and (follow or walk.pending):
            walk.follow(os.readlink(place))
            return None
        if not stat.S_ISDIR(mode) and walk.pending:
            raise _error(errno.ENOTDIR, walk.path)
        walk.full, walk.place, walk.mode, walk.upper = full, place, mode, upper
        return None

    def _look(self, full: str, *, upper: bool) -> tuple[str, int | None, bool]:
        """Where `full`, whose folders are known to be seen, is found, its mode, and if it is above."""
        place = self.root + full
        if upper:
            mode = _mode(place)
            if mode is not None:
                return place, mode, True
        if self.is_hidden(full):
            return place, None, False
        lower = self._originals.place(full) or full
        return lower, _mode(lower), False

    def _own_or(self, spot: Spot) -> Spot:
        full = spot.full
        return Spot(full, full, _mode(full), real=True) if is_outside(full) or self._is_own(full) else spot

    def _is_own(self, full: str) -> bool:
        if self._own:
            while full:
                if full in self._own:
                    return True
                full = full.rpartition("/")[0]
        return False

    def is_private(self, spot: Spot) -> bool:
        """Whether what is found at `spot` may be changed there."""
        return spot.real or spot.place == self.root + spot.full

    def lower(self, full: str) -> str:
        """Where the lower layer has `full`, at this moment."""
        self._originals.refresh()
        return self._originals.place(full) or full

    def is_hidden(self, full: str) -> bool:
        """Whether the lower layer must not show `full`."""
        if self._hidden:
            while full:
                folder, _, name = full.rpartition("/")
                names = self._hidden.get(folder)
                if names is not None and name in names:
                    return True
                full = folder
        return False

    def hide(self, full: str) -> None:
        """Never show again what the lower layer has at `full` and below."""
        self._reached.clear()
        self._hidden.pop(full, None)
        if not self.is_hidden(full):
            folder, _, name = full.rpartition("/")
            self._hidden.setdefault(folder, set()).add(name)

    def at_lower(self, full: str, action: Callable[[str], T]) -> T:
        """Do `action` where the lower layer has `full`, and again if rank 0 touched that in the meantime."""
        while True:
            lower = self.lower(full)
            try:
                done = action(lower)
            except OSError:
                if self.lower(full) == lower:
                    raise
            else:
                if self.lower(full) == lower:
                    return done

    def shows_folder(self, full: str) -> bool:
        """Whether the lower layer has a folder `full` that shows through."""
        if self.is_hidden(full.rstrip("/")):
            return False
        mode = self.at_lower(full, _mode)
        return mode is not None and stat.S_ISDIR(mode)

    def names(self, spot: Spot) -> list[tuple[str, list[str]]]:
        """The folders that make up a folder, each with the names that it gives."""
        full = spot.full.rstrip("/")
        if spot.real:
            return [(spot.place, os.listdir(spot.place))]
        target = self.root + full
        private = os.listdir(target) if os.path.isdir(target) else []
        found: list[tuple[str, list[str]]] = []
        if not self.is_hidden(full):
            real = self.at_lower(
                spot.full,
                lambda lower: os.listdir(lower) if lower == spot.full and os.path.isdir(lower) else [],
            )
            names, kept = self._originals.names(spot.full, real)
            found = [(spot.full, names), (self._originals.where(full), kept)]
        covered = {*private, *self._hidden.get(full, ())}
        left = [(folder, [name for name in names if name not in covered]) for folder, names in found]
        return [(folder, names) for folder, names in [*left, (target, private)] if names]


class _Walk:
    """The state of following one path."""

    def __init__(self, path: StrPath, names: list[str]) -> None:
        self.path = path
        self.pending = names[::-1]
        self._links = 0
        self.enter("")

    def enter(self, full: str) -> None:
        """Start anew from a folder, of which it is not known what layer it is in."""
        self.full, self.place = full, "/"
        self.mode: int | None = stat.S_IFDIR
        self.upper = True  # the folder reached may be in the upper layer

    def follow(self, target: str) -> None:
        """Go on with a link's target, from the folder reached."""
        self._links += 1
        if self._links > _MAX_LINKS:
            raise _error(errno.ELOOP, self.path)
        self.pending.extend(target.split("/")[::-1])
        if target.startswith("/"):
            self.enter("")


def _mode(place: str) -> int | None:
    try:
        return os.lstat(place).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None


def _identity(place: str) -> tuple[int, int] | None:
    try:
        found = os.stat(place or "/")
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _error(number: int, path: StrPath) -> OSError:
    return OSError(number, os.strerror(number), os.fspath(path))
