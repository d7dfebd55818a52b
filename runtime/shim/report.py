"""What the shim did, counted: how many module calls were split, why others were not, what was exchanged."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True)
class Report:
    """Counts of one process; all ranks count the same.

    Args:
        world_size: number of processes.
        split_calls: calls that were spread over the ranks, by the module's class.
        full_calls: calls that every rank ran in full, by `class: reason`.
        probes: how many times a module was tried on a part of its batch.
        gathered_bytes: size of the gathered outputs, forward and backward.
        collectives: how often the ranks exchanged something, by what for.
        steps_aside: why the script was left alone, if it was.
    """

    world_size: int = 1
    split_calls: Counter[str] = field(default_factory=Counter[str])
    full_calls: Counter[str] = field(default_factory=Counter[str])
    probes: int = 0
    gathered_bytes: int = 0
    collectives: Counter[str] = field(default_factory=Counter[str])
    steps_aside: str | None = None

    @property
    def share(self) -> float:
        """The part of the module calls that was split, from 0 to 1; 0 when there was none."""
        split, full = sum(self.split_calls.values()), sum(self.full_calls.values())
        return split / (split + full) if split + full else 0.0

    def summary(self) -> str:
        """One line for people, the most frequent reason included when something was run in full."""
        if self.steps_aside is not None:
            return f"stepped aside: {self.steps_aside}"
        calls = sum(self.split_calls.values()) + sum(self.full_calls.values())
        if not calls:
            return f"no module call was seen on {self.world_size} processes; nothing was split"
        # 99.96 % must not read as 100 %.
        percent = 100 if not self.full_calls else min(99, round(100 * self.share))
        line = f"split {percent} % of module calls on {self.world_size} processes"
        for reason, count in self.full_calls.most_common(1):
            line += f"; {count} of {calls} run in full, most often {reason}"
        return line

    def to_json(self) -> str:
        """Return every count as JSON."""
        return json.dumps(
            {
                "world_size": self.world_size,
                "share": self.share,
                "split_calls": self.split_calls,
                "full_calls": self.full_calls,
                "probes": self.probes,
                "gathered_bytes": self.gathered_bytes,
                "collectives": self.collectives,
                "steps_aside": self.steps_aside,
                "summary": self.summary(),
            },
            indent=1,
        )

    def write(self, path: str) -> None:
        """Write the JSON to `path` at once or not at all."""
        target = Path(path)
        partial = target.with_name(f"{target.name}.{os.getpid()}.part")
        partial.write_text(self.to_json())
        partial.replace(target)
