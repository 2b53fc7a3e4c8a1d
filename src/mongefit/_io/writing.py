"""Tables written to files of any known format."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from mongefit._io.arrays import encode_array
from mongefit._io.atomic import atomic_write, check_writable
from mongefit._io.paths import SUFFIXES, StrPath, suffix_of
from mongefit._io.tables import POINTS
from mongefit._io.text import DELIMITERS, encode_text
from mongefit.errors import DataError


def write_points(
    path: StrPath,
    points: ArrayLike,
    *,
    overwrite: bool = False,
    header: Sequence[str] | None = None,
) -> None:
    """Write a table of points or pairs, completely or not at all; it is read as it was.

    Reading gives the same float64 values. Integers are written as such, so that `read_pairs` takes
    them.

    Parameters
    ----------
    path
        A .csv, .tsv, .npy or .npz file (there the array is called ``points``).
    points
        Real numbers, [n, d], or row numbers, [k, 2].
    overwrite
        Replace a file that exists.
    header
        Names of the columns, for the text formats; NumPy files have no place for them.

    Raises
    ------
    FileExistsError
        If the file exists and ``overwrite`` is False.
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
