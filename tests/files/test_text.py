"""Tables as text: what is read, and every fault by line and column."""

from __future__ import annotations

import numpy as np
import pytest

from mongefit._io import read_points
from tests.files.samples import TABLE, message, npy_bytes, write


class TestText:
    @pytest.mark.parametrize(
        ("name", "content"),
        [
            ("p.csv", "1,2\n3.5,-4\n.1,1e-300\n"),
            ("p.csv", "a,b\n1,2\n3.5,-4\n.1,1e-300\n"),
            ("p.csv", "1,2\n3.5,-4\n.1,1e-300"),
            ("p.csv", "\ufeffa,b\r\n1,2\r\n3.5,-4\r\n.1,1e-300\r\n"),
            ("p.csv", "\ufeff1,2\r\n3.5,-4\r\n.1,1e-300\r\n\r\n\r\n"),
            ("p.csv", "1,2\r3.5,-4\r.1,1e-300\r"),
            ("p.csv", '"a ""b""","c, d"\n"1","2"\n 3.5 , -4\n.1,1e-300\n  \n\n'),
            ("P.CSV", "1,2\n3.5,-4\n.1,1e-300\n"),
            ("p.tsv", "1\t2\n3.5\t-4\n.1\t1e-300\n"),
            ("p.Tsv", "a,x\tb\n1\t2\n3.5\t-4\n.1\t1e-300\n"),
        ],
    )
    def test_reads(self, tmp_path, name, content):
        points = read_points(write(tmp_path, name, content))
        assert points.dtype == np.float64
        assert points.flags.writeable
        np.testing.assert_array_equal(points, TABLE)

    def test_path_as_text(self, tmp_path):
        path = write(tmp_path, "p.csv", "1,2\n")
        np.testing.assert_array_equal(read_points(str(path)), [[1.0, 2.0]])

    def test_one_column(self, tmp_path):
        points = read_points(write(tmp_path, "p.csv", "x\n1\n2\n3\n"))
        np.testing.assert_array_equal(points, [[1.0], [2.0], [3.0]])

    def test_nan_and_inf_are_left_to_the_estimator(self, tmp_path):
        points = read_points(write(tmp_path, "p.csv", "nan,inf\n1,-Infinity\n"))
        np.testing.assert_array_equal(points, [[np.nan, np.inf], [1.0, -np.inf]])

    @pytest.mark.parametrize(
        ("content", "line", "column", "text"),
        [
            ("1,2\n3,abc\n", 2, 2, "'abc'"),
            ("a,b\r\n1,2\r\n3,4x\r\n", 3, 2, "'4x'"),
            ("1,b\n3,4\n", 1, 2, "'b'"),
            ("1,2\n1_000,4\n", 2, 1, "'1_000'"),
            ("1,2\n3,\n", 2, 2, "empty"),
            ('"a\nb",c\n1,2\n3,?\n', 4, 2, "'?'"),
            ("1,2\n3," + "z" * 1000 + "\n", 2, 2, "z…'"),
        ],
    )
    def test_bad_cell(self, tmp_path, content, line, column, text):
        path = write(tmp_path, "p.csv", content)
        said = message(read_points, path)
        assert said.startswith(f"{path}, line {line}, column {column}: ")
        assert text in said
        assert len(said) < len(str(path)) + 200

    def test_control_characters_are_escaped(self, tmp_path):
        said = message(read_points, write(tmp_path, "p.csv", "1,2\n3,\x1b[2J\x00\n"))
        assert "\x1b" not in said
        assert "\\x1b[2J\\x00" in said

    @pytest.mark.parametrize(
        ("content", "line", "column", "text"),
        [
            ("1,2\n3\n5,6\n", 2, 2, "'3'"),
            ("1,2\n3,4,5\n", 2, 3, "'5'"),
            ("a,b,c\n3,4\n", 2, 3, "'4'"),
        ],
    )
    def test_ragged_row(self, tmp_path, content, line, column, text):
        path = write(tmp_path, "p.csv", content)
        said = message(read_points, path)
        assert said.startswith(f"{path}, line {line}, column {column}: ")
        assert text in said
        assert "columns are expected" in said

    def test_blank_line_between_rows(self, tmp_path):
        assert "line 2 is blank" in message(read_points, write(tmp_path, "p.csv", "1\n\n\n2\n"))

    @pytest.mark.parametrize("content", ["", "\n\n", "\ufeff", " \r\n"])
    def test_empty(self, tmp_path, content):
        assert "is empty" in message(read_points, write(tmp_path, "p.csv", content))

    def test_header_alone(self, tmp_path):
        assert "no rows" in message(read_points, write(tmp_path, "p.csv", "a,b\n"))

    def test_column_of_row_labels(self, tmp_path):
        said = message(read_points, write(tmp_path, "p.csv", ",a,b\n0,1,2\n1,3,4\n"))
        assert "line 1, column 1" in said
        assert "index=False" in said

    @pytest.mark.parametrize(
        ("name", "content", "wanted"),
        [
            ("p.csv", "1;2\n3;4\n5;6\n", "commas"),
            ("p.csv", "1\t2\n3\t4\n", "commas"),
            ("p.csv", "1,5;2,5\n3,5;4,5\n", "commas"),
            ("p.tsv", "1,2\n3,4\n", "tabs"),
        ],
    )
    def test_other_separator(self, tmp_path, name, content, wanted):
        said = message(read_points, write(tmp_path, name, content))
        assert f"separated by {wanted}" in said

    @pytest.mark.parametrize(
        "content", [npy_bytes(TABLE), "1,2\n".encode("utf-16"), "é,1\n".encode("latin-1")]
    )
    def test_not_utf8(self, tmp_path, content):
        assert "not UTF-8 text" in message(read_points, write(tmp_path, "p.csv", content))

    @pytest.mark.parametrize("content", ['1,2\n"3,4\n5,6\n', "1,2\n" + "3" * 200_000 + ",4\n"])
    def test_csv_error_names_the_line(self, tmp_path, content):
        assert ", line 2: " in message(read_points, write(tmp_path, "p.csv", content))

    def test_too_large(self, tmp_path):
        path = write(tmp_path, "p.csv", "1,2\n3,4\n5,6\n")
        assert read_points(path, max_bytes=48).shape == (3, 2)
        said = message(read_points, path, max_bytes=40)
        assert "line 3" in said
        assert "max_bytes" in said
