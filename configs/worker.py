"""The one typed message from the launcher to a worker: what it runs, as which rank, under which settings."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal, cast

ScriptKind = Literal["plain", "explicit", "distributed"]
"""plain: knows nothing of distribution; explicit: uses xl's Accelerator; distributed: distributes itself."""

Precision = Literal["no", "fp16", "bf16"]


@dataclass(frozen=True, slots=True)
class Target:
    """The user's program and the arguments that reach it untouched.

    Args:
        name: path of the script, or the module's dotted name under `module`.
        args: the program's own arguments, without its name.
        module: run as `python -m name`.
    """

    name: str
    args: tuple[str, ...] = ()
    module: bool = False


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Everything that one worker is told; the only message from launcher to worker.

    Args:
        run_id: name of the launch, also the name of its log folder.
        kind: how the script is treated, see `ScriptKind`.
        rank: position among all workers of the job, from 0.
        local_rank: position among the workers of this machine, from 0.
        world_size: number of workers of the job.
        local_world_size: number of workers on this machine.
        node_rank: position of this machine, from 0.
        num_nodes: number of machines.
        master_addr: address on which rank 0 serves the store.
        master_port: its port.
        store_fd: in rank 0, the listening socket already bound to that port; None: rank 0 binds it.
        attempt: 0 for the first start, then the number of restarts so far.
        max_restarts: restarts the launcher will try.
        cpu: train on the CPU even where an accelerator is visible.
        mixed_precision: type of the inner computation.
        gradient_accumulation_steps: script batches for each optimizer step.
        data: how the data of a plain script is spread over the ranks.
        seed: the common seed of a plain script that sets none itself.
        num_threads: CPU threads of this worker; None leaves torch's own choice.
        overlay: this rank's folder for files: what ranks above 0 of a plain script write lies there.
        error_file: where an uncaught error is described for the launcher (JSON); None: nobody reads it.
        report_file: where the shim's report goes (JSON); None: not written.
    """

    run_id: str
    kind: ScriptKind
    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    node_rank: int = 0
    num_nodes: int = 1
    master_addr: str = "127.0.0.1"
    master_port: int = 0
    store_fd: int | None = None
    attempt: int = 0
    max_restarts: int = 0
    cpu: bool = False
    mixed_precision: Precision = "no"
    gradient_accumulation_steps: int = 1
    data: Literal["replicated"] = "replicated"
    seed: int = 0
    num_threads: int | None = None
    overlay: str | None = None
    error_file: str | None = None
    report_file: str | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> WorkerSettings:
        return cls(**cast("dict[str, Any]", json.loads(text)))
