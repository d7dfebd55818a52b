"""The variables by which torchrun tells a worker its place, for scripts that distribute themselves."""

from __future__ import annotations

from .worker import WorkerSettings

PLACE_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_NAME",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_USE_AGENT_STORE",
)
"""All of them; hidden from plain scripts, many of which change their behaviour when they see one."""


def torchrun_variables(settings: WorkerSettings) -> dict[str, str]:
    """Return `PLACE_VARIABLES` with their values for this worker, as torchrun sets them."""
    return {
        "RANK": str(settings.rank),
        "LOCAL_RANK": str(settings.local_rank),
        "WORLD_SIZE": str(settings.world_size),
        "LOCAL_WORLD_SIZE": str(settings.local_world_size),
        "GROUP_RANK": str(settings.node_rank),
        "GROUP_WORLD_SIZE": str(settings.num_nodes),
        "ROLE_RANK": str(settings.rank),
        "ROLE_NAME": "default",
        "ROLE_WORLD_SIZE": str(settings.world_size),
        "MASTER_ADDR": settings.master_addr,
        "MASTER_PORT": str(settings.master_port),
        "TORCHELASTIC_RUN_ID": settings.run_id,
        "TORCHELASTIC_RESTART_COUNT": str(settings.attempt),
        "TORCHELASTIC_MAX_RESTARTS": str(settings.max_restarts),
        # The store is there before the script starts, on a socket that nobody else can take; the script's own
        # init_process_group is a client of it on every rank.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
