"""The store's port is held from the choice to the use."""

from __future__ import annotations

import socket

import pytest

from xl.configs.errors import XlError
from xl.launcher.ports import hold_port


@pytest.mark.parametrize("asked", [None, 0])
def test_a_free_port_is_held(asked: int | None) -> None:
    with hold_port(asked) as one, hold_port(asked) as two, socket.socket() as thief:
        assert one.getsockname()[0] == "127.0.0.1"
        assert one.getsockname()[1] != two.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            thief.bind(one.getsockname())


def test_a_given_port_that_is_taken() -> None:
    with hold_port(0) as holder, pytest.raises(XlError, match="cannot be used"):
        hold_port(holder.getsockname()[1])
