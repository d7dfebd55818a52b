"""The user's folder, names of profiles, and the presets that xl brings."""

from __future__ import annotations

from pathlib import Path

import pytest

from xl.configs import paths
from xl.configs.errors import XlError
from xl.configs.resolve import resolve

PRESETS = ["cpu", "ddp", "fsdp", "fsdp-offload", "single-gpu", "zero1", "zero2", "zero3", "zero3-offload"]


@pytest.mark.parametrize(
    ("environ", "home"),
    [
        ({"XL_CONFIG_HOME": "/a"}, "/a"),
        ({"XDG_CONFIG_HOME": "/b", "HOME": "/c"}, "/b/xl"),
        ({"HOME": "/c"}, "/c/.config/xl"),
        ({"HOME": ""}, None),
        ({}, None),
    ],
)
def test_the_config_folder(environ: dict[str, str], home: str | None) -> None:
    assert paths.config_home(environ) == (Path(home) if home else None)


def test_writing_needs_a_folder() -> None:
    with pytest.raises(XlError, match="XL_CONFIG_HOME"):
        paths.writable_home({})


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "a b", "a.yaml", "-x"])
def test_names_that_cannot_be(name: str) -> None:
    with pytest.raises(XlError, match="cannot be a profile's name"):
        paths.check_name(name)


def test_a_file_where_a_name_is_wanted() -> None:
    with pytest.raises(XlError, match="--config-file train.yaml"):
        paths.find_profile({}, "train.yaml", "--profile")


def test_every_preset_resolves_and_says_what_it_is_for(tmp_path: Path) -> None:
    assert list(paths.presets()) == PRESETS
    for name, path in paths.presets().items():
        resolved = resolve({"preset": name}, {}, tmp_path)
        assert resolved.label == f"preset {name}"
        assert resolved.warnings == ()
        assert path.read_text().startswith("# ")


def test_the_users_profile_hides_a_preset(tmp_path: Path) -> None:
    folder = tmp_path / "profiles"
    folder.mkdir()
    (folder / "fsdp.yaml").write_text("seed: 7\n")
    environ = {"XL_CONFIG_HOME": str(tmp_path)}
    assert resolve({}, environ, tmp_path, profile="fsdp").profile.seed == 7


def test_an_unreadable_pointer(tmp_path: Path) -> None:
    (tmp_path / "active").mkdir()
    with pytest.raises(XlError, match="XL_CONFIG_HOME"):
        paths.active_profile({"XL_CONFIG_HOME": str(tmp_path)})


def test_names_in_messages(tmp_path: Path) -> None:
    assert paths.shown(tmp_path / "a/b.yaml", tmp_path) == "a/b.yaml"
    assert paths.shown(Path("/x/b.yaml"), tmp_path) == "/x/b.yaml"
