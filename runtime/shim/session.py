"""The state of one shim: its settings, its communicator, what it patched, and what it noticed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from ...configs.errors import XlError
from .patches import Patches

if TYPE_CHECKING:
    import torch

    from ...configs.worker import WorkerSettings
    from ..collectives import Communicator
    from .report import Report


class LoaderPosition(Protocol):
    """Where the script is in one pass over a data loader; rows are those of whole batches.

    Accumulation reads it: rows weigh a batch, and the last batch closes a window early. An iterator that was
    left by `break` may stay in the list; what does not advance is ignored.
    """

    @property
    def batch_size(self) -> int:
        """Rows of the batch handed out last; 1 where it cannot be told."""
        ...

    @property
    def batches(self) -> int:
        """How many batches were handed out so far; grows with each."""
        ...

    @property
    def rows(self) -> int:
        """Rows of all batches handed out so far."""
        ...

    @property
    def is_last(self) -> bool:
        """The batch handed out last is the final one of this pass; False where the length is unknown."""
        ...

    @property
    def running(self) -> bool:
        """The pass has begun and the script has not seen its end."""
        ...


class Session:
    """What the patched functions of one process share; made by `install`, handed to every patch.

    Life: installed -> (first module call or loader iteration) active -> closed; or, before it is active,
    aside: the script turned out to distribute itself and every patch passes through from then on.

    Args:
        settings: what the launcher said.
        connect: makes the communicator; called once, at activation, and not at all in a world of one.
        report: counts of what was split and why not.
    """

    def __init__(
        self, settings: WorkerSettings, connect: Callable[[torch.device], Communicator], report: Report
    ) -> None:
        self.settings = settings
        self.report = report
        self.comm: Communicator | None = None
        self.active = False
        self.aside: str | None = None
        self.closed = False
        self.in_backward = False  # process-wide: checkpoint recomputation runs in autograd's own threads
        self.on_activate: list[Callable[[], None]] = []
        self.on_finish: list[Callable[[], None]] = []  # they complete the report
        self.loaders: list[LoaderPosition] = []  # the passes that are running, the one read last at the end
        self._connect = connect
        self._patches = Patches()
        self.kept_store: object | None = None  # served for a script that distributes itself
        self._noted: set[str] = set()

    @property
    def rank(self) -> int:
        return self.settings.rank

    @property
    def size(self) -> int:
        return self.settings.world_size

    @property
    def passive(self) -> bool:
        """Patches must pass through: stepped aside, or nothing has begun."""
        return self.aside is not None or not self.active

    def activate(self, device: torch.device) -> None:
        """Connect the ranks; idempotent. `device` decides the transport."""
        if self.active or self.aside is not None:
            return
        if self.size > 1:
            self.comm = self._connect(device)
        self.active = True
        for callback in self.on_activate:
            callback()

    def step_aside(self, why: str) -> None:
        """Let the script distribute itself; after activation that is too late and refused."""
        if self.aside is not None:
            return
        if self.active:
            raise XlError(
                "the script began to distribute itself after xl had already started to",
                why,
                "run it with --distributed-by script, or remove that part of the script",
            )
        self.aside = why
        self.note(f"stepping aside: {why}")

    def note(self, text: str) -> None:
        """Say something once, on rank 0's standard error."""
        if self.rank == 0 and text not in self._noted:
            self._noted.add(text)
            print(f"xl: {text}", file=sys.__stderr__, flush=True)

    def patch(self, owner: object, name: str, replacement: object) -> None:
        """Replace `owner.name`; `unpatch` puts the original back."""
        self._patches.replace(owner, name, replacement)

    def unpatch(self) -> None:
        """Undo every patch, newest first (tests run many sessions in one process)."""
        self._patches.restore()

    def finish(self) -> None:
        """Write the report; the script has ended well."""
        if self.size == 1:
            return
        self.report.steps_aside = self.aside
        for callback in self.on_finish:
            callback()
        if self.settings.report_file is not None:
            self.report.write(self.settings.report_file)

    def close(self) -> None:
        """Undo the patches and free the communicator; waits for nobody."""
        self.closed = True
        self.unpatch()
        if self.comm is not None:
            self.comm.close()
            self.comm = None


def shares(total: int, ranks: int) -> Sequence[int]:
    """Rows of each rank when `total` rows are split over `ranks`: equal to within one, larger first."""
    return [total // ranks + (rank < total % ranks) for rank in range(ranks)]
