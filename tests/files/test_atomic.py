"""Writing completely or not at all, and the check beforehand."""

from __future__ import annotations

import errno
import os
import re
import stat
import sys

import pytest

from mongefit._io import atomic_write, check_writable
from tests.files.samples import message, write


class TestCheckWritable:
    def test_leaves_nothing(self, tmp_path):
        check_writable(tmp_path / "p.csv")
        assert os.listdir(tmp_path) == []

    def test_relative_path(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        check_writable("p.csv")

    def test_missing_folder(self, tmp_path):
        said = message(check_writable, tmp_path / "no" / "p.csv", error=FileNotFoundError)
        assert f"there is no folder {tmp_path / 'no'}. Make it first" in said

    def test_folder_is_a_file(self, tmp_path):
        write(tmp_path, "file", "")
        message(check_writable, tmp_path / "file" / "p.csv", error=NotADirectoryError)

    def test_path_is_a_folder(self, tmp_path):
        said = message(check_writable, tmp_path, overwrite=True, error=IsADirectoryError)
        assert "is a folder" in said

    def test_folder_is_not_writable(self, tmp_path, monkeypatch):
        def refuse(file, *arguments, **options):
            raise PermissionError(errno.EACCES, "Permission denied", str(file))

        monkeypatch.setattr("builtins.open", refuse)
        said = message(check_writable, tmp_path / "p.csv", error=PermissionError)
        assert str(tmp_path) in said
        assert "permissions" in said

    @pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root writes anywhere")
    def test_folder_permissions(self, tmp_path):
        tmp_path.chmod(0o500)
        message(check_writable, tmp_path / "p.csv", error=PermissionError)

    def test_existing_file(self, tmp_path):
        path = write(tmp_path, "p.csv", "old")
        assert "overwrite=True" in message(check_writable, path, error=FileExistsError)
        check_writable(path, overwrite=True)
        assert path.read_text() == "old"
        assert os.listdir(tmp_path) == ["p.csv"]

    def test_suffixes(self, tmp_path):
        check_writable(tmp_path / "p.PNG", suffixes=[".png"])
        said = message(check_writable, tmp_path / "p.pgn", suffixes=[".png"], error=ValueError)
        assert "extension .pgn" in said
        assert "Did you mean .png?" in said

    def test_name_too_long(self, tmp_path):
        message(check_writable, tmp_path / ("p" * 300), error=OSError)

    def test_device(self):
        assert "device" in message(check_writable, os.devnull, overwrite=True, error=OSError)


class TestAtomicWrite:
    def test_writes_and_replaces(self, tmp_path):
        atomic_write(tmp_path / "m", b"one")
        atomic_write(tmp_path / "m", b"two")
        assert (tmp_path / "m").read_bytes() == b"two"
        assert os.listdir(tmp_path) == ["m"]

    @pytest.mark.parametrize("step", ["fsync", "replace"])
    @pytest.mark.parametrize(
        "failure", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()]
    )
    def test_earlier_file_survives_a_failure(self, tmp_path, monkeypatch, step, failure):
        path = write(tmp_path, "m", "old")

        def fail(*arguments):
            raise failure

        monkeypatch.setattr(os, step, fail)
        with pytest.raises(type(failure)) as caught:
            atomic_write(path, b"new")
        monkeypatch.undo()
        if isinstance(failure, OSError):
            assert caught.value.errno == errno.ENOSPC
            assert re.search(r"could not write .*m \(No space left on device\)", str(caught.value))
        assert path.read_text() == "old"
        assert os.listdir(tmp_path) == ["m"]

    def test_first_file_fails_without_trace(self, tmp_path, monkeypatch):
        def fail(*arguments):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "fsync", fail)
        message(atomic_write, tmp_path / "m", b"new", error=OSError)
        assert os.listdir(tmp_path) == []

    def test_file_made_by_another_process_meanwhile(self, tmp_path, monkeypatch):
        path = tmp_path / "m"
        sync = os.fsync

        def race(descriptor):
            path.write_text("theirs")
            sync(descriptor)

        monkeypatch.setattr(os, "fsync", race)
        assert "overwrite=True" in message(
            atomic_write, path, b"ours", overwrite=False, error=FileExistsError
        )
        assert path.read_text() == "theirs"
        assert os.listdir(tmp_path) == ["m"]

    def test_file_system_without_links(self, tmp_path, monkeypatch):
        def fail(*arguments):
            raise OSError(errno.EPERM, "Operation not permitted")

        monkeypatch.setattr(os, "link", fail)
        atomic_write(tmp_path / "m", b"new", overwrite=False)
        assert (tmp_path / "m").read_bytes() == b"new"
        message(atomic_write, tmp_path / "m", b"again", overwrite=False, error=FileExistsError)
        assert os.listdir(tmp_path) == ["m"]

    @pytest.mark.skipif(sys.platform == "win32", reason="POSIX modes")
    def test_modes(self, tmp_path):
        mask = os.umask(0o027)
        try:
            atomic_write(tmp_path / "m", b"one")
        finally:
            os.umask(mask)
        assert stat.S_IMODE((tmp_path / "m").stat().st_mode) == 0o640
        (tmp_path / "m").chmod(0o604)
        atomic_write(tmp_path / "m", b"two")
        assert stat.S_IMODE((tmp_path / "m").stat().st_mode) == 0o604

    def test_link_is_followed(self, tmp_path):
        write(tmp_path, "m", "old")
        (tmp_path / "link").symlink_to("m")
        atomic_write(tmp_path / "link", b"new")
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "m").read_bytes() == b"new"

    def test_folder_and_device(self, tmp_path):
        message(atomic_write, tmp_path, b"", error=IsADirectoryError)
        message(atomic_write, os.devnull, b"", error=OSError)

    def test_missing_folder(self, tmp_path):
        said = message(atomic_write, tmp_path / "no" / "m", b"", error=FileNotFoundError)
        assert str(tmp_path / "no" / "m") in said
