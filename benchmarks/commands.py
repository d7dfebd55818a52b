"""What `xl`'s commands cost in CPU time, from a wheel in a fresh virtual environment.

    python benchmarks/commands.py --repeat 15

Builds the wheel of this checkout, installs it where the present interpreter's packages are visible, and runs
all commands in turn, over and over. `python -c pass` and `import click` are beside them, being the least that
any command of this kind can cost; so are two of Accelerate's commands where it is installed. A command of xl
that imports torch is an error.
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
import sysconfig
import tempfile
import venv
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
BARS = {"xl --help": 0.12, "xl config show": 0.25, "xl env": 0.25}
NO_TORCH = "import sys; from xl.cli.main import main; main(sys.argv[1:]); sys.exit('torch' in sys.modules)"


def install(folder: Path) -> Path:
    """Make the environment and return its folder of programs."""
    wheels, place = folder / "wheels", folder / "venv"
    source = folder / "source"  # a copy: setuptools leaves folders behind, and takes old ones in
    left_out = shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__", "tests")
    shutil.copytree(ROOT, source, symlinks=True, ignore=left_out)
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(wheels), str(source))
    venv.create(place, with_pip=True)
    programs = place / "bin"
    python = str(programs / "python")
    (wheel,) = wheels.glob("*.whl")
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", str(wheel))
    purelib = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    others = {*sysconfig.get_paths().values(), *sys.path} - {""}
    lines = [path for path in others if path.endswith(("site-packages", "dist-packages"))]
    (Path(purelib) / "others.pth").write_text("\n".join(sorted(lines)) + "\n")
    return programs


def run(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def cpu_seconds(command: list[str], environ: Mapping[str, str], folder: Path) -> float:
    """User and system time of one run."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env=environ, cwd=folder, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=15)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        programs = install(folder)
        python, xl = str(programs / "python"), str(programs / "xl")
        for home in ("none", "profile"):
            (folder / home).mkdir()
        (folder / "profile" / "active").write_text("ddp\n")
        commands: dict[str, tuple[list[str], str]] = {
            "python -c pass": ([python, "-c", "pass"], "none"),
            "python -c 'import click'": ([python, "-c", "import click"], "none"),
        }
        for label in BARS:
            arguments = label.split()[1:]
            commands[label] = [xl, *arguments], "none"
            if "--help" not in label:
                commands[f"{label}, a profile is active"] = [xl, *arguments], "profile"
            cpu_seconds([python, "-c", NO_TORCH, *arguments], environment(folder / "profile"), folder)
        if not all(map(importlib.util.find_spec, ("accelerate", "huggingface_hub"))):
            print("accelerate, or huggingface_hub, is not installed: it is left out")
        else:
            launch = [sys.executable, "-m", "accelerate.commands.launch", "--help"]
            cli = "from accelerate.commands.accelerate_cli import main; main()"
            commands["accelerate launch --help"] = launch, "none"
            commands["accelerate env"] = [sys.executable, "-c", cli, "env"], "none"
        show(commands, options.repeat, folder)


def environment(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("XL_")}
    return {**kept, "XL_CONFIG_HOME": str(home)}


def show(commands: Mapping[str, tuple[list[str], str]], repeat: int, folder: Path) -> None:
    """Run every command in each repetition, after a first one that fills the disk's cache."""
    found: dict[str, list[float]] = {label: [] for label in commands}
    for _ in range(repeat + 1):
        for label, (command, home) in commands.items():
            found[label].append(cpu_seconds(command, environment(folder / home), folder))
    print(f"{'command':36} {'median':>7} {'least':>7} {'bar':>6}")
    for label, seconds in found.items():
        bar = BARS.get(label.partition(",")[0])
        counted = seconds[1:]
        print(f"{label:36} {statistics.median(counted):7.3f} {min(counted):7.3f} {bar if bar else '':>6}")


if __name__ == "__main__":
    main()
