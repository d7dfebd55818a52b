"""The user's files as they were before rank 0 changed them, for the ranks that are not as far yet.

All ranks run the same program, and only rank 0 changes real files. A rank that comes a moment later must
see what rank 0 saw at the same place: no file where rank 0 has just created one, the old content where it
has just written. So rank 0 writes down each path before it touches it, and keeps what was there.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat

from ...configs.errors import XlError

_MAX_KEPT_BYTES = 256 * 1024**2


class Originals:
    """A journal of the paths that rank 0 has touched, and a folder with what was there before.

    Needs the real functions of `os`, as `Overlay` does.

    Args:
        folder: shared by the ranks of this machine; rank 0 makes it when first needed.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._journal = os.path.join(folder, "journal")
        self._files = os.path.join(folder, "files")
        self._known: dict[str, bool] = {}  # by path: False where it was too large to keep
        self._read = 0
        self._linked: dict[tuple[int, int], list[str]] = {}  # rank 0: paths kept by a link, by inode

    def keep(self, full: str, *, unlinked: bool = False) -> None:
        """Rank 0: remember `full`, an absolute path, as it is now; once for each path.

        Args:
            full: the path. unlinked: its content will not be changed, only its name taken away.
        """
        if self._entry(full) is not None:
            return
        if not unlinked and os.path.isdir(full):
            return  # nothing changes it: the script's mkdir fails, and O_TMPFILE makes no name
        os.makedirs(self.folder, exist_ok=True)
        kept = True
        if os.path.lexists(full):
            try:
                kept = self._copy(full, self._files + full, link=unlinked)
            except OSError:
                kept = False
        self._note(full, kept=kept)

    def detach(self, full: str) -> None:
        """Rank 0: the file at `full` is about to change in place; keep a copy where a link to it is kept.

        A renamed file is the same one at its new path, and what is kept for its old path links to it.
        """
        if not self._linked:
            return
        try:
            found = os.stat(full)
        except OSError:
            return
        for path in self._linked.pop((found.st_dev, found.st_ino), []):
            kept = self._files + path
            if found.st_size > _MAX_KEPT_BYTES:
                self._note(path, kept=False)
            else:
                shutil.copy2(full, f"{self.folder}/copy")
                os.replace(f"{self.folder}/copy", kept)

    def _note(self, full: str, *, kept: bool) -> None:
        self._known[full] = kept
        line = json.dumps([full, kept]) + "\n"
        descriptor = os.open(self._journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    @property
    def seen(self) -> int:
        """Other ranks: how much of the journal was read."""
        return self._read

    def refresh(self) -> int:
        """Other ranks: read what rank 0 has written since; return `seen`."""
        try:
            if os.stat(self._journal).st_size == self._read:
                return self._read
        except FileNotFoundError:
            return 0
        with open(self._journal, "rb") as file:
            file.seek(self._read)
            data = file.read()
        complete = data[: data.rfind(b"\n") + 1]
        self._read += len(complete)
        for line in complete.splitlines():
            path, kept = json.loads(line)
            self._known[path] = kept
        return self._read

    def place(self, full: str) -> str | None:
        """Where to find `full` as it was, existing or not; None: rank 0 has not touched it.

        Raises:
            XlError: it was too large to be kept.
        """
        entry = self._entry(full)
        if entry is None:
            return None
        if not self._known[entry]:
            raise XlError(
                f"{full} is read on one process after another has begun to change it",
                f"its old content was not kept: it is larger than {_MAX_KEPT_BYTES // 1024**2} MB, "
                "or could not be copied",
                "read it before it is written, write to another file, or pass --num-processes 1",
                exit_code=1,
            )
        return self._files + full

    def where(self, full: str) -> str:
        """Where `full` is kept, if it is."""
        return self._files + full

    def names(self, full: str, real: list[str]) -> tuple[list[str], list[str]]:
        """Of the folder `full`, given the names there now: those untouched, and those kept here."""
        if self.place(full) is not None:
            return [], self._listing(self._files + full)
        touched = {os.path.basename(path) for path in self._known if os.path.dirname(path) == full}
        kept = [name for name in self._listing(self._files + full) if name in touched]
        return [name for name in real if name not in touched], kept

    def _entry(self, full: str) -> str | None:
        while self._known:
            if full in self._known:
                return full
            if not full:
                break
            full = full.rpartition("/")[0]
        return None

    def _listing(self, folder: str) -> list[str]:
        return os.listdir(folder) if os.path.isdir(folder) else []

    def _copy(self, source: str, target: str, *, link: bool) -> bool:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.isdir(source) and not os.path.islink(source):
            os.makedirs(target, exist_ok=True)
            # What is below and known already is kept in its place, or was not there before.
            names = [name for name in os.listdir(source) if f"{source}/{name}" not in self._known]
            return all(self._copy(f"{source}/{name}", f"{target}/{name}", link=link) for name in names)
        if not stat.S_ISREG(os.lstat(source).st_mode) and not os.path.islink(source):
            return True  # a socket or a pipe has no content
        if link and not os.path.islink(source):
            with contextlib.suppress(OSError):  # another file system
                os.link(source, target)
                found = os.stat(target)
                key = (found.st_dev, found.st_ino)
                self._linked.setdefault(key, []).append(target.removeprefix(self._files))
                return True
        if not os.path.islink(source) and os.path.getsize(source) > _MAX_KEPT_BYTES:
            return False
        shutil.copy2(source, target, follow_symlinks=False)
        return True
