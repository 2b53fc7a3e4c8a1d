"""The sample table of Live-seq: which samples are taken, and which of them are of one cell."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mongefit._io import StrPath
from mongefit.datasets._live_seq.files import require_file
from mongefit.errors import DataError, did_you_mean

CELL_TYPE = "ASPC"
BEFORE, AFTER = "not_treated", "DMIR_treated"
LIVE = "Live_seq"

# The study's limits for a sample (04_Liveseq_scRNAseq_integration).
MIN_GENES, MAX_MITOCHONDRIAL, MIN_MAPPED = 1000, 30.0, 0.3

_NUMBERS = ("nCount_RNA", "nFeature_RNA", "percent.mt", "uniquely.mapped", "input.reads")
_COLUMNS = (
    "sample_ID",
    "Cell_type",
    "treatment",
    "sampling_type",
    "double_extraction",
    *_NUMBERS,
)
_MISSING = ("", "NA")


@dataclasses.dataclass(frozen=True)
class Sample:
    """One sample.

    Attributes
    ----------
    name
        Its ``sample_ID``, which names its column of the counts.
    live
        Whether cytoplasm was drawn from the living cell; otherwise the cell was lysed.
    cell
        What its two samples share when a cell was sampled twice (``double_extraction``), else "".
    total, genes
        Number of reads and of genes detected, as the table has them.
    """

    name: str
    live: bool
    cell: str
    total: int
    genes: int


@dataclasses.dataclass(frozen=True, eq=False)
class Selection:
    """The samples before and after treatment, and the cells that are among both.

    Attributes
    ----------
    source, target
        Samples before and after, in the order of the table.
    pairs
        Rows of the source and of the target that are of one cell, [k, 2].
    rows
        Number of samples in the table.
    rejected
        Number of samples that fail the study's limits.
    """

    source: tuple[Sample, ...]
    target: tuple[Sample, ...]
    pairs: NDArray[np.int64]
    rows: int
    rejected: int

    @property
    def samples(self) -> tuple[Sample, ...]:
        """The source and then the target."""
        return self.source + self.target


def select_samples(path: StrPath) -> Selection:
    """Read the sample table; take the ASPC samples, not treated as source and treated as target.

    Parameters
    ----------
    path
        The table, ``meta.final.csv`` of the study's repository.

    Returns
    -------
    Selection
        Samples of both kinds (Live-seq and whole cells) that pass the study's limits.

    Raises
    ------
    DataError
        If the table cannot be read, lacks a column, or yields no samples or no pairs.
    """
    file = require_file(path)
    table = _read_table(file)
    sides: dict[str, list[Sample]] = {BEFORE: [], AFTER: []}
    rejected = 0
    for line, row in table:
        if row["Cell_type"] != CELL_TYPE or row["treatment"] not in sides:
            continue
        if _passes(row, f"{file}, line {line}"):
            sides[row["treatment"]].append(_sample(row))
        else:
            rejected += 1
    for treatment, found in sides.items():
        if not found:
            raise DataError(
                f"{file} has no sample with Cell_type {CELL_TYPE} and treatment {treatment} that "
                f"passes the study's limits ({rejected} fail them). Use meta.final.csv of "
                "DeplanckeLab/Live-seq."
            )
    source, target = tuple(sides[BEFORE]), tuple(sides[AFTER])
    return Selection(source, target, _pair(source, target, file), len(table), rejected)


def _read_table(file: str) -> list[tuple[int, dict[str, str]]]:
    try:
        with open(file, encoding="utf-8-sig", newline="") as stream:
            reader = csv.reader(stream, strict=True)
            header = next(reader, [])
            _check_columns(file, header)
            table: list[tuple[int, dict[str, str]]] = []
            for row in reader:
                if len(row) != len(header):
                    raise DataError(
                        f"{file}, line {reader.line_num} has {len(row)} cells; the header has "
                        f"{len(header)}. Fetch the table again."
                    )
                table.append((reader.line_num, dict(zip(header, row, strict=True))))
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror or error}.") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{file} is not a table in csv: {error}. Fetch it again.") from error
    _check_unique(file, table)
    return table


def _check_columns(file: str, header: Sequence[str]) -> None:
    for column in _COLUMNS:
        if column not in header:
            raise DataError(
                f"{file} has no column {column!r}.{did_you_mean(column, header)} "
                "The table is meta.final.csv of DeplanckeLab/Live-seq."
            )


def _check_unique(file: str, table: Sequence[tuple[int, dict[str, str]]]) -> None:
    first: dict[str, int] = {}
    for line, row in table:
        name = row["sample_ID"]
        if name in first:
            raise DataError(
                f"{file}, lines {first[name]} and {line} have the same sample_ID {name!r}."
            )
        first[name] = line


def _passes(row: dict[str, str], where: str) -> bool:
    values = {}
    for column in _NUMBERS:
        try:
            values[column] = float(row[column])
        except ValueError:
            raise DataError(f"{where}, column {column}: {row[column]!r} is not a number.") from None
    return (
        values["nFeature_RNA"] > MIN_GENES
        and values["percent.mt"] < MAX_MITOCHONDRIAL
        and values["uniquely.mapped"] > MIN_MAPPED * values["input.reads"]
    )


def _sample(row: dict[str, str]) -> Sample:
    cell = row["double_extraction"]
    return Sample(
        name=row["sample_ID"],
        live=row["sampling_type"] == LIVE,
        cell="" if cell in _MISSING else cell,
        total=round(float(row["nCount_RNA"])),
        genes=round(float(row["nFeature_RNA"])),
    )


def _pair(source: Sequence[Sample], target: Sequence[Sample], file: str) -> NDArray[np.int64]:
    before, after = _rows_of_cells(source, file), _rows_of_cells(target, file)
    pairs = [(row, after[cell]) for cell, row in before.items() if cell in after]
    if not pairs:
        raise DataError(
            f"{file} has no cell that was sampled before and after treatment: no double_extraction "
            f"of the {len(source)} samples before is among the {len(target)} after."
        )
    return np.array(pairs, dtype=np.int64)


def _rows_of_cells(samples: Sequence[Sample], file: str) -> dict[str, int]:
    rows: dict[str, int] = {}
    for row, sample in enumerate(samples):
        if sample.cell in rows:
            raise DataError(
                f"{file}: {samples[rows[sample.cell]].name} and {sample.name} have the same "
                f"double_extraction {sample.cell!r} and the same treatment."
            )
        if sample.cell:
            rows[sample.cell] = row
    return rows
