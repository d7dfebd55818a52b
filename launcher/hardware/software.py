"""Software facts: versions of the installed packages, read from the names of their metadata folders.

Importing the packages would take seconds, and even importlib.metadata costs more than this whole scan.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .files import read_text

PACKAGES = (
    "xl-launch",
    "torch",
    "numpy",
    "torchvision",
    "torchaudio",
    "transformers",
    "datasets",
    "accelerate",
    "deepspeed",
    "bitsandbytes",
    "flash-attn",
    "triton",
    "safetensors",
    "lightning",
    "peft",
    "trl",
    "tensorboard",
    "wandb",
    "nvidia-nccl-cu12",
    "nvidia-nccl-cu13",
)
"""What decides how a training script runs; absent ones are left out of reports."""

_FOLDER = re.compile(r"^(?P<name>[A-Za-z0-9._]+)-(?P<version>[^-]+)(-py[0-9.]+)?\.(dist-info|egg-info)$")
_CUDA_LINE = re.compile(r"^cuda\b[^=\n]*=\s*(?:'([^']*)'|None)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Software:
    """Versions.

    Args:
        python: version and implementation.
        executable: the interpreter that runs xl.
        platform: operating system and C library.
        packages: (distribution, version) of those of `PACKAGES` that are installed.
        torch_cuda: the CUDA (major, minor) that torch was built for; None: a CPU build, or no torch.
    """

    python: str
    executable: str
    platform: str
    packages: tuple[tuple[str, str], ...]
    torch_cuda: tuple[int, int] | None = None

    def version(self, package: str) -> str | None:
        """The installed version, None if absent."""
        return dict(self.packages).get(package)


def read_software(search_path: Sequence[str] | None = None) -> Software:
    """The versions that an import in this interpreter would find; `search_path` defaults to sys.path."""
    folders = [Path(entry or ".") for entry in (sys.path if search_path is None else search_path)]
    versions = _installed(folders)
    return Software(
        python=f"{platform.python_version()} ({platform.python_implementation()})",
        executable=sys.executable,
        platform=_platform(),
        packages=tuple((name, versions[_key(name)]) for name in PACKAGES if _key(name) in versions),
        torch_cuda=_torch_cuda(folders),
    )


def _platform() -> str:
    """Operating system and C library; platform.platform() would start a process to find out."""
    if not hasattr(os, "uname"):
        return platform.platform()
    kernel = os.uname()
    try:
        library = os.confstr("CS_GNU_LIBC_VERSION")
    except (AttributeError, OSError, ValueError):  # macOS, musl
        library = None
    return " ".join(filter(None, (kernel.sysname, kernel.release, kernel.machine, library)))


def _installed(folders: Sequence[Path]) -> dict[str, str]:
    """Normalised distribution name -> version; the first folder on the path wins, as for an import."""
    versions: dict[str, str] = {}
    for folder in folders:
        try:
            names = [entry.name for entry in folder.iterdir() if entry.name.endswith("-info")]
        except OSError:  # zip files and folders that are gone
            continue
        for name in names:
            if match := _FOLDER.match(name):
                versions.setdefault(_key(match["name"]), match["version"])
            elif name.endswith(".egg-info"):  # a source folder: the version is inside
                versions.setdefault(_key(name[: -len(".egg-info")]), _egg_version(folder / name))
    return versions


def _egg_version(folder: Path) -> str:
    found = re.search(r"^Version: (.+)$", read_text(folder / "PKG-INFO"), re.MULTILINE)
    return found[1] if found else "unknown"


def _key(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _torch_cuda(folders: Sequence[Path]) -> tuple[int, int] | None:
    """The `cuda` line of torch/version.py, which the build writes."""
    for folder in folders:
        if text := read_text(folder / "torch/version.py"):
            match = _CUDA_LINE.search(text)
            major, _, minor = (match[1] or "" if match else "").partition(".")
            return (int(major), int(minor.partition(".")[0] or 0)) if major.isdigit() else None
    return None
