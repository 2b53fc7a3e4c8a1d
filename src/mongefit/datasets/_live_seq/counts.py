"""Reading the counts of Live-seq: genes in rows, samples in columns, gzipped csv."""

from __future__ import annotations

import csv
import gzip
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mongefit._io import StrPath
from mongefit.datasets._live_seq.files import file_digest, reading
from mongefit.errors import DataError, did_you_mean

# The published file has 1,012 samples and 11 MB before it is unpacked.
_MAX_LINE, _MAX_TEXT = 2**20, 2**31
_MAX_COUNT = 2**53

# R writes 100000 as 1e+05 where it holds a float.
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?")


class Counts(NamedTuple):
    """The counts of some samples, for the genes that enough samples have."""

    genes: tuple[str, ...]
    values: NDArray[np.float64]  # reads, [genes, samples]
    totals: NDArray[np.int64]  # reads of every sample over all genes of the file
    detected: NDArray[np.int64]  # genes detected in every sample, of all in the file
    genes_in_file: int
    samples_in_file: int
    sha256: str  # of the file's bytes


def read_counts(path: StrPath, names: Sequence[str], *, min_samples: int) -> Counts:
    """Read the counts of the samples ``names``, in this order, from a file that is gzipped or not.

    Genes that fewer than ``min_samples`` samples of the file have are dropped, as Seurat's
    ``min.cells`` does.
    """
    with reading(path) as file:
        sha256 = file_digest(file)
        lines = _lines(file)
        header = next(csv.reader([next(lines, "")]), [])
        columns = _columns(file, header, names)
        seen: dict[str, int] = {}
        kept: dict[str, NDArray[np.int64]] = {}
        totals, detected = np.zeros((2, len(names)), dtype=np.int64)
        for line, text in enumerate(lines, start=2):
            gene, row = _parse(text, header, f"{file}, line {line}")
            if gene in seen:
                raise DataError(f"{file}, lines {seen[gene]} and {line} have the same gene {gene}.")
            seen[gene] = line
            values = row[columns]
            totals += values
            detected += values > 0
            if np.count_nonzero(row) >= min_samples:
                kept[gene] = values
    if not kept:
        raise DataError(f"{file} has no gene that {min_samples} samples have.")
    return Counts(
        genes=tuple(kept),
        values=np.array(list(kept.values()), dtype=np.float64),
        totals=totals,
        detected=detected,
        genes_in_file=len(seen),
        samples_in_file=len(header) - 1,
        sha256=sha256,
    )


def _lines(file: str) -> Iterator[str]:
    with open(file, "rb") as raw:
        zipped = raw.read(2) == b"\x1f\x8b"
    size = 0
    with gzip.open(file, "rb") if zipped else open(file, "rb") as stream:
        while text := stream.readline(_MAX_LINE):
            size += len(text)
            if size > _MAX_TEXT or len(text) == _MAX_LINE:
                raise DataError(
                    f"{file} unpacks to more than {_MAX_TEXT >> 30} GiB, or has a line of more "
                    f"than {_MAX_LINE >> 20} MiB. It is not the published file: fetch it again."
                )
            yield text.decode("utf-8-sig")


def _columns(file: str, header: Sequence[str], names: Sequence[str]) -> NDArray[np.intp]:
    places = {name: place for place, name in enumerate(header[1:])}
    if len(places) < len(header) - 1:
        twice = next(name for place, name in enumerate(header[1:]) if places[name] != place)
        raise DataError(f"{file} has more than one column {twice!r}.")
    missing = [name for name in names if name not in places]
    if missing:
        raise DataError(
            f"{file} lacks {len(missing)} of the {len(names)} samples (first: {missing[0]!r})."
            f"{did_you_mean(missing[0], places)} Use GSE141064_count.final.csv.gz, with the sample "
            "table that belongs to it."
        )
    return np.array([places[name] for name in names], dtype=np.intp)


def _parse(text: str, header: Sequence[str], where: str) -> tuple[str, NDArray[np.int64]]:
    name, _, rest = text.rstrip("\r\n").partition(",")
    width = rest.count(",") + 1
    if width != len(header) - 1:
        raise DataError(
            f"{where} has {width + 1} cells; the header has {len(header)}. Fetch the file again."
        )
    digits = rest.replace(",", "")
    # Nearly all lines hold digits only, which NumPy reads at once; what is too large for it becomes
    # the largest number.
    if digits.isascii() and digits.isdecimal() and ",," not in f",{rest},":
        row = np.fromstring(rest, dtype=np.int64, sep=",")
        if row.max() <= _MAX_COUNT:
            return name.strip('"'), row
    cells = zip(rest.split(","), header[1:], strict=True)
    values = [_whole_number(cell, f"{where}, column {column}") for cell, column in cells]
    return name.strip('"'), np.array(values, dtype=np.int64)


def _whole_number(cell: str, where: str) -> int:
    value = float(cell) if _NUMBER.fullmatch(cell) else -1.0
    if not (0 <= value <= _MAX_COUNT and value.is_integer()):
        raise DataError(f"{where}: {cell!r} is not a whole number from 0 on.")
    return int(value)
