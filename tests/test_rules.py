"""Rules of the house that a machine can check: layers, sizes, light imports, links in the documentation."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = {
    "configs": {"configs"},
    "launcher": {"configs", "launcher"},
    "runtime": {"configs", "runtime"},
    "cli": {"configs", "launcher", "cli"},
    "api": {"configs", "launcher", "runtime", "api"},
}
SOURCES = sorted(path for folder in LAYERS for path in (ROOT / folder).rglob("*.py"))
NAMES = [str(path.relative_to(ROOT)) for path in SOURCES]


def imported_layers(path: Path) -> set[str]:
    """The top folders of xl that a module imports, wherever in the module the import stands."""
    here = path.relative_to(ROOT).parts[:-1]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = here[: len(here) - node.level + 1]
            target = [*base, *(node.module or "").split(".")] if node.module else list(base)
            found |= {target[0]} if target and target[0] else {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "xl":
            found |= set((node.module or "").split(".")[1:2])
    return found & set(LAYERS)


@pytest.mark.parametrize("name", NAMES)
def test_layers_point_one_way(name: str) -> None:
    folder = name.split("/")[0]
    assert imported_layers(ROOT / name) <= LAYERS[folder]


@pytest.mark.parametrize("name", NAMES)
def test_only_the_runtime_imports_torch(name: str) -> None:
    if name.startswith("runtime/"):
        return
    for node in ast.walk(ast.parse((ROOT / name).read_text())):
        if isinstance(node, ast.Import):
            assert not any(alias.name.split(".")[0] == "torch" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            assert (node.module or "").split(".")[0] != "torch"


@pytest.mark.parametrize("name", NAMES)
def test_a_module_is_short_and_says_what_it_is_for(name: str) -> None:
    text = (ROOT / name).read_text()
    assert text.count("\n") <= 400, "split it by concept (house limit: 400 lines)"
    assert ast.get_docstring(ast.parse(text)), "open with one sentence on what the module is for"


def test_the_architecture_names_every_module() -> None:
    """Whoever adds a module says there where it belongs; patches of the shim go by their folder."""
    text = (ROOT / "docs/architecture.md").read_text().partition("## Modules")[2]
    missing = [
        name
        for name in NAMES
        if not name.startswith(("api/", "runtime/shim/")) and not Path(name).stem.startswith("__")
        if f"`{Path(name).stem}`"
        not in text.partition(f"### `{name.partition('/')[0]}/`")[2].partition("\n### ")[0]
    ]
    assert not missing, f"add them to docs/architecture.md, Modules: {missing}"


def modules_after(code: str, home: Path) -> set[str]:
    """Top-level modules in a fresh interpreter that ran `code` with `home` as the user's config folder."""
    code += "\nimport sys; print('\\n'.join(sorted({m.split('.')[0] for m in sys.modules})))"
    environ = {n: v for n, v in os.environ.items() if not n.startswith("XL_")} | {"XL_CONFIG_HOME": str(home)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environ, cwd=home
    )
    return set(done.stdout.split())


def command(*arguments: str) -> str:
    return f"from xl.cli.main import main\nassert main({list(arguments)!r}) == 0"


HEAVY = {"torch", "numpy", "pydantic", "rich", "questionary", "psutil", "difflib", "tempfile"}
LAUNCH = ("launch", "--cpu", "--num-processes", "1", "--mixed-precision", "bf16", "--dry-run", "train.py")


@pytest.mark.parametrize(
    ("code", "forbidden"),
    [
        ("import xl", HEAVY | {"yaml", "click", "dataclasses", "inspect"}),
        (command("--help"), HEAVY | {"yaml", "json", "socket", "dataclasses"}),
        (command("config", "show"), HEAVY | {"yaml", "json", "socket"}),
        (command("env"), HEAVY | {"yaml"}),
        (command(*LAUNCH), HEAVY | {"yaml", "pynvml", "hashlib", "subprocess"}),
        # importlib.abc imports tempfile, as torch will
        ("import xl.runtime.bootstrap", HEAVY - {"tempfile"} | {"yaml", "click"}),
    ],
)
def test_import_budget(code: str, forbidden: set[str], tmp_path: Path) -> None:
    """What a command does not need it must not load: this is what its start costs."""
    (tmp_path / "train.py").write_text("print(1)\n")
    assert not modules_after(code, tmp_path) & forbidden


@pytest.mark.parametrize("code", [command("config", "show"), command("env"), command(*LAUNCH)])
def test_import_budget_with_an_active_profile(code: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "mine.yaml").write_text("backend: ddp\nseed: 7\nfsdp:\n  version: 2\n")
    (tmp_path / "active").write_text("mine\n")
    assert not modules_after(code, tmp_path) & HEAVY


@pytest.mark.parametrize("name", [str(p.relative_to(ROOT)) for p in ROOT.glob("*.md")] + ["docs"])
def test_links_in_the_documentation(name: str) -> None:
    pages = [ROOT / name] if name.endswith(".md") else sorted((ROOT / name).rglob("*.md"))
    for page in pages:
        for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"
