"""The socket of the job's store: bound before planning and held until rank 0 serves on it."""

from __future__ import annotations

import errno
import socket

from ..configs.errors import XlError

LOOPBACK = "127.0.0.1"


def hold_port(port: int | None) -> socket.socket:
    """Return a listening socket on loopback: on `port`, or on a free one if that is None or 0.

    The socket is handed to rank 0 as it is, so nobody can take the port between choice and use.

    Raises:
        XlError: the port is taken or not allowed.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((LOOPBACK, port or 0))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        reason = {
            errno.EADDRINUSE: "another process listens on it",
            errno.EACCES: "ports below 1024 are for the administrator",
        }.get(error.errno or 0, str(error))
        raise XlError(
            f"main_process_port={port} cannot be used", reason, "leave it out: a free port is chosen"
        ) from None
    return listener
