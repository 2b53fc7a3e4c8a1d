"""Tables read from and written to files of any known format."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mongefit._io.arrays import encode_array, read_npy, read_npz
from mongefit._io.atomic import atomic_write, check_writable
from mongefit._io.paths import (
    MAX_BYTES,
    SUFFIXES,
    StrPath,
    require_file,
    suffix_of,
    unknown_suffix,
)
from mongefit._io.text import DELIMITERS, PAIRS, POINTS, Content, encode_text, read_text
from mongefit.errors import DataError


def read_points(path: StrPath, *, max_bytes: int = MAX_BYTES) -> NDArray[np.float64]:
    """Read a table of points, [n, d] for a text file; NumPy files keep their shape.

    The first row of a text file is a header when no cell of it is a number. One array of an archive
    is chosen as ``file.npz:name``. A DataError says what is wrong with a file that is missing,
    damaged, larger than ``max_bytes`` in memory, or holds something other than real numbers.
    """
    return _read(path, POINTS, max_bytes).astype(np.float64, copy=False)


def read_pairs(path: StrPath, *, max_bytes: int = MAX_BYTES) -> NDArray[np.int64]:
    """Read known pairs, [k, 2]: rows of the source and, beside each, its row of the target.

    As `read_points`, for two columns of integers: text such as 3.0 is refused, and a NumPy array
    must have an integer dtype.
    """
    pairs = _read(path, PAIRS, max_bytes)
    if pairs.ndim != 2 or pairs.shape[1] != 2:
        raise DataError(
            f"{os.fspath(path)} has the shape {pairs.shape}; pairs have the shape (k, 2), "
            "a source row and a target row each."
        )
    if pairs.size and pairs.max() > np.iinfo(np.int64).max:
        row = int(np.argmax(pairs.max(axis=1)))
        raise DataError(f"{os.fspath(path)}, row {row}: {pairs[row].max()} is not a row number.")
    return pairs.astype(np.int64, copy=False)


def write_points(
    path: StrPath,
    points: ArrayLike,
    *,
    overwrite: bool = False,
    header: Sequence[str] | None = None,
) -> None:
    """Write a table of points or pairs, completely or not at all.

    Reading gives the same float64 values; integers stay integers. In an archive the array is called
    ``points``. The ``header`` names the columns of a text file; NumPy files have no place for it.
    """
    check_writable(path, overwrite=overwrite, suffixes=SUFFIXES)
    table = np.asarray(points)
    if table.dtype.kind not in POINTS.kinds or table.ndim != 2 or not table.size:
        raise DataError(
            "points must be a two-dimensional array of real numbers with at least one row and one "
            f"column, got {table.dtype} of shape {table.shape}."
        )
    if table.dtype.kind == "f":
        table = table.astype(np.float64, copy=False)
    suffix = suffix_of(path)
    if suffix in DELIMITERS:
        data = encode_text(table, DELIMITERS[suffix], header)
    else:
        data = encode_array(table, suffix)
    atomic_write(path, data, overwrite=overwrite)


def _read(path: StrPath, content: Content, max_bytes: int) -> NDArray[Any]:
    file, name = os.fspath(path), None
    if not os.path.exists(file) and (found := re.fullmatch(r"(?is)(.+?\.npz):(.*)", file)):
        file, name = found.groups()
    suffix = suffix_of(require_file(file))
    if suffix not in SUFFIXES:
        raise DataError(unknown_suffix(file, SUFFIXES))
    try:
        if suffix in DELIMITERS:
            return read_text(file, DELIMITERS[suffix], content, max_bytes)
        if suffix == ".npy":
            return read_npy(file, content, max_bytes)
        return read_npz(file, name, content, max_bytes)
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror or error}.") from error
