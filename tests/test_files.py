"""Reading and writing of tables: every format, every fault of a file, and atomic writing."""

from __future__ import annotations

import errno
import io
import os
import re
import stat
import struct
import sys
import zipfile

import numpy as np
import pytest

from mongefit import files
from mongefit.files import (
    DataError,
    atomic_write,
    check_writable,
    read_pairs,
    read_points,
    write_points,
)

TABLE = np.array([[1.0, 2.0], [3.5, -4.0], [0.1, 1e-300]])


def write(folder, name, content):
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def npy_bytes(array, **options):
    buffer = io.BytesIO()
    np.save(buffer, array, **options)
    return buffer.getvalue()


def npy_header(descr, shape):
    buffer = io.BytesIO()
    header = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, header)
    return buffer.getvalue()


def npz(folder, name, members, compression=zipfile.ZIP_DEFLATED):
    path = folder / name
    with zipfile.ZipFile(path, "w", compression) as archive:
        for member, content in members.items():
            archive.writestr(member, content)
    return path


def message(function, *arguments, error=DataError, **options):
    with pytest.raises(error) as caught:
        function(*arguments, **options)
    return str(caught.value)


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


class TestNpy:
    @pytest.mark.parametrize("dtype", ["f8", "f4", "f2", ">f8", "i1", "i8", "u8", np.longdouble])
    def test_numeric_types(self, tmp_path, dtype):
        array = np.arange(6).reshape(3, 2).astype(dtype)
        points = read_points(write(tmp_path, "p.npy", npy_bytes(array)))
        assert points.dtype == np.float64
        assert points.dtype.isnative
        np.testing.assert_array_equal(points, np.arange(6.0).reshape(3, 2))

    def test_fortran_order(self, tmp_path):
        array = np.asfortranarray(TABLE)
        points = read_points(write(tmp_path, "p.NPY", npy_bytes(array)))
        np.testing.assert_array_equal(points, TABLE)

    @pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
    def test_format_versions(self, tmp_path, version):
        with open(tmp_path / "p.npy", "wb") as stream:
            np.lib.format.write_array(stream, TABLE, version=version)
        np.testing.assert_array_equal(read_points(tmp_path / "p.npy"), TABLE)

    @pytest.mark.parametrize("shape", [(), (6,), (1, 2, 3), (0, 2)])
    def test_other_shapes_are_left_to_the_estimator(self, tmp_path, shape):
        points = read_points(write(tmp_path, "p.npy", npy_bytes(np.ones(shape))))
        assert points.shape == shape

    def test_pickled_objects_are_not_opened(self, tmp_path):
        array = np.array([{}, None], dtype=object)
        path = write(tmp_path, "p.npy", npy_bytes(array, allow_pickle=True))
        assert "Pickled files are not opened" in message(read_points, path)

    def test_bare_pickle_runs_nothing(self, tmp_path):
        attack = b"\x80\x04cos\nmkdir\n(V" + str(tmp_path / "pwned").encode() + b"\ntR."
        for name in ("p.npy", "p.npz"):
            said = message(read_points, write(tmp_path, name, attack))
            assert "Pickled files are not opened" in said
        assert not (tmp_path / "pwned").exists()

    @pytest.mark.parametrize(
        "array",
        [
            np.array([["a", "b"]]),
            np.array([[b"a"]]),
            np.array([[True]]),
            np.array([[1j]]),
            np.array([["2020-01-01"]], dtype="datetime64[D]"),
            np.zeros(2, dtype=[("x", float), ("y", float)]),
            np.zeros(2, dtype=[("é", float)]),
        ],
    )
    def test_other_types(self, tmp_path, array):
        said = message(read_points, write(tmp_path, "p.npy", npy_bytes(array)))
        assert "holds values of type" in said
        assert "real numbers" in said

    @pytest.mark.parametrize("cut", [1, 20])
    def test_truncated(self, tmp_path, cut):
        path = write(tmp_path, "p.npy", npy_bytes(TABLE)[:-cut])
        assert "is truncated" in message(read_points, path)

    def test_truncated_header(self, tmp_path):
        path = write(tmp_path, "p.npy", npy_bytes(TABLE)[:40])
        assert "no readable NumPy header" in message(read_points, path)

    def test_trailing_bytes(self, tmp_path):
        path = write(tmp_path, "p.npy", npy_bytes(TABLE) * 2)
        assert "more than one array" in message(read_points, path)

    @pytest.mark.parametrize(
        ("content", "said"),
        [(b"", "is empty"), (b"1,2\n", "not a NumPy file"), (b"PK\x03\x04", ".npz")],
    )
    def test_wrong_content(self, tmp_path, content, said):
        assert said in message(read_points, write(tmp_path, "p.npy", content))

    def test_header_above_the_cap(self, tmp_path):
        path = write(tmp_path, "p.npy", npy_header("<f8", (2**40, 2**20)))
        said = message(read_points, path)
        assert "GiB of memory, above the limit of 8 GiB" in said

    def test_header_above_the_file_size(self, tmp_path):
        path = write(tmp_path, "p.npy", npy_header("<f8", (2**20, 2**9)))
        assert "is truncated" in message(read_points, path)

    def test_growth_to_float64_counts(self, tmp_path):
        path = write(tmp_path, "p.npy", npy_bytes(np.zeros((100, 2), dtype=np.int8)))
        assert read_points(path, max_bytes=1600).shape == (100, 2)
        assert "above the limit" in message(read_points, path, max_bytes=1599)

    @pytest.mark.parametrize("shape", [(-1, 2), (0, 2**80), (2**80, 0, -1)])
    def test_absurd_shape(self, tmp_path, shape):
        message(read_points, write(tmp_path, "p.npy", npy_header("<f8", shape)))

    def test_absurd_header_length(self, tmp_path):
        content = b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**32 - 1) + b" " * 100_000
        path = write(tmp_path, "p.npy", content)
        assert "no readable NumPy header" in message(read_points, path)

    def test_evil_header(self, tmp_path):
        text = b"__import__('os').getcwd()".ljust(53) + b"\n"
        content = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text
        path = write(tmp_path, "p.npy", content)
        assert "no readable NumPy header" in message(read_points, path)


