"""Keys of older files: renamed ones are read under their new name, retired ones are dropped with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from xl.configs import migrations, sources
from xl.configs.migrations import SCHEMA_VERSION, STEPS, Migrated, Step, migrate
from xl.configs.resolve import resolve

HISTORY = (
    Step(renamed={"workers": "processes"}, retired={}),
    Step(renamed={"processes": "num_processes"}, retired={"use_mpi": "xl starts processes itself"}),
)


def test_there_is_a_step_for_every_version() -> None:
    assert len(STEPS) == SCHEMA_VERSION - 1


@pytest.mark.parametrize(
    ("name", "version", "now"),
    [
        ("workers", 1, "num_processes"),
        ("processes", 2, "num_processes"),
        ("processes", 3, "processes"),
        ("seed", 1, "seed"),
        ("use_mpi", 1, None),
        ("use_mpi", 3, "use_mpi"),
        ("workers", 0, "num_processes"),
    ],
)
def test_keys_of_each_version(name: str, version: int, now: str | None) -> None:
    assert migrate(name, version, HISTORY).name == now


def test_a_retired_key_says_why() -> None:
    assert migrate("use_mpi", 1, HISTORY) == Migrated(
        None, "use_mpi is no longer used: xl starts processes itself"
    )


def test_an_old_file_runs_with_warnings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # No key has been retired so far, so the history is made up here.
    monkeypatch.setattr(sources, "migrate", lambda name, version: migrations.migrate(name, version, HISTORY))  # pyright: ignore
    (tmp_path / "old.yaml").write_text("schema_version: 1\nworkers: 2\nuse_mpi: true\nseed: 3\n")
    resolved = resolve({}, {}, tmp_path, config_file="old.yaml")
    assert (resolved.profile.num_processes, resolved.profile.seed) == (2, 3)
    assert "old.yaml:2: processes is called num_processes now" in resolved.warnings
    assert "old.yaml:3: use_mpi is no longer used: xl starts processes itself" in resolved.warnings
