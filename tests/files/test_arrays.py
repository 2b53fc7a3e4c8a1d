"""Tables as NumPy arrays, bare and in archives: what is read, and what is never opened."""

from __future__ import annotations

import os
import struct

import numpy as np
import pytest

from mongefit._io import read_points
from tests.files.samples import TABLE, message, npy_bytes, npy_header, npz, write


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
