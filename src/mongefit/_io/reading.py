"""Tables read from files of any known format."""

from __future__ import annotations

import os
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mongefit._io.arrays import read_npy, read_npz
from mongefit._io.paths import SUFFIXES, StrPath, missing_file, suffix_of, unknown_suffix
from mongefit._io.tables import MAX_BYTES, PAIRS, POINTS, Content
from mongefit._io.text import DELIMITERS, read_text
from mongefit.errors import DataError


def read_points(path: StrPath, *, max_bytes: int = MAX_BYTES) -> NDArray[np.float64]:
    """Read a table of points.

    Parameters
    ----------
    path
        A .csv, .tsv, .npy or .npz file. The first row of a text file is a header when no cell of
        it is a number. One array of an archive is chosen as ``file.npz:name``.
    max_bytes
        Refuse arrays that would take more memory than this.

    Returns
    -------
    ndarray
        The points as float64, [n, d] for a text file; NumPy files keep their shape.

    Raises
    ------
    DataError
        If the file is missing, damaged, too large or holds something other than real numbers.
    """
    return _read(path, POINTS, max_bytes).astype(np.float64, copy=False)


def read_pairs(path: StrPath, *, max_bytes: int = MAX_BYTES) -> NDArray[np.int64]:
    """Read known pairs: rows of the source and, beside each, its row of the target.

    Parameters
    ----------
    path
        A file as in `read_points`, with two columns of integers: text such as 3.0 is refused, and
        a NumPy array must have an integer dtype.
    max_bytes
        Refuse arrays that would take more memory than this.

    Returns
    -------
    ndarray
        The pairs as int64, [k, 2].

    Raises
    ------
    DataError
        If the file cannot be read or does not hold two columns of integers.
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


def _read(path: StrPath, content: Content, max_bytes: int) -> NDArray[Any]:
    file, name = _split_name(path)
    if os.path.isdir(file):
        raise DataError(f"{file} is a folder. Name a file in it.")
    if not os.path.exists(file):
        raise DataError(missing_file(file))
    suffix = suffix_of(file)
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


def _split_name(path: StrPath) -> tuple[str, str | None]:
    text = os.fspath(path)
    if not os.path.exists(text) and (found := re.fullmatch(r"(?is)(.+?\.npz):(.*)", text)):
        return found[1], found[2]
    return text, None
