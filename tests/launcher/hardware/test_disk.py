"""Room in folders, those that do not exist yet included."""

from pathlib import Path

from xl.launcher.hardware.disk import read_disk, temporary_folder


def test_a_folder_that_does_not_exist_yet(tmp_path: Path) -> None:
    there, later = read_disk("logs", tmp_path), read_disk("logs", tmp_path / "a" / "b")
    assert later.path == str(tmp_path / "a" / "b")
    assert later.total_bytes == there.total_bytes
    assert there.writable
    assert later.writable


def test_a_path_through_a_file_uses_the_nearest_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert read_disk("logs", tmp_path / "file" / "below").total_bytes


def test_temporary_folder() -> None:
    assert temporary_folder({"TMPDIR": "/scratch", "TMP": "/other"}) == Path("/scratch")
    assert temporary_folder({"TMPDIR": "", "TMP": "/other"}) == Path("/other")
    assert temporary_folder({}) == Path("/tmp")
