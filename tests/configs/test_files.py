"""Reading files with lines, every way a file can be broken, and writing in one step."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from xl.configs.documents import Document, flatten, plain
from xl.configs.errors import XlError
from xl.configs.files import (
    parse_document,
    profile_text,
    read_document,
    write_atomic,
    write_profile,
)
from xl.configs.migrations import SCHEMA_VERSION


def read(tmp_path: Path, content: str | bytes, name: str = "a.yaml") -> Document:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_document(path, name, "--config-file")


def failure(tmp_path: Path, content: str | bytes, name: str = "a.yaml") -> str:
    with pytest.raises(XlError) as caught:
        read(tmp_path, content, name)
    return str(caught.value)


def test_every_key_has_its_line(tmp_path: Path) -> None:
    document = read(tmp_path, "# comment\nseed: 1\n\nfsdp:\n  version: 2\n  offload_params: yes\n")
    assert {name: entry.line for name, entry in flatten(document.entries)} == {
        "seed": 2,
        "fsdp.version": 5,
        "fsdp.offload_params": 6,
    }


def test_values_are_typed_as_in_json(tmp_path: Path) -> None:
    text = "a: 8\nb: 010\nc: 1:30\nd: 1e-3\ne: no\nf: ~\ng: 2026-11-30\nh: [1, x]\ni: 1_000\n"
    entries = read(tmp_path, text).entries
    assert {name: plain(entry) for name, entry in entries.items()} == {
        "a": 8,
        "b": "010",
        "c": "1:30",
        "d": 0.001,
        "e": False,
        "f": None,
        "g": "2026-11-30",
        "h": [1, "x"],
        "i": "1_000",
    }


def test_empty_files_and_byte_order_marks_are_fine(tmp_path: Path) -> None:
    assert read(tmp_path, "").entries == {}
    assert read(tmp_path, "# only a comment\n").entries == {}
    assert plain(read(tmp_path, b"\xef\xbb\xbfseed: 1\n").entries["seed"]) == 1


def test_anchors_and_merge_keys_are_followed(tmp_path: Path) -> None:
    document = read(tmp_path, "base: &b {version: 2}\nfsdp:\n  <<: *b\n  offload_params: true\n")
    assert plain(document.entries["fsdp"]) == {"version": 2, "offload_params": True}


def test_json_has_lines_and_its_own_escapes(tmp_path: Path) -> None:
    document = read(tmp_path, '{\n\t"log_dir": "a\\/\\ud83d\\ude00",\n\t"x":1e3}', "a.json")
    assert plain(document.entries["log_dir"]) == "a/😀"
    assert document.entries["x"].line == 3
    assert plain(document.entries["x"]) == 1000.0


@pytest.mark.parametrize(
    ("content", "name", "words"),
    [
        ("seed: 1\nseed: 2\n", "a.yaml", ["a.yaml:2 sets seed a second time", "line 1"]),
        ('{"seed": 1,\n "seed": 2}', "a.json", ["a.json:2 sets seed a second time"]),
        ("fsdp:\n\tversion: 2\n", "a.yaml", ["a.yaml:2 is indented with a tab"]),
        ("- a\n- b\n", "a.yaml", ["is not a mapping"]),
        ("hello\n", "a.yaml", ["is not a mapping"]),
        ("a: [1\nb: 2\n", "a.yaml", ["a.yaml:2 is not YAML"]),
        ("a: 'x\n", "a.yaml", ["is not YAML"]),
        ('{"a": 1,}', "a.json", ["a.json:1 is not JSON"]),
        ("a: 1\n---\nb: 2\n", "a.yaml", ["is not YAML"]),
        (b"a: 1\nb: \xff\xfe\n", "a.yaml", ["a.yaml:2 is not UTF-8", "0xff"]),
        ("a: \x00b\n", "a.yaml", ["is not YAML"]),
        ("? [a]\n: 1\n", "a.yaml", ["a.yaml:1 has a key that is not text"]),
        ("a: !!python/object/apply:os.system ['true']\n", "a.yaml", ["a.yaml:1 has the tag"]),
        ("a: &a [*a]\n", "a.yaml", ["a.yaml"]),
        ("[" * 3000, "a.yaml", ["nested too deeply"]),
    ],
)
def test_broken_files_are_explained(
    tmp_path: Path, content: str | bytes, name: str, words: list[str]
) -> None:
    text = failure(tmp_path, content, name)
    for word in words:
        assert word in text


def test_aliases_that_multiply_are_stopped(tmp_path: Path) -> None:
    rows = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    assert "too many values" in failure(tmp_path, "\n".join(rows))


def test_missing_folders_and_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(XlError, match="does not exist"):
        read_document(tmp_path / "none.yaml", "none.yaml", "--config-file")
    with pytest.raises(XlError, match="cannot be read: Is a directory"):
        read_document(tmp_path, "folder", "--config-file")


def test_written_profiles_read_back(tmp_path: Path) -> None:
    path = tmp_path / "deep/er/a.yaml"
    write_profile(
        path, {"mixed_precision": "no", "fsdp.version": 2, "hosts": ("a", "b")}, "Made for\n\ntests"
    )
    text = path.read_text()
    assert text.startswith(f"# Made for\n#\n# tests\nschema_version: {SCHEMA_VERSION}\n")
    document = read_document(path, "a.yaml", "test")
    assert {name: plain(entry) for name, entry in flatten(document.entries)} == {
        "schema_version": SCHEMA_VERSION,
        "mixed_precision": "no",
        "fsdp.version": 2,
        "hosts": ["a", "b"],
    }
    assert '"version": 2' in profile_text({"fsdp.version": 2}, as_json=True)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.yaml"
    write_atomic(path, "old\n")
    with pytest.raises(XlError, match="is no text"):
        write_atomic(path, "new \ud800\n")
    assert path.read_text() == "old\n"
    assert [file.name for file in tmp_path.iterdir()] == ["a.yaml"]


def test_links_and_modes_are_kept(tmp_path: Path) -> None:
    real, link = tmp_path / "real.yaml", tmp_path / "link.yaml"
    real.write_text("old")
    real.chmod(0o600)
    link.symlink_to(real)
    write_atomic(link, "new")
    assert link.is_symlink()
    assert real.read_text() == "new"
    assert real.stat().st_mode & 0o777 == 0o600


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(XlError, match="cannot be written"):
        write_atomic(tmp_path / "file/a.yaml", "x")


def test_awkward_names(tmp_path: Path) -> None:
    folder = tmp_path / 'it\'s "odd"\n$HOME'
    write_profile(folder / "a.yaml", {"seed": 1})
    assert os.listdir(folder) == ["a.yaml"]


def test_a_text_that_looks_like_a_number_stays_one() -> None:
    """YAML 1.1, by which yaml writes, has fewer numbers than the JSON by which xl reads."""
    for text in ("1e999", "1e5", "-2E+3", "0x1f", "1:30", "010", "1_000", "null", "no"):
        written = profile_text({"log_dir": text})
        assert plain(parse_document(written, Path("a.yaml"), "a.yaml").entries["log_dir"]) == text, written
