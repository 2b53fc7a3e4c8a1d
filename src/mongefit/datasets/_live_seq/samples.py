"""The sample table of Live-seq: which samples are taken, and which of them are of one cell."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mongefit._io import StrPath
from mongefit.datasets._live_seq.files import read_rows
from mongefit.errors import DataError, did_you_mean

CELL_TYPE = "ASPC"
BEFORE, AFTER = "not_treated", "DMIR_treated"

# The study's limits for a sample (04_Liveseq_scRNAseq_integration).
MIN_GENES, MAX_MITOCHONDRIAL, MIN_MAPPED = 1000, 30.0, 0.3

_NUMBERS = ("nCount_RNA", "nFeature_RNA", "percent.mt", "uniquely.mapped", "input.reads")
_TEXTS = ("sample_ID", "Cell_type", "treatment", "sampling_type", "double_extraction")


class Sample(NamedTuple):
    """One sample, as the table describes it."""

    name: str  # sample_ID, which names its column of the counts
    live: bool  # cytoplasm was drawn from the living cell; otherwise the cell was lysed
    cell: str  # what the two samples of a cell share (double_extraction), or ""
    total: int  # reads
    genes: int  # genes detected


class Selection(NamedTuple):
    """The samples before and after treatment, in the order of the table, and the cells in both."""

    source: tuple[Sample, ...]
    target: tuple[Sample, ...]
    pairs: NDArray[np.int64]  # rows of the source and of the target that are of one cell, [k, 2]
    rows: int  # samples in the table
    rejected: int  # samples that fail the study's limits

    @property
    def samples(self) -> tuple[Sample, ...]:
        """The source and then the target."""
        return self.source + self.target

    def steps(self) -> list[str]:
        """What was selected, in sentences."""
        passed = len(self.samples)
        return [
            f"{CELL_TYPE} samples were selected from {self.rows}: {len(self.source)} {BEFORE}, "
            f"{len(self.target)} {AFTER}; {len(self.pairs)} cells are in both.",
            f"{passed} of {passed + self.rejected} samples passed the limits (more than "
            f"{MIN_GENES} genes, less than {MAX_MITOCHONDRIAL:g} % mitochondrial, more than "
            f"{100 * MIN_MAPPED:g} % of reads mapped uniquely).",
        ]


def select_samples(path: StrPath) -> Selection:
    """Read the table; take the ASPC samples, not treated as source and treated as target.

    Samples of both kinds (Live-seq and whole cells) are taken if they pass the study's limits.
    """
    file = os.fspath(path)
    table = _read_table(file)
    sides: dict[str, list[Sample]] = {BEFORE: [], AFTER: []}
    rejected = 0
    for line, row in table.values():
        if row["Cell_type"] == CELL_TYPE and row["treatment"] in sides:
            sample = _sample(row, f"{file}, line {line}")
            if sample is None:
                rejected += 1
            else:
                sides[row["treatment"]].append(sample)
    for treatment, found in sides.items():
        if not found:
            raise DataError(
                f"{file} has no sample with Cell_type {CELL_TYPE} and treatment {treatment} that "
                f"passes the study's limits ({rejected} fail them). Use meta.final.csv of "
                "DeplanckeLab/Live-seq."
            )
    source, target = tuple(sides[BEFORE]), tuple(sides[AFTER])
    return Selection(source, target, _pair(source, target, file), len(table), rejected)


def _read_table(file: str) -> dict[str, tuple[int, dict[str, str]]]:
    """The line and the cells of every sample."""
    (_, header), *rows = read_rows(file, strict=True) or [(1, [])]
    for column in (*_TEXTS, *_NUMBERS):
        if column not in header:
            raise DataError(
                f"{file} has no column {column!r}.{did_you_mean(column, header)} "
                "The table is meta.final.csv of DeplanckeLab/Live-seq."
            )
    table: dict[str, tuple[int, dict[str, str]]] = {}
    for line, cells in rows:
        if len(cells) != len(header):
            raise DataError(
                f"{file}, line {line} has {len(cells)} cells; the header has {len(header)}. "
                "Fetch the table again."
            )
        row = dict(zip(header, cells, strict=True))
        name = row["sample_ID"]
        if name in table:
            raise DataError(
                f"{file}, lines {table[name][0]} and {line} have the same sample_ID {name!r}."
            )
        table[name] = line, row
    return table


def _sample(row: dict[str, str], where: str) -> Sample | None:
    """A sample that passes the study's limits, or None."""
    values = {}
    for column in _NUMBERS:
        try:
            values[column] = float(row[column])
        except ValueError:
            raise DataError(f"{where}, column {column}: {row[column]!r} is not a number.") from None
    passes = (
        values["nFeature_RNA"] > MIN_GENES
        and values["percent.mt"] < MAX_MITOCHONDRIAL
        and values["uniquely.mapped"] > MIN_MAPPED * values["input.reads"]
    )
    if not passes:
        return None
    cell = row["double_extraction"]
    return Sample(
        name=row["sample_ID"],
        live=row["sampling_type"] == "Live_seq",
        cell="" if cell == "NA" else cell,
        total=round(values["nCount_RNA"]),
        genes=round(values["nFeature_RNA"]),
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
