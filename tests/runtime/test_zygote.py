"""When the zygote must not fork it starts fresh interpreters, and the launcher says why."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Stands in for a torch whose import leaves something that a fork would break.
FAKE = {
    "broken": "raise ImportError('no such library')",
    "threads": "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()",
    "cuda": "",
}
CUDA = "def is_initialized():\n    return {}\n"


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("broken", "torch cannot be imported: ImportError: no such library"),
        ("threads", "importing torch started threads"),
        ("cuda", "importing torch initialised CUDA"),
    ],
)
def test_why_nothing_is_forked(tmp_path: Path, fault: str, reason: str) -> None:
    package = tmp_path / "fakes" / "torch"
    for part in (package, package / "distributed", package / "utils", package / "utils" / "data"):
        part.mkdir(parents=True, exist_ok=True)
        (part / "__init__.py").write_text("")
    (package / "__init__.py").write_text(f"from . import cuda\n{FAKE[fault]}\n")
    (package / "cuda.py").write_text(CUDA.format(fault == "cuda"))
    (tmp_path / "train.py").write_text("import os\nprint('rank', os.environ['RANK'])\n")
    command = [sys.executable, "-m", "xl.cli", "launch", "--cpu", "--num-processes", "2", "train.py"]
    environ = {**os.environ, "PYTHONPATH": str(tmp_path / "fakes"), "XDG_STATE_HOME": str(tmp_path)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "rank 0\n"
    assert done.returncode == 0
    assert done.stderr.count(f"each process starts an interpreter of its own: {reason}") == 1
