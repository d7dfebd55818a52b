"""How long a launch takes: `xl launch`, `torchrun` and `accelerate launch` side by side in one run.

    python benchmarks/launch.py --repeat 5

Every repetition runs all launchers, one after the other, for 1, 2 and 8 workers; the table shows medians and
their ratio to torchrun (one worker: to `python script.py`). "seconds" count from the start of the launch to
the end of the slowest rank's first all-reduce (one worker: to the line after `import torch`), "cpu" is the
CPU time of the launch and all its processes.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

WORKER = """
import os, sys, time
rank = os.environ.get("RANK", "0")
import torch
if int(os.environ.get("WORLD_SIZE", "1")) > 1:
    import torch.distributed as dist
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
with open(f"{sys.argv[1]}.{rank}", "w") as file:
    file.write(repr(time.time()))
"""

Command = Callable[[int], list[str]]


def launchers() -> dict[str, Command]:
    """The command of each launcher that is installed, for a number of workers."""
    python = sys.executable
    found: dict[str, Command] = {
        "xl launch": lambda n: [python, "-m", "xl.cli", "launch", "-q", "--cpu", "--num-processes", str(n)],
        "torchrun": lambda n: [
            python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n)
        ],
    }  # fmt: skip
    if importlib.util.find_spec("accelerate") is not None and shutil.which("accelerate"):
        # Without --multi_gpu it runs one process on CPU, whatever number is asked for.
        found["accelerate launch"] = lambda n: [
            "accelerate", "launch", "--cpu", *(["--multi_gpu"] if n > 1 else []), "--num_processes", str(n),
            "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no",
        ]  # fmt: skip
    return found


def measure(command: list[str], script: Path, num_workers: int, folder: Path) -> tuple[float, float]:
    """Run one launch; returns seconds to the first all-reduce and CPU-seconds of everything."""
    marks = folder / f"mark{time.monotonic_ns()}"
    environ = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "XDG_STATE_HOME": str(folder),
        "ACCELERATE_USE_CPU": "true",
    }
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.time()
    done = subprocess.run(
        [*command, str(script), str(marks)], env=environ, capture_output=True, text=True, check=False
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    files = [Path(f"{marks}.{rank}") for rank in range(num_workers)]
    if done.returncode or not all(file.exists() for file in files):
        raise SystemExit(f"{command} failed with exit code {done.returncode}:\n{done.stderr}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return max(float(file.read_text()) for file in files) - began, cpu


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 8])
    options = parser.parse_args()
    commands = launchers()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script = folder / "worker.py"
        script.write_text(WORKER)
        print(f"{'workers':>7}  {'launcher':18} {'seconds':>8} {'ratio':>6} {'cpu':>8} {'ratio':>6}")
        for num_workers in options.workers:
            runs: dict[str, list[tuple[float, float]]] = {}
            for _ in range(options.repeat):
                if num_workers == 1:
                    python = measure([sys.executable], script, 1, folder)
                    runs.setdefault("python", []).append(python)
                for label, command in commands.items():
                    runs.setdefault(label, []).append(
                        measure(command(num_workers), script, num_workers, folder)
                    )
            show(num_workers, runs, "python" if num_workers == 1 else "torchrun")


def show(num_workers: int, runs: dict[str, list[tuple[float, float]]], base: str) -> None:
    """Print the medians of each launcher and their ratio to those of `base`."""
    medians = {
        label: tuple(statistics.median(run[part] for run in of_label) for part in (0, 1))
        for label, of_label in runs.items()
    }
    for label, (seconds, cpu) in medians.items():
        ratios = seconds / medians[base][0], cpu / medians[base][1]
        print(f"{num_workers:7}  {label:18} {seconds:8.2f} {ratios[0]:6.2f} {cpu:8.2f} {ratios[1]:6.2f}")


if __name__ == "__main__":
    main()
