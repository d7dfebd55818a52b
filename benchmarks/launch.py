"""How long a launch takes: `xl launch`, `torchrun` and `accelerate launch` side by side in one run.

    python benchmarks/launch.py --repeat 5

Every repetition runs all launchers, one after the other, for 1, 2 and 8 workers. The table shows medians, and
the median of each repetition's ratio to torchrun (one worker: to `python script.py`). "seconds" count from
the start of the launch to the end of the slowest rank's first all-reduce (one worker: to the line after
`import torch`), "cpu" is the CPU time, user and system, of the launch and all its processes. One worker runs
a script without a word of distribution as well ("plain"), which xl hands to python as it is.

Accelerate is measured where it is installed: pip install accelerate.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import resource
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

PLAIN = """
import sys, time
import torch
with open(f"{sys.argv[1]}.0", "w") as file:
    file.write(repr(time.time()))
"""

Command = Callable[[int], list[str]]
Runs = dict[str, list[tuple[float, float]]]


def launchers() -> dict[str, Command]:
    """The command of each launcher that is installed, for a number of workers."""
    python = sys.executable
    found: dict[str, Command] = {
        "xl launch": lambda n: [python, "-m", "xl.cli", "launch", "-q", "--cpu", "--num-processes", str(n)],
        "torchrun": lambda n: [
            python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n)
        ],
    }  # fmt: skip
    if importlib.util.find_spec("accelerate") is None:
        print("accelerate is not installed and is left out")
        return found
    # It runs one process under --cpu, whatever number is asked for; ACCELERATE_USE_CPU says it for several.
    found["accelerate launch"] = lambda n: [
        python, "-m", "accelerate.commands.launch", "--multi_gpu" if n > 1 else "--cpu",
        "--num_processes", str(n), "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no",
    ]  # fmt: skip
    return found


def measure(command: list[str], script: Path, num_workers: int, folder: Path) -> tuple[float, float]:
    """Run one launch; returns seconds to the first all-reduce and CPU-seconds of everything."""
    marks = folder / f"mark{time.monotonic_ns()}"
    environ = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "XDG_STATE_HOME": str(folder),
        "XL_CONFIG_HOME": str(folder),
        "ACCELERATE_USE_CPU": "true",
    }
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.time()
    done = subprocess.run(
        [*command, str(script), str(marks)],
        env=environ,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
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
    print("load average at the start:", *(f"{load:.2f}" for load in os.getloadavg()))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        worker, plain = folder / "worker.py", folder / "plain.py"
        worker.write_text(WORKER)
        plain.write_text(PLAIN)
        print(f"{'workers':>7}  {'launcher':18} {'seconds':>8} {'ratio':>6} {'cpu':>8} {'ratio':>6}")
        for num_workers in options.workers:
            runs: Runs = {}
            for _ in range(options.repeat):
                if num_workers == 1:
                    runs.setdefault("python", []).append(measure([sys.executable], worker, 1, folder))
                    xl = measure(commands["xl launch"](1), plain, 1, folder)
                    runs.setdefault("xl launch, plain", []).append(xl)
                for label, command in commands.items():
                    runs.setdefault(label, []).append(
                        measure(command(num_workers), worker, num_workers, folder)
                    )
            show(num_workers, runs, "python" if num_workers == 1 else "torchrun")
    print("load average at the end:", *(f"{load:.2f}" for load in os.getloadavg()))


def show(num_workers: int, runs: Runs, base: str) -> None:
    """Print the medians of each launcher, and of its ratios to the run of `base` in the same repetition."""
    for label, of_label in runs.items():
        seconds, cpu = (statistics.median(run[part] for run in of_label) for part in (0, 1))
        pairs = list(zip(of_label, runs[base], strict=True))
        ratios = [statistics.median(run[part] / other[part] for run, other in pairs) for part in (0, 1)]
        print(f"{num_workers:7}  {label:18} {seconds:8.2f} {ratios[0]:6.2f} {cpu:8.2f} {ratios[1]:6.2f}")


if __name__ == "__main__":
    main()
