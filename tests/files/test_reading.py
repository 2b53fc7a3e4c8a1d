"""Files that are missing or damaged, and tables of pairs."""

from __future__ import annotations

import errno

import numpy as np
import pytest

from mongefit._io import MAX_BYTES, read_pairs, read_points, write_points
from mongefit.errors import DataError
from tests.files.samples import TABLE, message, npy_bytes, write


class TestMissing:
    def test_near_match(self, tmp_path):
        write(tmp_path, "Points.csv", "1\n")
        said = message(read_points, tmp_path / "poinst.csv")
        assert f"{tmp_path / 'poinst.csv'} not found. Did you mean Points.csv?" == said

    def test_no_near_match(self, tmp_path):
        assert "not found. Check the name" in message(read_points, tmp_path / "p.csv")

    def test_missing_folder(self, tmp_path):
        said = message(read_points, tmp_path / "no" / "p.csv")
        assert f"there is no folder {tmp_path / 'no'}" in said

    def test_relative_path(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        write(tmp_path, "points.csv", "1\n")
        assert "Did you mean points.csv?" in message(read_points, "point.csv")

    def test_folder(self, tmp_path):
        (tmp_path / "p.csv").mkdir()
        assert "is a folder" in message(read_points, tmp_path / "p.csv")

    def test_unknown_extension(self, tmp_path):
        said = message(read_points, write(tmp_path, "p.cvs", "1\n"))
        assert "extension .cvs" in said
        assert ".csv, .tsv, .npy, .npz" in said
        assert "Did you mean .csv" in said

    def test_no_extension(self, tmp_path):
        assert "has no extension" in message(read_points, write(tmp_path, "p", "1\n"))

    @pytest.mark.parametrize("name", ["p.csv", "p.npy", "p.npz"])
    def test_unreadable(self, tmp_path, name, monkeypatch):
        path = write(tmp_path, name, "1\n")

        def refuse(file, *arguments, **options):
            raise PermissionError(errno.EACCES, "Permission denied", str(file))

        monkeypatch.setattr("builtins.open", refuse)
        monkeypatch.setattr("io.open", refuse)
        assert "Permission denied" in message(read_points, path)


@pytest.mark.parametrize("name", ["p.csv", "p.npy", "p.npz"])
def test_random_damage_gives_a_data_error_or_an_array(tmp_path, name):
    write_points(tmp_path / name, TABLE)
    original = (tmp_path / name).read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(300):
        content = bytearray(original)
        for position in rng.integers(len(content), size=rng.integers(1, 4)):
            content[position] = rng.integers(256)
        path = write(
            tmp_path, f"damaged-{name}", bytes(content[: rng.integers(1, 3 * len(content))])
        )
        try:
            points = read_points(path)
        except DataError:
            continue
        assert points.dtype == np.float64


class TestPairs:
    @pytest.mark.parametrize(
        ("name", "content"),
        [
            ("k.csv", "0,3\n2,1\n"),
            ("k.csv", "\ufeffsource,target\r\n0,3\r\n2,1\r\n\r\n"),
            ("k.tsv", "source\ttarget\n 0\t+3\n2\t1 \n"),
            ("k.npy", npy_bytes(np.array([[0, 3], [2, 1]], dtype=np.uint16))),
            ("k.npy", npy_bytes(np.array([[0, 3], [2, 1]], dtype=">i4"))),
        ],
    )
    def test_reads(self, tmp_path, name, content):
        pairs = read_pairs(write(tmp_path, name, content))
        assert pairs.dtype == np.int64
        np.testing.assert_array_equal(pairs, [[0, 3], [2, 1]])

    def test_npz(self, tmp_path):
        np.savez(tmp_path / "k.npz", pairs=np.array([[0, 3]]), points=TABLE)
        np.testing.assert_array_equal(read_pairs(f"{tmp_path}/k.npz:pairs"), [[0, 3]])

    def test_negative_is_left_to_the_estimator(self, tmp_path):
        np.testing.assert_array_equal(read_pairs(write(tmp_path, "k.csv", "-1,2\n")), [[-1, 2]])

    @pytest.mark.parametrize("cell", ["3.0", "1e3", "nan", "x", "9" * 19, "٣", "1_0"])
    def test_only_integers(self, tmp_path, cell):
        path = write(tmp_path, "k.csv", f"source,target\n1,2\n5,{cell}\n")
        said = message(read_pairs, path)
        assert said.startswith(f"{path}, line 3, column 2: {cell!r} is not a row number.")

    def test_float_in_the_first_row(self, tmp_path):
        said = message(read_pairs, write(tmp_path, "k.csv", "3.0,1\n"))
        assert "line 1, column 1: '3.0' is not a row number." in said

    @pytest.mark.parametrize(
        ("content", "column"), [("1\n2\n", 2), ("0,1,2\n", 3), ("source,target,weight\n", 3)]
    )
    def test_two_columns(self, tmp_path, content, column):
        said = message(read_pairs, write(tmp_path, "k.csv", content))
        assert f"line 1, column {column}: " in said
        assert "2 columns are expected" in said

    @pytest.mark.parametrize("shape", [(4,), (2, 3), (1, 2, 2)])
    def test_array_shape(self, tmp_path, shape):
        path = write(tmp_path, "k.npy", npy_bytes(np.ones(shape, dtype=int)))
        assert "(k, 2)" in message(read_pairs, path)

    @pytest.mark.parametrize("dtype", [float, bool, str, complex])
    def test_array_type(self, tmp_path, dtype):
        path = write(tmp_path, "k.npy", npy_bytes(np.ones((2, 2), dtype=dtype)))
        assert "integers are needed" in message(read_pairs, path)

    def test_beyond_int64(self, tmp_path):
        array = np.array([[1, 2], [3, 2**63]], dtype=np.uint64)
        said = message(read_pairs, write(tmp_path, "k.npy", npy_bytes(array)))
        assert "row 1: 9223372036854775808 is not a row number" in said


def test_default_limit():
    assert MAX_BYTES == 8 * 2**30
