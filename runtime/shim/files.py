"""Ranks above 0 never touch the user's files: what they write, rename and remove is in a private overlay.

Covered is what goes through Python's `open`, `os`, `shutil` and `torch.save`/`load`, and so `pathlib`, numpy
and most libraries. Not covered are libraries that open files in C (sqlite, HDF5) and other programs.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportPrivateUsage=false
# (torch annotates parts of itself incompletely, and not all that a shim needs is public)

from __future__ import annotations

import errno
import functools
import os
import shutil
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from .entries import Entries, Entry
from .file_patches import FilePatches, Function, writes
from .originals import Originals
from .overlay import Overlay, error_of
from .recorder import Recorder
from .union import Spot

if TYPE_CHECKING:
    from .session import Session

_FOLLOWING = ("stat", "statvfs", "getxattr", "listxattr")
_NOT_FOLLOWING = ("lstat", "readlink")
_MARKING = ("chmod", "chown", "utime", "setxattr", "removexattr")
_BY_DESCRIPTOR = "_use_fd_functions"  # in `shutil`: how it removes a tree
_NAMELESS = getattr(os, "O_TMPFILE", -1)


def install(session: Session, root: str) -> None:
    """Patch this process's ways to files; `root` is this rank's folder, its parent that of all ranks."""
    originals = Originals(os.path.join(os.path.dirname(os.path.abspath(root)), "before"))
    own = [path for path in (session.settings.error_file, session.settings.report_file) if path is not None]
    if session.rank == 0:
        Recorder(session, originals, [os.path.dirname(originals.folder), *own]).install()
        return
    _Files(session, Overlay(root, originals, own)).install()


class _Files:
    """The patched functions of a rank above 0; each decides where a path leads and calls the real one."""

    def __init__(self, session: Session, overlay: Overlay) -> None:
        self._session, self._overlay = session, overlay
        self._patches = FilePatches(session)

    def install(self) -> None:
        """Patch everything."""
        actions: dict[str, Function] = {
            "open": self._os_open, "access": self._access, "chdir": self._chdir, "mkdir": self._mkdir,
            "mkfifo": self._make, "mknod": self._make,
            "rmdir": self._rmdir, "unlink": self._unlink, "remove": self._unlink, "rename": self._rename,
            "replace": self._rename, "link": self._link, "symlink": self._symlink,
            "truncate": self._truncate, "lchown": self._mark_link,
        }  # fmt: skip
        actions.update(dict.fromkeys(_FOLLOWING, self._look))
        actions.update(dict.fromkeys(_NOT_FOLLOWING, self._look_at_link))
        actions.update(dict.fromkeys(_MARKING, self._mark))
        self._patches.replace(actions, self._open, self._save)
        self._patches.patch_listing("listdir", self._listdir)
        self._patches.patch_listing("scandir", self._scandir)
        self._patches.patch(torch, "load", self._load)
        if hasattr(shutil, _BY_DESCRIPTOR):  # `rmtree` by path: rank 0 may remove a folder held open
            self._session.patch(shutil, _BY_DESCRIPTOR, getattr(shutil, _BY_DESCRIPTOR))
            self._session.patch(shutil, "rmtree", self._rmtree(shutil.rmtree))
        self._session.patch(os, "getcwd", self._getcwd(os.getcwd))
        self._session.patch(os, "getcwdb", lambda: os.fsencode(os.getcwd()))

    def _read(self, path: Any, action: Callable[[Spot], Any], *, follow: bool = True) -> Any:
        """Do `action` where `path` leads, and again if rank 0 touched that in the meantime."""
        while True:
            seen, spot = self._overlay.seen, None
            found: Any = None
            failed: OSError | None = None
            try:
                spot = self._overlay.find(path, follow=follow, settle=False)
                found = action(spot)
            except OSError as error:
                failed = error
            if self._overlay.refresh() == seen or self._leads_to(spot, path, follow=follow):
                if failed is not None:
                    raise failed
                return found
            _drop(found)

    def _leads_to(self, spot: Spot | None, path: Any, *, follow: bool) -> bool:
        try:
            return spot is not None and self._overlay.find(path, follow=follow).place == spot.place
        except OSError:
            return False

    def _look(self, real: Function, path: Any, *args: Any, **kwargs: Any) -> Any:
        return self._read(
            path, lambda spot: real(spot.place, *args, **kwargs), follow=kwargs.get("follow_symlinks", True)
        )

    def _look_at_link(self, real: Function, path: Any) -> Any:
        found = self._read(path, lambda spot: real(spot.place), follow=False)
        return os.fsencode(found) if isinstance(path, bytes) and isinstance(found, str) else found

    def _access(self, real: Function, path: Any, *args: Any, **kwargs: Any) -> bool:
        try:
            return self._look(real, path, *args, **kwargs)
        except OSError:
            return False

    def _chdir(self, real: Function, path: Any) -> None:
        full = self._overlay.logical(path) if os.fspath(path) else path  # also after a change, to look again
        self._read(full, lambda spot: real(spot.place))

    def _mark(self, real: Function, path: Any, *args: Any, **kwargs: Any) -> Any:
        spot = self._overlay.find(path, follow=kwargs.get("follow_symlinks", True))
        return self._mark_there(spot, partial(real, spot.place, *args, **kwargs))

    def _mark_link(self, real: Function, path: Any, *args: Any) -> Any:
        spot = self._overlay.find(path, follow=False)
        return self._mark_there(spot, partial(real, spot.place, *args))

    def _mark_there(self, spot: Spot, mark: Callable[[], Any]) -> Any:
        # Of a missing file it fails as the script expects.
        return mark() if spot.mode is None or self._overlay.is_private(spot) else None

    def _open(self, real: Function, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if not writes(mode):
            return _named(file, self._read(file, lambda spot: real(spot.place, mode, *args, **kwargs)))
        new = "x" in mode
        keep = "w" not in mode and not new
        place = self._place_to_write(file, new=new, keep=keep, creates="r" not in mode)
        return _named(file, real(place, mode, *args, **kwargs))

    def _os_open(self, real: Function, path: Any, flags: int, *args: Any, **kwargs: Any) -> Any:
        if _called_by_tempfile():
            self._overlay.claim(path)
        if not writes(flags) or flags & _NAMELESS == _NAMELESS:
            follow = not flags & os.O_NOFOLLOW
            descriptor, spot = self._read(
                path, lambda spot: (real(spot.place, flags, *args, **kwargs), spot), follow=follow
            )
            if spot.is_folder:
                self._patches.opened(descriptor, spot.full)
            return descriptor
        new = flags & (os.O_EXCL | os.O_CREAT) == os.O_EXCL | os.O_CREAT
        follow = not (new or flags & os.O_NOFOLLOW)
        keep, creates = not (flags & os.O_TRUNC or new), bool(flags & os.O_CREAT)
        place = self._place_to_write(path, new=new, keep=keep, creates=creates, follow=follow)
        return real(place, flags, *args, **kwargs)

    def _place_to_write(
        self, path: Any, *, new: bool = False, keep: bool, creates: bool = True, follow: bool = True
    ) -> str:
        if creates:
            entry = self._overlay.entry(path)
            if entry.ending == "/":
                raise error_of(errno.EISDIR, entry)
        spot = self._overlay.find(path, follow=follow and not new)
        if new and spot.mode is not None:
            raise error_of(errno.EEXIST, spot)
        return self._overlay.lift(spot, keep=keep)

    def _mkdir(self, real: Function, path: Any, *args: Any, **kwargs: Any) -> None:
        if _called_by_tempfile():
            self._overlay.claim(path)
        real(self._new(path, folder=True), *args, **kwargs)

    def _make(self, real: Function, path: Any, *args: Any, **kwargs: Any) -> None:
        real(self._new(path), *args, **kwargs)

    def _new(self, path: Any, *, folder: bool = False) -> str:
        """Where to make something at `path`, at which there must be nothing."""
        spot = self._overlay.entry(path)
        if spot.mode is not None:
            raise error_of(errno.EEXIST, spot)
        if spot.ending and not folder:
            raise error_of(errno.ENOENT, spot)
        return self._overlay.room(spot)

    def _unlink(self, real: Function, path: Any) -> None:
        spot = self._overlay.entry(path)
        if spot.real or spot.mode is None or spot.is_folder:
            return real(spot.place)  # a missing file or a folder: it fails as the script expects
        if spot.ending:
            raise error_of(errno.ENOTDIR, spot)
        return self._overlay.remove(spot)

    def _rmdir(self, real: Function, path: Any) -> None:
        spot = self._overlay.entry(path)
        if spot.real or not spot.is_folder:
            return real(spot.place)  # as above
        if spot.ending == ".":
            raise error_of(errno.EINVAL, spot)
        if self._overlay.names(spot):
            raise error_of(errno.ENOTEMPTY, spot)
        return self._overlay.remove(spot)

    def _rename(self, real: Function, source: Any, target: Any) -> None:
        self._overlay.move(self._overlay.entry(source), self._overlay.entry(target), real)

    def _link(self, real: Function, source: Any, target: Any, **kwargs: Any) -> None:
        origin = self._overlay.find(source, follow=False)
        if origin.mode is None:
            raise error_of(errno.ENOENT, origin)
        self._overlay.link(origin, self._overlay.entry(target), real)

    def _symlink(self, real: Function, source: Any, target: Any, *args: Any, **kwargs: Any) -> None:
        real(source, self._new(target), *args, **kwargs)

    def _truncate(self, real: Function, path: Any, length: int) -> None:
        spot = self._overlay.find(path)
        real(spot.place if spot.mode is None else self._overlay.lift(spot, keep=True), length)

    def _listdir(self, real: Function, path: Any, *, by_descriptor: bool = False) -> Any:
        def names(spot: Spot) -> Any:
            if spot.real or not spot.is_folder:
                return real(spot.place)
            return [name for _, found in self._overlay.names(spot) for name in found]

        found = self._read(path, names)
        return [os.fsencode(name) for name in found] if isinstance(path, bytes) else found

    def _scandir(self, real: Function, path: Any, *, by_descriptor: bool = False) -> Any:
        full = self._overlay.logical(path)
        as_given: Any = os.fspath(path)
        in_bytes = isinstance(as_given, bytes)
        shown: Function = partial(os.path.join, as_given)
        join: Function = partial(os.path.join, os.fsencode(full)) if in_bytes else partial(os.path.join, full)

        def entries(spot: Spot) -> Any:
            if not spot.is_folder:
                return real(spot.place)
            entries: list[Any] = []
            for folder, names in self._overlay.names(spot):
                with real(os.fsencode(folder) if in_bytes else folder) as found:
                    wanted = set(names)
                    entries += [entry for entry in found if os.fsdecode(entry.name) in wanted]
            return entries

        return Entries(
            [
                Entry(entry, entry.name if by_descriptor else shown(entry.name), join(entry.name))
                for entry in self._read(path, entries)
            ]
        )

    def _save(self, real: Function, obj: object, f: Any, *args: Any, **kwargs: Any) -> Any:
        # torch writes archives in C++, which no patch of `open` sees.
        try:
            place = self._place_to_write(f, keep=False)
        except (FileNotFoundError, NotADirectoryError):
            if not os.fspath(f) or not kwargs.get("_use_new_zipfile_serialization", True):
                raise
            raise RuntimeError(f"Parent directory {os.path.dirname(f)} does not exist.") from None
        return real(obj, place, *args, **kwargs)

    def _load(self, real: Function, f: Any, *args: Any, **kwargs: Any) -> Any:
        return self._read(f, lambda spot: real(spot.place, *args, **kwargs))

    def _rmtree(self, real: Function) -> Function:
        by_descriptor: bool = getattr(shutil, _BY_DESCRIPTOR)

        @functools.wraps(real)
        def rmtree(path: Any, *args: Any, **kwargs: Any) -> Any:
            # Of a link only the errors are wanted, and those of the other way name it more exactly.
            wanted = self._patches.passing or kwargs.get("dir_fd") is not None or os.path.islink(path)
            setattr(shutil, _BY_DESCRIPTOR, by_descriptor and wanted)
            return real(path, *args, **kwargs)

        return rmtree

    def _getcwd(self, real: Callable[[], str]) -> Callable[[], str]:
        def getcwd() -> str:
            if self._patches.passing:
                return real()
            with self._patches.real_files():
                return self._overlay.logical(real())

        return getcwd


def _drop(found: Any) -> None:
    """Close what was opened at the wrong place."""
    if hasattr(found, "close"):
        found.close()
    elif isinstance(found, tuple) and isinstance(found[-1], Spot):
        os.close(found[0])


def _named(path: Any, file: Any) -> Any:
    """Call an open file as the script did."""
    buffer = getattr(file, "buffer", file)
    getattr(buffer, "raw", buffer).name = os.fspath(path)
    return file


def _called_by_tempfile() -> bool:
    """Temporary names are unique and other programs may be given them: such files stay real."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") in (__name__, FilePatches.__module__):
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__") == "tempfile"
