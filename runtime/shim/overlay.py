"""Writes to the upper layer of a union: copies up what is changed, hides what is removed, moves and links.

The real files are never written, renamed or removed. All methods need the real functions of `os`: `files.py`
calls them while its patches pass through.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Callable

from .union import Spot, StrPath, Union, below


class Overlay(Union):
    """A union of which the upper layer is this process's own."""

    def claim(self, path: StrPath) -> None:
        """Leave `path` and what is below it alone from now on: a real file with a unique name, made by us."""
        spot = self.find(path, follow=False)
        folder = os.path.dirname(spot.full)
        if (
            not spot.real and self.shows_folder(folder) and self.lower(folder) == folder
        ):  # it is no private one
            self._own.add(spot.full)

    def lift(self, spot: Spot, *, keep: bool) -> str:
        """Return the path to write a file at; with `keep` its content is there."""
        target = self.root + spot.full
        if spot.is_folder or (spot.mode is not None and self.is_private(spot)):
            return spot.place
        if spot.mode is None:
            return self.room(spot)
        if not (stat.S_ISREG(spot.mode) or stat.S_ISLNK(spot.mode)):
            return spot.place  # a pipe or a socket: what is written reaches its reader, not a file
        if not stat.S_ISLNK(spot.mode):
            self._check_access(spot.full, os.W_OK)
        self._lift_folder(os.path.dirname(spot.full))
        if keep:
            self._copy(spot, target)
        else:
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT))
            os.chmod(target, stat.S_IMODE(spot.mode))
        return target

    def room(self, spot: Spot) -> str:
        """Return the path to make a new file at, or one in place of another; its folder is there."""
        if spot.real:
            return spot.place
        folder = os.path.dirname(spot.full)
        if self.shows_folder(folder):
            self._check_access(folder, os.W_OK | os.X_OK)
        self._lift_folder(folder)
        self._reached.clear()  # there may be a folder or a link at once
        return self.root + spot.full

    def remove(self, spot: Spot) -> None:
        """Make a file or a folder vanish for this process only."""
        target = self.root + spot.full
        if os.path.isdir(target) and not os.path.islink(target):
            shutil.rmtree(target)
        elif os.path.lexists(target):
            os.unlink(target)
        self.hide(spot.full)

    def move(self, source: Spot, target: Spot, rename: Callable[[str, str], object]) -> None:
        """Rename `source` to `target`, in place of what is there, as the system would."""
        if not self._same_device(source, target):
            raise error_of(errno.EXDEV, source)
        number = self._obstacle(source, target)
        if number:
            raise error_of(number, source)
        if source.full == target.full:
            return
        place = self.room(target)
        origin = source.place if source.real else self._lift_tree(source)
        try:
            rename(origin, place)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            _move_over(origin, place)  # the layers are on two file systems
        if not source.real and not os.path.lexists(origin):  # two names of one file are left by the system
            self.hide(source.full)
            self._drop_own(source.full)
        if not target.real:
            self.hide(target.full)

    def link(self, source: Spot, target: Spot, link: Callable[[str, str], object]) -> None:
        """Give a file a second name. One to the real file would let a later write reach it."""
        if target.mode is not None:
            raise error_of(errno.EEXIST, source)
        if target.ending:
            raise error_of(errno.ENOENT, source)
        if not self._same_device(source, target):
            raise error_of(errno.EXDEV, source)
        if source.is_folder:
            raise error_of(errno.EPERM, source)
        place = self.room(target)
        origin = self.lift(source, keep=True)
        try:
            link(origin, place)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            shutil.copy2(origin, place, follow_symlinks=False)  # the layers are on two file systems

    def _obstacle(self, source: Spot, target: Spot) -> int:
        """The error that the system gives for a rename, or 0."""
        if "." in source.ending or "." in target.ending:
            return errno.EBUSY
        if source.mode is None:
            return errno.ENOENT
        if not source.is_folder and (source.ending or target.ending):
            return errno.ENOTDIR
        if source.full == target.full:
            return 0
        if below(target.full, source.full):
            return errno.EINVAL
        if below(source.full, target.full):
            return errno.ENOTEMPTY
        if target.mode is None:
            return 0
        if source.is_folder != target.is_folder:
            return errno.EISDIR if target.is_folder else errno.ENOTDIR
        return errno.ENOTEMPTY if target.is_folder and self.names(target) else 0

    def _check_access(self, full: str, mode: int) -> None:
        if not self.at_lower(full, lambda lower: os.access(lower, mode)):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), full)

    def _same_device(self, first: Spot, second: Spot) -> bool:
        return self._device(first.full) == self._device(second.full)

    def _device(self, full: str) -> int:
        """The device of the real folder that `full` lies in, or would."""
        while full != "/":
            full = os.path.dirname(full)
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                return os.lstat(full).st_dev
        return -1

    def _drop_own(self, full: str) -> None:
        """Remove our own real files below a folder that is no longer there."""
        for own in [own for own in self._own if below(own, full)]:
            self._own.discard(own)
            if os.path.isdir(own):
                shutil.rmtree(own)
            elif os.path.lexists(own):
                os.unlink(own)

    def _lift_tree(self, spot: Spot) -> str:
        """Copy up a file, or a folder with all that is seen in it; return where it is then."""
        target = self.root + spot.full
        if spot.real:  # one of our own, in a folder that is copied
            (shutil.copytree if spot.is_folder else shutil.copy2)(spot.place, target)
        elif not spot.is_folder:
            self.lift(spot, keep=True)
        else:
            self._lift_folder(spot.full)
            for _, names in self.names(spot):
                for name in names:
                    self._lift_tree(self.find(f"{spot.full}/{name}", follow=False))
        return target

    def _lift_folder(self, full: str) -> None:
        """Make a folder that is seen exist in the upper layer; what is below it is still seen through."""
        target = self.root + full.rstrip("/")
        if os.path.isdir(target):
            return
        if full == "/":
            os.makedirs(target)
            return
        self._lift_folder(os.path.dirname(full))
        self._reached.clear()
        os.mkdir(target)
        if self.shows_folder(full):
            self.at_lower(full, lambda lower: shutil.copystat(lower, target))
            os.chmod(target, stat.S_IMODE(os.stat(target).st_mode) | stat.S_IRWXU)  # we must get in

    def _copy(self, spot: Spot, target: str) -> None:
        """Copy a file up."""

        def copy(lower: str) -> None:
            with contextlib.suppress(FileNotFoundError):  # from a time before
                os.unlink(target)
            shutil.copy2(lower, target, follow_symlinks=False)

        self.at_lower(spot.full, copy)


def error_of(number: int, spot: Spot) -> OSError:
    """The system's error of that number."""
    return OSError(number, os.strerror(number), spot.full)


def _move_over(origin: str, place: str) -> None:
    if os.path.isdir(place) and not os.path.islink(place):
        os.rmdir(place)
    shutil.move(origin, place)
