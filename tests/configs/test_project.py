"""The project file: where it is looked for, who may have written it, and what it may not set untrusted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from xl.configs.errors import XlError
from xl.configs.project import find_project_file
from xl.configs.resolve import resolve
from xl.configs.trust import is_trusted, needs_trust, trust


def write(folder: Path, text: str = "seed: 1\n") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "xl.yaml"
    path.write_text(text)
    path.chmod(0o644)
    return path


def test_it_is_found_up_to_the_repository(tmp_path: Path) -> None:
    above, top = write(tmp_path), tmp_path / "repo"
    (top / ".git").mkdir(parents=True)
    deep = top / "a/b"
    deep.mkdir(parents=True)
    assert find_project_file(deep) is None
    path = write(top)
    found = find_project_file(deep)
    assert found is not None
    assert found.path == path
    nearer = write(top / "a")
    assert (find_project_file(deep) or found).path == nearer
    assert above.exists()


def test_outside_a_repository_only_the_working_directory_counts(tmp_path: Path) -> None:
    path = write(tmp_path)
    (tmp_path / "a").mkdir()
    assert find_project_file(tmp_path / "a") is None
    found = find_project_file(tmp_path)
    assert found is not None
    assert found.path == path


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_a_file_that_others_may_write_is_ignored(tmp_path: Path, mode: int) -> None:
    path = write(tmp_path)
    path.chmod(mode)
    resolved = resolve({}, {}, tmp_path)
    assert resolved.profile.seed is None
    assert "chmod go-w" in resolved.warnings[0]
    assert resolved.label == "none"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_ignored(tmp_path: Path) -> None:
    os.chown(write(tmp_path), 12345, 0)
    resolved = resolve({}, {}, tmp_path)
    assert resolved.profile.seed is None
    assert "belongs to user 12345" in resolved.warnings[0]


@pytest.mark.parametrize(
    ("key", "doubtful"),
    [
        ("hosts", True),
        ("ssh_options", True),
        ("env.LD_PRELOAD", True),
        ("env.PYTHONPATH", True),
        ("env.PATH", True),
        ("env.OMP_NUM_THREADS", False),
        ("seed", False),
    ],
)
def test_what_needs_trust(key: str, doubtful: bool) -> None:
    assert needs_trust(key) is doubtful


def test_trust_is_given_to_a_content(tmp_path: Path) -> None:
    environ = {"XL_CONFIG_HOME": str(tmp_path / "home")}
    folder = tmp_path / "repo"
    path = write(folder, "seed: 1\nenv: {LD_PRELOAD: x.so}\nhosts: [a]\n")
    with pytest.raises(XlError) as caught:
        resolve({}, environ, folder)
    text = str(caught.value)
    assert "env.LD_PRELOAD in xl.yaml:2 is not trusted" in text
    assert "hosts in xl.yaml:3 is not trusted" in text
    assert f"xl config trust {path}" in text
    trust(path, environ)
    assert resolve({}, environ, folder).profile.hosts == ("a",)
    path.write_text(path.read_text() + "debug: true\n")
    assert not is_trusted(path, environ)
    with pytest.raises(XlError, match="is not trusted"):
        resolve({}, environ, folder)
    trust(path, environ)
    assert is_trusted(path, environ)
    assert len((tmp_path / "home/trusted").read_text().splitlines()) == 1


def test_a_copy_elsewhere_is_not_trusted(tmp_path: Path) -> None:
    environ = {"XL_CONFIG_HOME": str(tmp_path / "home")}
    path = write(tmp_path / "one", "hosts: [a]\n")
    trust(path, environ)
    assert not is_trusted(write(tmp_path / "two", "hosts: [a]\n"), environ)


def test_files_named_on_the_command_line_need_no_trust(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("hosts: [a]\n")
    assert resolve({}, {}, tmp_path, config_file="mine.yaml").profile.hosts == ("a",)


def test_names_with_line_breaks_and_broken_records(tmp_path: Path) -> None:
    environ = {"XL_CONFIG_HOME": str(tmp_path / "home")}
    path = write(tmp_path / "new\nline", "hosts: [a]\n")
    trust(path, environ)
    assert is_trusted(path, environ)
    (tmp_path / "home/trusted").write_text("junk\n")
    assert not is_trusted(path, environ)
