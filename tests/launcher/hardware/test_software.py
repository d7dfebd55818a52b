"""Versions come from the names of metadata folders, without importing a package."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from xl.launcher.hardware.software import read_software

from .tree import write_tree


def test_this_interpreter_agrees_with_importlib() -> None:
    software = read_software()
    for name in ("torch", "numpy", "xl-launch"):
        assert software.version(name) == version(name)
    assert software.executable == sys.executable


def test_forms_of_metadata(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    write_tree(
        first,
        {
            "torch-2.13.0+cu130.dist-info/METADATA": "",
            "flash_attn-2.8.0-py3.11.egg-info/PKG-INFO": "",
            "peft.egg-info/PKG-INFO": "Name: peft\nVersion: 0.17\n",
        },
    )
    write_tree(second, {"torch-2.0.0.dist-info/METADATA": "", "numpy-2.4.6.dist-info/METADATA": ""})
    software = read_software([str(tmp_path / "absent.zip"), str(first), str(second)])
    assert dict(software.packages) == {
        "torch": "2.13.0+cu130",
        "flash-attn": "2.8.0",
        "peft": "0.17",
        "numpy": "2.4.6",
    }


@pytest.mark.parametrize(
    ("line", "cuda"),
    [
        ("cuda: Optional[str] = '13.0'", (13, 0)),
        ("cuda = '12.6'", (12, 6)),
        ("cuda: Optional[str] = None", None),
        ("debug = False", None),
    ],
)
def test_cuda_of_torch(tmp_path: Path, line: str, cuda: tuple[int, int] | None) -> None:
    write_tree(tmp_path, {"torch/version.py": f"__version__ = '2.13.0'\n{line}\nhip: Optional[str] = None\n"})
    assert read_software([str(tmp_path)]).torch_cuda == cuda


def test_nothing_is_imported() -> None:
    code = (
        "import sys; from xl.launcher.hardware.software import read_software; read_software();"
        "print(sorted({'torch', 'numpy', 'importlib.metadata', 'subprocess'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
