"""Rules of the house that a machine can check: layers, sizes, light imports, links in the documentation."""

import ast
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


def modules_after(code: str) -> set[str]:
    """Top-level modules loaded by a fresh interpreter that runs `code`."""
    code += "\nimport sys; print('\\n'.join(sorted({m.split('.')[0] for m in sys.modules})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


HELP = "from xl.cli.main import main\ntry: main(['--help'])\nexcept SystemExit: pass"


@pytest.mark.parametrize(
    ("code", "forbidden"),
    [
        ("import xl", {"torch", "numpy", "yaml", "click", "pydantic", "typing"} - {"typing"}),
        (HELP, {"torch", "numpy", "yaml", "pydantic", "rich", "questionary", "psutil"}),
        (HELP.replace("'--help'", "'config', 'show'"), {"torch", "numpy", "pydantic", "questionary"}),
        (HELP.replace("'--help'", "'env'"), {"torch", "numpy", "pydantic", "questionary"}),
    ],
)
def test_import_budget(code: str, forbidden: set[str]) -> None:
    assert not modules_after(code) & forbidden


@pytest.mark.parametrize("name", [str(p.relative_to(ROOT)) for p in ROOT.glob("*.md")] + ["docs"])
def test_links_in_the_documentation(name: str) -> None:
    pages = [ROOT / name] if name.endswith(".md") else sorted((ROOT / name).rglob("*.md"))
    for page in pages:
        for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"
