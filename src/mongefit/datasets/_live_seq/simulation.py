"""Counts in the format of GSE141064 that no one measured, for machines that cannot download it."""

from __future__ import annotations

import gzip
import io
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mongefit._io import StrPath, atomic_write
from mongefit._validation import check_count
from mongefit.datasets._live_seq.preprocessing import Array
from mongefit.datasets._live_seq.samples import Sample, Selection, select_samples
from mongefit.errors import DataError

PREFIX = "SIMULATED_"
"""What the names of simulated genes begin with."""

_GENES = 16_000  # above the 12,829 of the richest sample
_SPREAD = 2.0  # standard deviation over genes of the logarithm of their level
_NOISE = 5.0  # shape of the gamma noise of a gene in a cell, and of its amplification
_CAUGHT = 5  # molecules that must be caught for a gene to be detected

# Number of genes of every program, and standard deviation of their logarithmic fold changes.
_IDENTITY = (200, 1.0)
_DIFFERENTIATION = (300, 1.0)
_SAMPLING = (200, 0.7)
_INDIVIDUAL = (400, 1.0)


def simulate_live_seq(
    samples: StrPath, path: StrPath, *, seed: int = 0, overwrite: bool = False
) -> None:
    """Write simulated counts for the samples that `read_live_seq` selects.

    A cell has a state z in the plane, standard normal, and the two samples of a traced cell share
    it. Treatment carries it to R z + (0, 0.4(z₂² − 1)) with R a turn by 60°: what was high in one
    program of genes becomes high in another, which no gradient of a convex function does. It also
    switches a program of differentiation on, the more so the larger z₁, and a program of identity
    half off. Live-seq and whole cells differ by one more program. Every sample has the number of
    reads and the number of detected genes that the table gives it.

    Parameters
    ----------
    samples
        The sample table.
    path
        The file to write, gzipped csv: genes in rows, samples in columns. Its genes are named
        SIMULATED_00001, …; the same seed gives the same bytes.
    seed
        Seed of the random generator.
    overwrite
        Replace a file that exists.
    """
    rng = np.random.default_rng(check_count(seed, "seed"))
    selection = select_samples(samples)
    log_level = _log_levels(selection, rng)
    columns = []
    for sample, level in zip(selection.samples, log_level, strict=True):
        if not 0 < sample.genes <= min(sample.total, _GENES):
            raise DataError(
                f"{sample.name} has {sample.genes} genes detected in {sample.total} reads; "
                f"simulated are 1 to {_GENES} genes with a read each."
            )
        columns.append(_count(np.exp(level - level.max()), sample, rng))
    data = _encode([sample.name for sample in selection.samples], np.column_stack(columns))
    atomic_write(path, data, overwrite=overwrite)


def _carry(z: Array) -> Array:
    """The state after treatment of cells with the state z before, [n, 2]."""
    c, s = np.cos(np.pi / 3), np.sin(np.pi / 3)
    bend = 0.4 * (z[:, 1] ** 2 - 1)
    return np.column_stack([c * z[:, 0] - s * z[:, 1], s * z[:, 0] + c * z[:, 1] + bend])


def _log_levels(selection: Selection, rng: np.random.Generator) -> Array:
    """Logarithmic level of every gene in every sample, [samples, genes]."""
    n, m = len(selection.source), len(selection.target)
    before, origin = rng.standard_normal((n, 2)), rng.standard_normal((m, 2))
    rows, columns = selection.pairs.T
    origin[columns] = before[rows]
    extent = np.concatenate([np.zeros(n), 1 + 0.3 * np.tanh(origin[:, 0])])
    live = np.array([sample.live for sample in selection.samples], dtype=float)
    states = np.concatenate([before, _carry(origin)])
    base = _SPREAD * rng.standard_normal(_GENES)
    level = base + np.outer(1 - 0.5 * extent, _program(base, *_IDENTITY, rng))
    level += np.outer(extent, _program(base, *_DIFFERENTIATION, rng))
    level += np.outer(live, _program(base, *_SAMPLING, rng))
    for state in states.T:
        level += np.outer(state, _program(base, *_INDIVIDUAL, rng))
    return level


def _program(base: Array, size: int, scale: float, rng: np.random.Generator) -> Array:
    """Logarithmic fold changes of all genes: zero but for some genes of the upper half."""
    changes = np.zeros_like(base)
    members = rng.choice(np.flatnonzero(base > np.median(base)), size, replace=False)
    changes[members] = scale * rng.standard_normal(size)
    return changes


def _count(level: Array, sample: Sample, rng: np.random.Generator) -> NDArray[np.int64]:
    """Reads of every gene, with the sample's number of reads and of detected genes.

    Molecules of a gene are caught at a rate with gamma noise, which makes their number negative
    binomial, until five are caught of as many genes as were detected. The reads are then drawn
    from the amplified molecules of these genes.
    """
    rate = level * rng.standard_gamma(_NOISE, level.size)
    reached = rng.standard_gamma(_CAUGHT, level.size) / rate
    stop = np.partition(reached, sample.genes - 1)[sample.genes - 1]
    found = reached <= stop
    molecules = _CAUGHT + rng.poisson(rate[found] * (stop - reached[found]))
    amplified = molecules * rng.standard_gamma(_NOISE, molecules.size)
    reads = np.zeros(level.size, dtype=np.int64)
    reads[found] = 1 + rng.multinomial(sample.total - molecules.size, amplified / amplified.sum())
    return reads


def _encode(names: Sequence[str], counts: NDArray[np.int64]) -> bytes:
    lines = [",".join(['""', *(f'"{name}"' for name in names)])]
    for number, row in enumerate(counts.tolist(), start=1):
        lines.append(f'"{PREFIX}{number:05d}",{",".join(map(str, row))}')
    buffer = io.BytesIO()
    # No time and no file name in the header, so that the bytes depend on the seed alone.
    with gzip.GzipFile("", "wb", compresslevel=6, fileobj=buffer, mtime=0) as stream:
        stream.write(("\n".join(lines) + "\n").encode())
    return buffer.getvalue()
