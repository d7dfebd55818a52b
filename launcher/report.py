"""What is said about a failed launch: the rank that failed first, why, and its last words."""

from __future__ import annotations

import glob
import json
import os
import re
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from .plan import WorkerStart

LAST_LINES = 20

SIGNAL_HEAD_START_S = 0.5
"""A rank that died of a signal is taken to have died this much before it was seen to: its peers' errors, of a
connection that broke, are often written first."""

_SIGKILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows has none
_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ")  # torch puts it before each line of a traceback
_MEANINGS = {
    "SIGKILL": "killed from outside: out of memory? (see dmesg, or the job's memory limit), or a kill -9",
    "SIGSEGV": "a fault in compiled code: an extension, or torch built for another machine",
    "SIGBUS": "often too little shared memory for DataLoader workers: raise --shm-size, or num_workers=0",
    "SIGABRT": "compiled code gave up; its reason is usually in the last lines",
    "SIGILL": "an instruction that this CPU does not have: a package built for another machine",
    "SIGFPE": "an integer division by zero in compiled code",
    "SIGXCPU": "the CPU time limit (ulimit -t) is used up",
    "SIGTERM": "somebody asked it to end",
    "SIGINT": "somebody interrupted it",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """How one worker failed.

    Args:
        returncode: negative for a signal; where the worker was ended while it was ending by an error of its
            own, the code that this error would have led to.
        time: when, in seconds since the epoch.
        error: type and message of what it raised; None if it raised nothing.
        traceback: as Python prints it; empty if there is none.
    """

    start: WorkerStart
    returncode: int
    time: float
    error: str | None = None
    traceback: str = ""

    @property
    def exit_code(self) -> int:
        """The code that a shell would show."""
        return self.returncode if self.returncode >= 0 else 128 - self.returncode

    @property
    def cause(self) -> str:
        """What happened, in a line."""
        if self.returncode < 0:
            name = signal_name(-self.returncode)
            meaning = _MEANINGS.get(name)
            text = f"died of {name}" + (f" ({meaning})" if meaning else "")
            return text if self.error is None else f"{self.error}; then {text}"
        return self.error or f"exit code {self.returncode}"


def signal_name(number: int) -> str:
    """Return the signal's name, or its number where it has none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def describe_failure(start: WorkerStart, returncode: int, time: float) -> Failure:
    """Return the failure of a worker that ended at `time`, with what it wrote about it itself."""
    try:
        with open(start.settings.error_file or "") as file:
            told = cast("dict[str, Any]", json.load(file))
    except (OSError, ValueError):
        return Failure(start, returncode, time)
    message = str(told["message"])
    kind = str(told["type"])
    error = message if kind == "SystemExit" else f"{kind}: {message}" if message else kind
    if kind == "XlError":  # said in full below
        error = message.splitlines()[0].removeprefix("error:").strip()
    if returncode in (-signal.SIGTERM, -_SIGKILL):
        returncode = int(told["exit_code"])
    return Failure(start, returncode, float(told["time"]), error, str(told["traceback"]))


def first_failure(failures: Sequence[Failure]) -> Failure:
    """Return the failure that the others follow from; of several alike, that of the lowest rank."""
    first = min(failures, key=_began)
    alike = [other for other in failures if other is first or _same_error(first, other)]
    return min(alike, key=lambda failure: failure.start.settings.rank)


def _began(failure: Failure) -> float:
    died_suddenly = failure.returncode < 0 and failure.error is None
    return failure.time - (SIGNAL_HEAD_START_S if died_suddenly else 0.0)


def failure_report(failure: Failure, others: Sequence[Failure], ended: Sequence[Failure] = ()) -> str:
    """Return the report on a launch that ended with this failure, without what is on the terminal already.

    Args:
        others: the workers that failed after it.
        ended: those that told of an error of their own only while they were being ended.
    """
    start = failure.start
    alike = [other for other in (*others, *ended) if _same_error(failure, other)]
    lines = [f"xl: {_who(failure, others, alike)}: {failure.cause}"]
    if not any(it.start.shown.err for it in (failure, *alike)):
        lines += failure.traceback.rstrip("\n").splitlines()
        last = _last_lines(start.log, failure.traceback)
        if last:
            lines += [f"xl: last lines of rank {start.settings.rank}:", *(f"  {line}" for line in last)]
    for other in (*others, *ended):
        if other.start.shown.err and other.traceback and other not in alike:
            lines.append(
                f"xl: what is shown above is the error of rank {other.start.settings.rank}: {other.error}"
            )
    lines.append(f"xl: the whole output of rank {start.settings.rank}: {start.log}")
    return "\n".join(lines)


def _same_error(one: Failure, other: Failure) -> bool:
    return one.error is not None and (one.error, one.traceback) == (other.error, other.traceback)


def _who(failure: Failure, others: Sequence[Failure], alike: Sequence[Failure]) -> str:
    """Which ranks failed, and how many more after them."""
    settings = failure.start.settings
    ranks = sorted({settings.rank, *(other.start.settings.rank for other in alike)})
    if len(ranks) == 1:
        who = f"rank {ranks[0]} failed"
    elif len(ranks) == settings.world_size:
        who = f"all {len(ranks)} ranks failed alike"
    else:
        who = f"ranks {', '.join(map(str, ranks))} failed alike"
    after = sum(other not in alike for other in others)
    more = f" ({after} other{'' if after == 1 else 's'} failed after it)" if after else ""
    return f"{who} with exit code {failure.exit_code}{more}"


def _last_lines(log: str, traceback: str) -> list[str]:
    """The end of the log without the traceback, which has been shown."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, file.seek(0, 2) - (1 << 16)))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return []
    shown = set(traceback.splitlines())
    while lines and _RANK_PREFIX.sub("", lines[-1]) in shown:
        lines.pop()
    # What was on the line before, such as a prompt, has the traceback's first line behind it.
    first = traceback.partition("\n")[0]
    if first and lines and lines[-1].endswith(first):
        lines[-1] = lines[-1][: -len(first)]
    return lines[-LAST_LINES:]


def split_report(log_folder: str | None, *, in_full: bool) -> str:
    """Return the share of the module calls that was split, and `in_full` each kind of call with its reason.

    Empty: there is no report, because the script was not xl's to split.
    """
    pattern = os.path.join(glob.escape(log_folder), "rank0*.report.json") if log_folder else ""
    reports = glob.glob(pattern)
    if not reports:
        return "xl: there is no report on how the module calls were split" if in_full else ""
    with open(max(reports, key=os.path.getmtime)) as file:
        told = cast("dict[str, Any]", json.load(file))
    lines = [f"xl: {told['summary']}"]
    if in_full:
        lines += [f"xl: {count} calls of {name} split" for name, count in told["split_calls"].items()]
        lines += [f"xl: {count} calls run in full, {reason}" for reason, count in told["full_calls"].items()]
    return "\n".join(lines)


def say(text: str) -> None:
    """Print to standard error, even where that is closed; an empty text not at all."""
    if not text:
        return
    try:
        print(text, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        return
