"""Reads a script's text, and that of the local modules it imports, to see who distributes the training.

Nothing is run or imported. Where the text cannot say, the script counts as plain, and the runtime still steps
aside when it sees the script make a process group.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..configs.worker import ScriptKind

MAX_FILES = 200
"""Local modules that are read at most: a script's own files, not a whole checkout that it lies in."""

_OWN_LAUNCH = {"accelerate", "colossalai", "deepspeed", "horovod", "lightning", "pytorch_lightning", "ray"}
_TRAINERS = {"Trainer", "Seq2SeqTrainer", "SFTTrainer", "DPOTrainer", "GRPOTrainer"}
_TRAINER_PACKAGES = {"transformers", "trl"}
_GROUP_CALLS = {
    "init_process_group",
    "init_device_mesh",
    "DistributedDataParallel",
    "FullyShardedDataParallel",
    "fully_shard",
}
_PLACE = {"RANK", "LOCAL_RANK", "WORLD_SIZE"}
_READ_AT_IMPORT = ("TORCH", "PYTORCH_", "OMP_", "MKL_", "KMP_", "OPENBLAS_", "GOMP_", "ATEN_")


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the script or of a module of its own, and what is there."""

    file: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.what}"


@dataclass(frozen=True, slots=True)
class ScriptScan:
    """What the text says.

    Args:
        explicit: where xl's Accelerator is imported.
        distributed: where the script begins to distribute itself.
        early_variable: where it sets a variable that torch reads at its import, before importing torch.
        sets_visible_devices: where it sets CUDA_VISIBLE_DEVICES.
    """

    explicit: Place | None = None
    distributed: Place | None = None
    early_variable: Place | None = None
    sets_visible_devices: Place | None = None

    @property
    def kind(self) -> ScriptKind:
        if self.explicit is not None:
            return "explicit"
        return "distributed" if self.distributed is not None else "plain"

    @property
    def reason(self) -> str:
        place = self.explicit or self.distributed
        return str(place) if place else "nothing in it distributes the training"


def scan_script(start: Path) -> ScriptScan:
    """Read the file `start` and the modules beside it that it imports, directly or through each other."""
    found = _Findings()
    waiting, seen = [start], {start.resolve()}
    while waiting and len(seen) <= MAX_FILES:
        path = waiting.pop(0)
        try:
            tree = ast.parse(path.read_bytes(), filename=str(path))
        except (OSError, SyntaxError, ValueError):  # Python reports it when it gets there
            continue
        _read_file(tree, path, found, is_script=path == start)
        for module in _local_imports(tree, path, start.parent):
            if module.resolve() not in seen:
                seen.add(module.resolve())
                waiting.append(module)
    return ScriptScan(found.explicit, found.distributed, found.early_variable, found.sets_visible_devices)


@dataclass(slots=True)
class _Findings:
    """The first place of each kind."""

    explicit: Place | None = None
    distributed: Place | None = None
    early_variable: Place | None = None
    sets_visible_devices: Place | None = None


def _read_file(tree: ast.Module, path: Path, found: _Findings, *, is_script: bool) -> None:
    shown = os.path.relpath(path)
    torch_line = min(_torch_imports(tree), default=None)
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        for what in _imports_of_launchers(node):
            if what.startswith("imports xl"):
                found.explicit = found.explicit or Place(shown, line, what)
            else:
                found.distributed = found.distributed or Place(shown, line, what)
        what = _distributes(node)
        if what:
            found.distributed = found.distributed or Place(shown, line, what)
        for name in _variables_set(node):
            place = Place(shown, line, f"sets {name}")
            if name == "CUDA_VISIBLE_DEVICES":
                found.sets_visible_devices = found.sets_visible_devices or place
            # A module of the script's own runs at its import, which may well be before torch's.
            before = line < torch_line if torch_line is not None else not is_script
            if before and name.startswith(_READ_AT_IMPORT):
                found.early_variable = found.early_variable or place


def _torch_imports(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if any(name.split(".")[0] == "torch" for name in _imported(node)):
            yield getattr(node, "lineno", 0)


def _imported(node: ast.AST) -> list[str]:
    """Return the modules that an import statement names."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
        return [node.module]
    return []


def _imports_of_launchers(node: ast.AST) -> Iterator[str]:
    names = {alias.name for alias in node.names} if isinstance(node, ast.ImportFrom) else set[str]()
    for module in _imported(node):
        package = module.split(".")[0]
        if module == "xl" and (not names or "Accelerator" in names):
            yield "imports xl"
        elif package in _OWN_LAUNCH:
            yield f"imports {package}"
        elif package in _TRAINER_PACKAGES and names & _TRAINERS:
            yield f"imports {package}'s {min(names & _TRAINERS)}"
        elif names & _GROUP_CALLS:
            yield f"imports {min(names & _GROUP_CALLS)}"


def _distributes(node: ast.AST) -> str | None:
    if isinstance(node, ast.Call):
        name = _last_name(node.func)
        if name in _GROUP_CALLS:
            return f"calls {name}"
        if name in {"get", "getenv"} and node.args and _text(node.args[0]) in _PLACE:
            of_environ = name == "getenv" or _last_name(getattr(node.func, "value", None)) == "environ"
            return f"reads {_text(node.args[0])}" if of_environ else None
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and _of_environ(node):
        name = _text(node.slice)
        return f"reads {name}" if name in _PLACE else None
    return None


def _variables_set(node: ast.AST) -> Iterator[str]:
    """The variables that a statement of the script sets: an item, setdefault, update or putenv."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and _of_environ(node):
        yield _text(node.slice) or ""
    if not isinstance(node, ast.Call):
        return
    name = _last_name(node.func)
    if name in {"putenv", "setdefault"} and node.args:
        yield _text(node.args[0]) or ""
    if name == "update" and _last_name(getattr(node.func, "value", None)) == "environ":
        yield from (keyword.arg for keyword in node.keywords if keyword.arg)
        for argument in node.args:
            if isinstance(argument, ast.Dict):
                yield from (_text(key) or "" for key in argument.keys if key is not None)


def _of_environ(node: ast.Subscript) -> bool:
    return _last_name(node.value) == "environ"


def _last_name(node: ast.AST | None) -> str | None:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def _text(node: ast.AST) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _local_imports(tree: ast.Module, path: Path, top: Path) -> Iterator[Path]:
    """The files beside the script that the imports of one file lead to."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _module_files(top, alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = top if node.level == 0 else path.parents[node.level - 1]
            yield from _module_files(base, node.module or "")
            for alias in node.names:
                yield from _module_files(base, ".".join(filter(None, (node.module, alias.name))))


def _module_files(base: Path, name: str) -> Iterator[Path]:
    parts = name.split(".") if name else []
    for depth in range(1, len(parts) + 1):
        place = base.joinpath(*parts[:depth])
        for file in (place.with_suffix(".py"), place / "__init__.py"):
            if file.is_file():
                yield file
