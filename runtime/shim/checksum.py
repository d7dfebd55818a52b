"""One small exchange before each module call: do all ranks make the same call with the same inputs?"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportPrivateUsage=false
# (torch annotates parts of itself incompletely, and not all that a shim needs is public)

from __future__ import annotations

import sys
import zlib
from collections.abc import Sequence
from functools import lru_cache
from types import FrameType
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...configs.errors import XlError

if TYPE_CHECKING:
    from ..collectives import Communicator

_MULTIPLIER = 6364136223846793005  # odd, so that no bit of a value is lost


def digest(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    """Return an int64 that differs, but for chance, when any bit or the order of any value differs."""
    result = torch.zeros((), dtype=torch.int64, device=device)
    for tensor in tensors:
        words = _words(tensor.detach()).to(device)
        # A weight of its own for each position: exchanged samples change the sum.
        result = result * _MULTIPLIER + (words * _weights(words.numel(), device)).sum() + words.numel()
    return result


def _words(tensor: Tensor) -> Tensor:
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    data = (
        tensor.contiguous().reshape(-1).view(torch.uint8)
        if tensor.numel()
        else torch.zeros(8, dtype=torch.uint8)
    )
    ragged = data.numel() % 8
    if ragged:
        data = torch.cat([data, data.new_zeros(8 - ragged)])
    if data.storage_offset() % 8:
        data = data.clone()
    return data.view(torch.int64)


@lru_cache(maxsize=8)
def _weights(count: int, device: torch.device) -> Tensor:
    positions = torch.arange(1, count + 1, dtype=torch.int64, device=device)
    mixed = positions * _MULTIPLIER
    mixed ^= mixed >> 29
    return (mixed * -7046029254386353131) | 1


def text_digest(*parts: object) -> int:
    """Return a number for values whose `repr` is the same in every process."""
    return zlib.crc32(repr(parts).encode())


def call_site(frame: FrameType | None) -> tuple[str, int]:
    """Return file and line of the script's code that led here."""
    while frame is not None and _is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    return (frame.f_code.co_filename, frame.f_lineno) if frame is not None else ("?", 0)


_PACKAGE = __file__.rsplit("/", 3)[0]
_TORCH = torch.__file__.rsplit("/", 1)[0]


def _is_ours(filename: str) -> bool:
    return filename.startswith((_PACKAGE, _TORCH))


def agree(
    comm: Communicator, inputs: Sequence[Tensor], call: int, site: tuple[str, int], what: str, decision: int
) -> bool:
    """Refuse when the ranks are not at the same call with the same inputs.

    Returns:
        Whether all ranks came to the same decision about it.
    """
    mine = torch.empty(4, dtype=torch.int64, device=comm.device)
    numbers = torch.tensor([call, text_digest(site, what), decision], dtype=torch.int64)
    mine[:3] = numbers.to(comm.device)
    mine[3] = digest(inputs, comm.device)
    table = torch.stack(list(comm.all_gather(mine))).cpu().tolist()
    if any(row[:2] != table[0][:2] for row in table):
        raise XlError(
            f"the processes are not at the same point of the script: process {comm.rank} calls {what}",
            f"from {site[0]}:{site[1]}, others another module or line; a decision differed between them "
            "(time, an unseeded random source, the order of a set, a file that one of them changed)",
            "make that decision the same in every process: seed the source, sort the set; "
            "or run it on one process",
            exit_code=1,
        )
    if any(row[3] != table[0][3] for row in table):
        others = [rank for rank, row in enumerate(table) if row[3] != table[0][3]]
        raise XlError(
            f"the processes computed different inputs for the same call of {what}",
            f"{site[0]}:{site[1]}: processes {others} differ from process 0; the script draws from a source "
            "that is not seeded: numpy.random.default_rng() or random.Random() without a seed, os.urandom, "
            "uuid, the time, or the order of a set",
            "give that source a seed: numpy.random.default_rng(0), random.Random(0), "
            "torch.Generator().manual_seed(0)",
            exit_code=1,
        )
    return all(row[2] == table[0][2] for row in table)


def agree_on_losses(comm: Communicator, roots: Sequence[Tensor | None], options: object) -> None:
    """Refuse a backward whose loss, or an optimizer's option, differs between the ranks; collective.

    Inputs of module calls are compared bit by bit; what is computed outside of modules only to 1e-6 here,
    since not every operator gives the same bits on two devices.
    """
    sums = [root.detach().double().sum() for root in roots if root is not None]
    total = sum(sums, start=torch.zeros((), dtype=torch.float64))
    mine = torch.tensor([0.0, text_digest(options)], dtype=torch.float64).to(comm.device)
    mine[0] = total.to(comm.device)
    table = torch.stack(list(comm.all_gather(mine))).cpu()
    if not torch.allclose(table[:, 0], table[0, 0], rtol=1e-6, atol=1e-12, equal_nan=True):
        what, where = "a loss", "targets, or another value outside of the model"
    elif bool((table[:, 1] != table[0, 1]).any()):
        what = "an option of an optimizer, or how often it has stepped,"
        where = "a learning rate, another option, or the decision to skip a step"
    else:
        return
    raise XlError(
        f"{what} differs between the processes",
        f"{where} comes from a source that is not seeded, the time, or a file that one of them changed",
        "seed that source (numpy.random.default_rng(0), random.Random(0)), or pass --num-processes 1",
        exit_code=1,
    )


def same_everywhere(comm: Communicator, tensors: Sequence[Tensor]) -> bool:
    """Whether all ranks hold the same bits; collective."""
    found = comm.all_gather(digest(tensors, comm.device).reshape(1))
    return all(bool(other == found[0]) for other in found)


def caller() -> tuple[str, int]:
    """The script's file and line that called into the shim."""
    return call_site(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
