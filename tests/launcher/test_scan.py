"""What a script's text says about who distributes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from xl.launcher.scan import scan_script


def scan(folder: Path, text: str):
    path = folder / "train.py"
    path.write_text(text)
    return scan_script(path)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("import torch\nmodel = torch.nn.Linear(1, 1)", "plain"),
        ("import torch.distributed as dist\nif dist.is_initialized(): pass", "plain"),
        ("# init_process_group\n'init_process_group'", "plain"),
        ("def f(:", "plain"),
        ("settings.get('RANK')", "plain"),
        ("import os\nos.environ['RANK'] = '0'", "plain"),
        ("import transformers\nmodel = transformers.AutoModel", "plain"),
        ("import torch.distributed as dist\ndist.init_process_group('gloo')", "distributed"),
        ("from torch.distributed import init_process_group as start\nstart()", "distributed"),
        ("from torch.nn.parallel import DistributedDataParallel as DDP", "distributed"),
        ("import os\nif int(os.environ.get('RANK', -1)) != -1: pass", "distributed"),
        ("import os\nos.environ['LOCAL_RANK']", "distributed"),
        ("import os\nos.getenv('WORLD_SIZE')", "distributed"),
        ("from os import environ\nenviron['RANK']", "distributed"),
        ("from accelerate import Accelerator", "distributed"),
        ("def main():\n    import lightning.pytorch as pl", "distributed"),
        ("import pytorch_lightning", "distributed"),
        ("import deepspeed", "distributed"),
        ("import ray", "distributed"),
        ("from transformers import Trainer, TrainingArguments", "distributed"),
        ("from xl import Accelerator", "explicit"),
        ("import xl\nxl.Accelerator()", "explicit"),
        ("from xl import Accelerator\nimport os\nos.environ['RANK']", "explicit"),
    ],
)
def test_kind(tmp_path: Path, text: str, kind: str) -> None:
    assert scan(tmp_path, text).kind == kind


def test_the_reason_names_file_and_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert scan(tmp_path, "\n\nimport deepspeed").reason == "train.py:3 imports deepspeed"


def test_local_modules_are_read_and_others_are_not(tmp_path: Path) -> None:
    package = tmp_path / "mine"
    package.mkdir()
    (package / "__init__.py").write_text("from .inner import run")
    (package / "inner.py").write_text("from . import deep")
    (package / "deep.py").write_text("import mine, deepspeed")
    (tmp_path / "unused.py").write_text("import deepspeed")
    assert scan(tmp_path, "import torch, numpy").kind == "plain"
    assert scan(tmp_path, "from mine import run").kind == "distributed"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import os\nos.environ['OMP_NUM_THREADS'] = '1'\nimport torch", True),
        ("import os\nos.environ.setdefault('TORCH_LOGS', 'x')\nfrom torch import nn", True),
        ("import os\nos.environ.update(PYTORCH_CUDA_ALLOC_CONF='x')\nimport torch", True),
        ("import os\nos.environ.update({'MKL_NUM_THREADS': '1'})\nimport torch", True),
        ("import os\nos.putenv('OMP_NUM_THREADS', '1')\nimport torch", True),
        ("import os, torch\nos.environ['OMP_NUM_THREADS'] = '1'", False),
        ("import os\nos.environ['WANDB_MODE'] = 'offline'\nimport torch", False),
        ("import os\nos.environ['OMP_NUM_THREADS'] = '1'", False),
    ],
)
def test_variables_that_torch_reads_at_its_import(tmp_path: Path, text: str, found: bool) -> None:
    assert (scan(tmp_path, text).early_variable is not None) == found


def test_a_module_of_the_scripts_own_may_run_before_torch(tmp_path: Path) -> None:
    (tmp_path / "setup.py").write_text("import os\nos.environ['OMP_NUM_THREADS'] = '1'")
    assert scan(tmp_path, "import setup\nimport torch").early_variable is not None


def test_visible_devices(tmp_path: Path) -> None:
    text = "import torch, os\nos.environ['CUDA_VISIBLE_DEVICES'] = '1'"
    assert scan(tmp_path, text).sets_visible_devices is not None
