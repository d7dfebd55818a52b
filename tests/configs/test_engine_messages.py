"""Every message between launcher and zygote comes out of its packet as it went in."""

from __future__ import annotations

import json

import pytest

from xl.configs import engine_messages as messages
from xl.configs.worker import WorkerSettings

SETTINGS = WorkerSettings("run", "plain", rank=3, world_size=4, mixed_precision="bf16", num_threads=2)


@pytest.mark.parametrize(
    "message",
    [
        messages.StartWorker(SETTINGS, {"A": "1", "ODD": 'é"\n\udcff'}, ("RANK", "WORLD_SIZE")),
        messages.StartWorker(SETTINGS, {}),
        messages.SignalWorkers(15),
        messages.SignalWorkers(2, group=True),
        messages.Sweep(),
        messages.Started(0, 12),
        messages.Started(1, 13, "importing torch started threads"),
        messages.Exited(2, 14, -9, 1.25),
        messages.Swept(),
    ],
    ids=lambda message: type(message).__name__,
)
def test_there_and_back(message: messages.Command | messages.Event) -> None:
    assert messages.decode(messages.encode(message)) == message


def test_a_start_with_a_large_environment_fits_a_packet() -> None:
    """Only what differs from the job's environment travels, so tens of thousands of bytes are far more."""
    large = {f"VARIABLE_{number}": "x" * 100 for number in range(500)}
    assert len(messages.encode(messages.StartWorker(SETTINGS, large))) < messages.PACKET_BYTES


def test_a_message_of_another_version_is_not_taken() -> None:
    packet = json.loads(messages.encode(messages.Started(0, 1)))
    with pytest.raises(AssertionError):
        messages.decode(json.dumps({**packet, "more": 1}).encode())
    with pytest.raises(KeyError):
        messages.decode(json.dumps({"kind": "Unknown"}).encode())
