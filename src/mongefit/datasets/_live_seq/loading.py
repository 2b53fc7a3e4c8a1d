"""Live-seq as two clouds of principal components and the cells that are in both."""

from __future__ import annotations

import dataclasses
import os
import re

import numpy as np
from numpy.typing import NDArray

from mongefit._io import StrPath
from mongefit._validation import check_count
from mongefit.datasets._live_seq.counts import Counts, read_counts
from mongefit.datasets._live_seq.files import read_rows
from mongefit.datasets._live_seq.preprocessing import (
    log_normalise,
    principal_components,
    scale,
    standardised_variance,
)
from mongefit.datasets._live_seq.samples import Selection, select_samples
from mongefit.datasets._live_seq.simulation import PREFIX
from mongefit.datasets._live_seq.sources import ANNOTATION, BLACKLIST
from mongefit.errors import DataError, OptionError, warn_user

# The study's choices: 01_preprocessing (the first) and 04_Liveseq_scRNAseq_integration.
_MIN_SAMPLES = 2
_VARIABLE_GENES = 500

# The table was made from an earlier state of the counts, so that small differences are expected.
_TOLERANCE = 0.05


@dataclasses.dataclass(frozen=True, eq=False)
class LiveSeq:
    """Cells before and after differentiation, as principal components.

    Attributes
    ----------
    source, target
        Components of the samples before and after treatment, [n, d] and [m, d].
    pairs
        Rows of the source and of the target that are of one cell, [k, 2].
    source_names, target_names
        ``sample_ID`` of every row.
    genes
        Genes that the components are made of.
    loadings
        Their weights in every component, [d, genes].
    explained_variance_ratio
        Share of the variance of these genes that every component holds, [d].
    simulated
        Whether the counts were simulated: the genes of the file say so.
    sha256
        Digest of the bytes of the counts file.
    steps
        What was done, one sentence for every step.
    """

    source: NDArray[np.float64]
    target: NDArray[np.float64]
    pairs: NDArray[np.int64]
    source_names: tuple[str, ...]
    target_names: tuple[str, ...]
    genes: tuple[str, ...]
    loadings: NDArray[np.float64]
    explained_variance_ratio: NDArray[np.float64]
    simulated: bool
    sha256: str
    steps: tuple[str, ...]


def read_live_seq(
    counts: StrPath,
    samples: StrPath,
    *,
    n_components: int = 10,
    annotation: StrPath | None = None,
    blacklist: StrPath | None = None,
) -> LiveSeq:
    """Read Live-seq and preprocess it as the study did; docs/live-seq.md gives every source.

    Parameters
    ----------
    counts
        ``GSE141064_count.final.csv.gz``, or a file of `simulate_live_seq`.
    samples
        The sample table, ``meta.final.csv``.
    n_components
        Number of principal components.
    annotation
        Table of gene names, to leave out ribosomal proteins. By default the study's,
        ``Mus_musculus.GRCm38.100_data.annot.txt``, where it lies beside the sample table.
    blacklist
        Table of genes to leave out, named in the first column. By default the study's,
        ``gene.blacklist.csv``, where it lies beside the sample table. Simulated counts need
        neither.

    Raises
    ------
    DataError
        If a file cannot be read, or the table does not fit the counts.
    """
    n_components = check_count(n_components, "n_components", minimum=1)
    counts = os.fspath(counts)
    selection = select_samples(samples)
    names = [sample.name for sample in selection.samples]
    read = read_counts(counts, names, min_samples=_MIN_SAMPLES)
    simulated = any(gene.startswith(PREFIX) for gene in read.genes)
    _compare_with_table(read, selection, counts)
    steps = [
        *selection.steps(),
        f"{len(read.genes)} of {read.genes_in_file} genes were kept: at least {_MIN_SAMPLES} of "
        f"the file's {read.samples_in_file} samples have them.",
    ]
    unwanted: set[str] = set()
    if simulated:
        steps.insert(0, "The counts are SIMULATED: no cell was measured.")
    else:
        for source, given, delimiter, pattern in (
            (BLACKLIST, blacklist, ",", ""),
            (ANNOTATION, annotation, "\t", "Rp[sl]"),
        ):
            file = os.path.join(os.path.dirname(samples), source.name) if given is None else given
            if given is None and not os.path.isfile(file):
                warn_user(
                    f"{file} not found, so {source.what} are not left out as in the study. It is "
                    f"at {source.url}"
                )
                steps.append(f"Not left out, for want of {source.name}: {source.what}.")
                continue
            left_out = _genes(file, delimiter, pattern).intersection(read.genes)
            unwanted |= left_out
            steps.append(f"{len(left_out)} genes were left out: {source.what}.")

    kept = np.array([gene not in unwanted for gene in read.genes])
    values = read.values[kept]
    most = min(_VARIABLE_GENES, *values.shape)
    if n_components > most:
        raise OptionError(f"n_components must be at most {most} here, got {n_components}.")
    empty = np.flatnonzero(values.sum(axis=0) == 0)
    if empty.size:
        raise DataError(f"{counts} has no reads of the sample {names[empty[0]]!r}.")
    ranked = np.argsort(-standardised_variance(values), kind="stable")[:_VARIABLE_GENES]
    levels = log_normalise(values)[ranked]
    scores, loadings, shares = principal_components(scale(levels), n_components)
    steps += [
        "Counts were divided by the sum of their sample, times 10,000, and log(1 + x) taken.",
        f"The {len(ranked)} most variable genes of {len(values)} were kept (vst, loess span 0.3).",
        "Every gene was scaled to mean 0 and standard deviation 1; values above 10 were set to 10.",
        f"{n_components} principal components of all {len(names)} samples hold "
        f"{100 * shares.sum():.1f} % of the variance.",
    ]
    n = len(selection.source)
    return LiveSeq(
        source=scores[:n],
        target=scores[n:],
        pairs=selection.pairs,
        source_names=tuple(names[:n]),
        target_names=tuple(names[n:]),
        genes=tuple(np.array(read.genes)[kept][ranked].tolist()),
        loadings=loadings,
        explained_variance_ratio=shares,
        simulated=simulated,
        sha256=read.sha256,
        steps=tuple(steps),
    )


def _compare_with_table(read: Counts, selection: Selection, file: str) -> None:
    samples = selection.samples
    for found, column, expected in (
        (read.totals, "nCount_RNA", [sample.total for sample in samples]),
        (read.detected, "nFeature_RNA", [sample.genes for sample in samples]),
    ):
        difference = np.abs(found - np.array(expected)) / np.maximum(expected, 1)
        worst = int(np.argmax(difference))
        if difference[worst] > _TOLERANCE:
            warn_user(
                f"{file} does not agree with {column} of the sample table for "
                f"{np.count_nonzero(difference > _TOLERANCE)} of {len(samples)} samples; worst is "
                f"{samples[worst].name}: {found[worst]} and {expected[worst]}. Check that the two "
                "files belong together."
            )


def _genes(file: StrPath, delimiter: str, pattern: str) -> set[str]:
    """The first cells of the rows whose second one begins as the pattern says."""
    rows = [row for _, row in read_rows(file, delimiter) if row]
    if any(len(row) < 2 for row in rows):
        raise DataError(f"{file} is not a table with {delimiter!r} between its columns.")
    return {row[0] for row in rows[1:] if re.match(pattern, row[1])}