class TestNpz:
    @pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
    def test_single_array(self, tmp_path, save):
        save(tmp_path / "p.npz", anything=TABLE)
        np.testing.assert_array_equal(read_points(tmp_path / "p.npz"), TABLE)

    def test_named_array(self, tmp_path):
        np.savez(tmp_path / "p.npz", **{"a": TABLE, "b:c": TABLE + 1})
        np.testing.assert_array_equal(read_points(f"{tmp_path}/p.npz:a"), TABLE)
        np.testing.assert_array_equal(read_points(tmp_path / "p.npz:b:c"), TABLE + 1)

    def test_choice_is_needed(self, tmp_path):
        path = tmp_path / "p.npz"
        np.savez(path, source=TABLE, target=TABLE)
        said = message(read_points, path)
        assert "holds 2 arrays: source, target" in said
        assert said.endswith(f"{path}:source")

    def test_unknown_name(self, tmp_path):
        np.savez(tmp_path / "p.npz", source=TABLE, target=TABLE)
        said = message(read_points, f"{tmp_path}/p.npz:soruce")
        assert "no array 'soruce'. Arrays: source, target. Did you mean source?" in said
        assert "Did you mean" not in message(read_points, f"{tmp_path}/p.npz:qq")

    def test_many_names_are_not_all_listed(self, tmp_path):
        np.savez(tmp_path / "p.npz", **{f"a{i}": TABLE for i in range(50)})
        said = message(read_points, tmp_path / "p.npz")
        assert "holds 50 arrays" in said
        assert "a19, …" in said
        assert "a20" not in said

    def test_missing_archive_with_name(self, tmp_path):
        np.savez(tmp_path / "points.npz", TABLE)
        said = message(read_points, f"{tmp_path}/point.npz:a")
        assert "point.npz not found. Did you mean points.npz?" in said

    def test_no_arrays(self, tmp_path):
        path = npz(tmp_path, "p.npz", {"readme.txt": "hello"})
        assert "holds no arrays" in message(read_points, path)

    @pytest.mark.parametrize(
        ("content", "said"),
        [
            (npy_bytes(TABLE), "extension .npy"),
            (b"1,2\n", "not a NumPy file"),
            (b"", "is empty"),
            (b"PK\x03\x04abc", "truncated or damaged"),
        ],
    )
    def test_wrong_content(self, tmp_path, content, said):
        assert said in message(read_points, write(tmp_path, "p.npz", content))

    def test_truncated(self, tmp_path):
        np.savez(tmp_path / "p.npz", TABLE)
        path = write(tmp_path, "q.npz", (tmp_path / "p.npz").read_bytes()[:-30])
        assert "truncated or damaged" in message(read_points, path)

    def test_flipped_bit(self, tmp_path):
        np.savez(tmp_path / "p.npz", TABLE)
        content = bytearray((tmp_path / "p.npz").read_bytes())
        content[content.index(TABLE.tobytes()) + 3] ^= 1
        path = write(tmp_path, "q.npz", bytes(content))
        assert "is damaged: Bad CRC-32" in message(read_points, path)

    def test_member_is_not_an_array(self, tmp_path):
        path = npz(tmp_path, "p.npz", {"a.npy": "hello"})
        assert "p.npz:a holds something other" in message(read_points, path)

    def test_pickled_member(self, tmp_path):
        np.savez(tmp_path / "p.npz", a=np.array([{}], dtype=object))
        said = message(read_points, tmp_path / "p.npz")
        assert "p.npz:a holds pickled objects" in said

    def test_member_that_unpacks_above_the_cap(self, tmp_path):
        np.savez_compressed(tmp_path / "p.npz", a=np.zeros((1000, 1000)))
        assert os.path.getsize(tmp_path / "p.npz") < 20_000
        said = message(read_points, tmp_path / "p.npz", max_bytes=2**20)
        assert "p.npz:a needs 0.00745 GiB of memory" in said

    def test_member_whose_header_lies(self, tmp_path):
        huge = npy_header("<f8", (2**40, 2))
        path = npz(tmp_path, "p.npz", {"a.npy": huge + b"\0" * 64})
        assert "above the limit of 8 GiB" in message(read_points, path)
        path = npz(tmp_path, "q.npz", {"a.npy": npy_header("<f8", (2**20, 2)) + b"\0" * 64})
        assert "is truncated" in message(read_points, path)

    def test_directory_that_claims_less(self, tmp_path):
        """A size forged downwards cannot make the reader unpack more than it."""
        np.savez_compressed(tmp_path / "p.npz", a=np.zeros((1000, 2)))
        content = bytearray((tmp_path / "p.npz").read_bytes())
        where = content.index(b"PK\x01\x02") + 24
        content[where : where + 4] = struct.pack("<I", 256)
        path = write(tmp_path, "q.npz", bytes(content))
        assert "is damaged" in message(read_points, path)

    def test_encrypted_member(self, tmp_path):
        np.savez(tmp_path / "p.npz", a=TABLE)
        content = bytearray((tmp_path / "p.npz").read_bytes())
        content[content.index(b"PK\x03\x04") + 6] |= 1
        content[content.index(b"PK\x01\x02") + 8] |= 1
        path = write(tmp_path, "q.npz", bytes(content))
        assert "is damaged" in message(read_points, path)


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
        assert "--force" in message(write_points, path, TABLE, error=FileExistsError)
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
        assert "--force" in message(check_writable, path, error=FileExistsError)
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
        assert "--force" in message(
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


def test_default_limit():
    assert files.MAX_BYTES == 8 * 2**30
