"""Finds the file that a program begins in, and says what was meant where there is none."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from ..configs.errors import XlError
from ..configs.worker import Target


def locate(target: Target, cwd: Path) -> Path:
    """Return the file that the target's program begins in.

    Raises:
        XlError: there is none, it cannot be read, or it is no Python program.
    """
    return _locate_module(target.name, cwd) if target.module else _locate_script(target.name, cwd)


# --- modules ---


def _locate_module(name: str, cwd: Path) -> Path:
    if (cwd / name).is_file():
        raise XlError(
            f"{name} is a file, and -m takes the name of a module",
            f"-m {name} would look for a module inside a package {name.partition('.')[0]}",
            f"xl launch {shlex.quote(name)}, without -m",
        )
    spec, missing = _find_module(name, cwd)
    if spec is None:
        raise XlError(
            f"there is no module {name}",
            f"{missing} is found neither in {cwd} nor among the installed packages",
            "check the name, or leave -m out to run a file",
        )
    if not spec.submodule_search_locations:
        return Path(spec.origin or name)
    folder = Path(list(spec.submodule_search_locations)[0])
    if not (folder / "__main__.py").is_file():
        modules = [file.stem for file in _programs(folder)]
        fix = f"name one of its modules, such as -m {name}.{modules[0]}" if modules else "name another module"
        raise XlError(f"the package {name} cannot be run", "it has no __main__.py", fix)
    return folder / "__main__.py"


def _find_module(name: str, cwd: Path) -> tuple[ModuleSpec | None, str]:
    """The module, found without importing anything, or the part of its name that is not found."""
    path: Sequence[str] = [str(cwd), *(entry for entry in sys.path if entry)]
    parts = name.split(".")
    spec = None
    for depth in range(1, len(parts) + 1):
        found = ".".join(parts[:depth])
        spec = PathFinder.find_spec(found, path) if all(parts) else None
        if spec is None:
            return None, found
        path = list(spec.submodule_search_locations or ())
    return spec, ""


# --- files ---


def _locate_script(name: str, cwd: Path) -> Path:
    path = cwd / name
    if name == "-":
        raise XlError(
            "the script cannot come from standard input",
            "every process needs to read it",
            "save it as a file and name that",
        )
    if path.is_dir():
        if not (path / "__main__.py").is_file():
            raise _folder(name, path)
        return path / "__main__.py"
    if not path.exists():
        raise XlError(f"there is no script {name}", f"{path} does not exist", _meant(name, cwd))
    if not path.is_file():
        raise XlError(
            f"{name} is a device or a pipe",
            "every process needs to read it from its beginning",
            "save the program as a file and name that",
        )
    if not os.access(path, os.R_OK):
        raise XlError(f"{name} cannot be read", "its permissions forbid it", f"chmod u+r {shlex.quote(name)}")
    refused = _no_program(name, path)
    if refused is not None:
        raise refused
    return path


def _folder(name: str, path: Path) -> XlError:
    programs = [shlex.quote(os.path.join(name, file.name)) for file in _programs(path)]
    if programs:
        fix = f"name a file in it: {', '.join(programs[:3])}"
        return XlError(f"{name} is a folder", "it has no __main__.py that could be run", fix)
    why = "it holds no Python file, and SCRIPT is the one to run"
    return XlError(f"{name} is a folder", why, "name a Python file, such as xl launch train.py")


def _programs(folder: Path) -> list[Path]:
    """The Python files of a folder, those that sound like a training first."""
    files = [file for file in folder.glob("*.py") if not file.name.startswith("__")]
    return sorted(files, key=lambda file: ("train" not in file.stem, "main" not in file.stem, file.name))


def _meant(name: str, cwd: Path) -> str:
    """What to type where there is no such file: a module of that name, or files of near names beside it."""
    if (cwd / f"{name}.py").is_file():
        return f"did you mean {name}.py?"
    if name.replace(".", "").isidentifier() and _find_module(name, cwd)[0] is not None:
        return f"did you mean the module: xl launch -m {name}?"
    import difflib

    folder, wanted = os.path.split(name)
    if not (cwd / folder).is_dir():
        return "check the path"
    names = [entry.name for entry in (cwd / folder).iterdir() if entry.suffix == ".py"]
    close = [os.path.join(folder, near) for near in difflib.get_close_matches(wanted, names, n=3)]
    return f"did you mean {' or '.join(close)}?" if close else "check the path"


def _no_program(name: str, path: Path) -> XlError | None:
    """The error for a file of another kind, which Python would fail on later, or read as a dictionary."""
    quoted = shlex.quote(name)
    if path.suffix == ".ipynb":
        script = shlex.quote(os.path.splitext(name)[0] + ".py")
        return XlError(
            f"{name} is a notebook",
            "its cells are JSON, which Python does not run, and every process starts the program anew",
            f"jupyter nbconvert --to script {quoted}, then xl launch {script}",
        )
    if path.suffix in (".yaml", ".yml", ".json"):
        why = "it holds settings or data, and SCRIPT is the Python file to run"
        return XlError(f"{name} is not a program", why, _as_settings(path, quoted))
    shell = _other_interpreter(path)
    if shell:
        return XlError(
            f"{name} is not a Python program",
            f"its first line asks for {shell}",
            f"name the Python file that it starts, or put xl launch into {name} itself",
        )
    return None


def _as_settings(path: Path, quoted: str) -> str:
    """What to type for a file of settings, which may be another tool's."""
    from ..configs import foreign
    from ..configs.files import read_document

    as_it_is, imported = f"xl launch --config-file {quoted} SCRIPT", f"xl config import {quoted}"
    try:
        document = read_document(path, path.name, "xl launch")
    except XlError:
        return as_it_is
    if foreign.is_deepspeed(document):
        return f"{imported} makes a profile that names it; xl launch --profile NAME SCRIPT uses that"
    if foreign.is_accelerate(document):
        return f"{as_it_is} takes it as it is, {imported} makes a profile of it"
    return as_it_is


def _other_interpreter(path: Path) -> str | None:
    """The interpreter that the first line asks for, if it is none of Python."""
    with path.open("rb") as file:
        first = file.readline(256).decode(errors="replace").strip()
    return first[2:].strip() if first.startswith("#!") and "py" not in first else None
