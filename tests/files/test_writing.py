"""Tables written and read again."""

from __future__ import annotations

import os

import numpy as np
import pytest

from mongefit._io import read_pairs, read_points, write_points
from tests.files.samples import TABLE, message, write


class TestWrite:
    @pytest.mark.parametrize("name", ["p.csv", "p.tsv", "p.npy", "p.npz", "P.CSV"])
    @pytest.mark.parametrize("header", [None, ["first, x", 'second\t"y"']])
    def test_round_trip_is_exact(self, tmp_path, name, header):
        rng = np.random.default_rng(0)
        points = rng.standard_normal((50, 2)) * 10.0 ** rng.integers(-300, 300, (50, 2))
        points[0] = [-0.0, 5e-324]
        points[1] = [np.nan, -np.inf]
        write_points(tmp_path / name, points, header=header)
        back = read_points(tmp_path / name)
        np.testing.assert_array_equal(back, points)
        np.testing.assert_array_equal(np.signbit(back), np.signbit(points))
        assert os.listdir(tmp_path) == [name]

    def test_text(self, tmp_path):
        write_points(tmp_path / "p.csv", [[1, 0.1], [2, 1e22]], header=["a", "b"])
        assert (tmp_path / "p.csv").read_bytes() == b"a,b\n1.0,0.1\n2.0,1e+22\n"

    @pytest.mark.parametrize("name", ["k.csv", "k.tsv", "k.npy", "k.npz"])
    @pytest.mark.parametrize("dtype", ["i8", "i4", ">i8", "u2"])
    def test_row_numbers(self, tmp_path, name, dtype):
        pairs = np.array([[0, 3], [2, 1], [7, 7]], dtype=dtype)
        write_points(tmp_path / name, pairs, header=["source", "target"])
        np.testing.assert_array_equal(read_pairs(tmp_path / name), pairs)
        np.testing.assert_array_equal(read_points(tmp_path / name), pairs)

    def test_text_of_row_numbers(self, tmp_path):
        write_points(tmp_path / "k.csv", [[0, 3], [2, 10**17]], header=["source", "target"])
        expected = b"source,target\n0,3\n2,100000000000000000\n"
        assert (tmp_path / "k.csv").read_bytes() == expected

    def test_npz_key(self, tmp_path):
        write_points(tmp_path / "p.npz", TABLE)
        with np.load(tmp_path / "p.npz") as archive:
            assert archive.files == ["points"]

    def test_float32(self, tmp_path):
        points = np.float32([[0.1, 0.2]])
        write_points(tmp_path / "p.csv", points)
        np.testing.assert_array_equal(read_points(tmp_path / "p.csv").astype(np.float32), points)

    def test_existing_file(self, tmp_path):
        path = write(tmp_path, "p.csv", "old")
        assert "overwrite=True" in message(write_points, path, TABLE, error=FileExistsError)
        assert path.read_text() == "old"
        write_points(path, TABLE, overwrite=True)
        np.testing.assert_array_equal(read_points(path), TABLE)
        assert os.listdir(tmp_path) == ["p.csv"]

    @pytest.mark.parametrize(
        "points",
        [[1.0, 2.0], np.ones((1, 2, 3)), np.ones((0, 2)), np.ones((2, 0)), [["a"]], [[1j]]],
    )
    def test_bad_points(self, tmp_path, points):
        said = message(write_points, tmp_path / "p.csv", points, error=ValueError)
        assert "two-dimensional array of real numbers" in said
        assert os.listdir(tmp_path) == []

    @pytest.mark.parametrize(
        ("header", "said"),
        [(["a"], "1 names for 2 columns"), (["a", "1"], "'1'"), (["a", ""], "''")],
    )
    def test_bad_header(self, tmp_path, header, said):
        assert said in message(
            write_points, tmp_path / "p.csv", TABLE, header=header, error=ValueError
        )
        assert os.listdir(tmp_path) == []

    def test_unknown_extension(self, tmp_path):
        said = message(write_points, tmp_path / "p.xlsx", TABLE, error=ValueError)
        assert ".csv, .tsv, .npy, .npz" in said
