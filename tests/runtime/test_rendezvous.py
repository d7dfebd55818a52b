"""Workers meet through one store, on the launcher's socket."""

from __future__ import annotations

import socket
from dataclasses import replace

from xl.configs.worker import WorkerSettings
from xl.runtime.rendezvous import connect_store


def test_rank_0_serves_on_the_socket_it_was_given() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    first = WorkerSettings("test", "plain", world_size=2, master_port=port, store_fd=listener.detach())
    served = connect_store(first)
    joined = connect_store(replace(first, rank=1, store_fd=None))
    restarted = connect_store(replace(first, rank=1, store_fd=None, attempt=1))
    served.set("key", "value")
    assert joined.get("key") == b"value"
    assert not restarted.check(["key"]), "an attempt must not see what an earlier one left"
