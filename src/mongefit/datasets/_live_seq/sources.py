"""Where the files of Live-seq are: given, in the cache, or on the network."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import os
import zlib
from collections.abc import Sequence
from pathlib import Path

from mongefit._io import StrPath, atomic_write, require_file
from mongefit.datasets._live_seq.files import file_digest
from mongefit.errors import DataError, warn_user

ACCESSION = "GSE141064"
_REPOSITORY = "https://raw.githubusercontent.com/DeplanckeLab/Live-seq"


@dataclasses.dataclass(frozen=True)
class Source:
    """A published file."""

    name: str
    what: str  # it holds
    url: str
    max_bytes: int  # more are refused
    sha256: str | None = None
    certain: bool = False  # this project has seen a file with this digest


# The digest is on record with an independent project, not with GEO (docs/live-seq.md).
COUNTS = Source(
    "GSE141064_count.final.csv.gz",
    f"counts, 11 MB, accession {ACCESSION} of NCBI GEO",
    f"https://ftp.ncbi.nlm.nih.gov/geo/series/GSE141nnn/{ACCESSION}/suppl/"
    f"{ACCESSION}_count.final.csv.gz",
    200 * 2**20,
    "0e8a07d36a4b06bc8ced881bf97114adc2b55681b5ccf00d29e4f80e05107b22",
)
SAMPLES = Source(
    "meta.final.csv",
    "sample table, from DeplanckeLab/Live-seq",
    f"{_REPOSITORY}/fd47d7cc294e8da86b4f04e2f3f3545c4b76367b/data/meta.final.csv",
    10 * 2**20,
    "dcce9bea9444857a6a042fc64be3a5c7b31a00095a21eabc1488e516abd689c8",
    certain=True,
)
ANNOTATION = Source(
    "Mus_musculus.GRCm38.100_data.annot.txt",
    "ribosomal proteins (names that begin with Rps or Rpl)",
    f"{_REPOSITORY}/8698e15ccbd87e38333636f50aa9d309edd9a7b7/data/"
    "Mus_musculus.GRCm38.100_data.annot.txt",
    20 * 2**20,
)
BLACKLIST = Source(
    "gene.blacklist.csv",
    "the study's blacklist (genes found in controls without RNA)",
    f"{_REPOSITORY}/8698e15ccbd87e38333636f50aa9d309edd9a7b7/gene.blacklist.csv",
    2**20,
)


def find_live_seq(
    counts: StrPath | None = None,
    samples: StrPath | None = None,
    *,
    folder: StrPath | None = None,
    download: bool = True,
) -> tuple[Path, Path]:
    """Find the counts and the sample table, and download what is missing; return both paths.

    Parameters
    ----------
    counts, samples
        Local files. What is not given is looked for in ``folder``.
    folder
        Where downloaded files are kept; by default mongefit/live-seq in $XDG_CACHE_HOME, or in
        ~/.cache.
    download
        Whether to download what is missing. With the sample table come the two tables of genes
        that the study left out.

    Raises
    ------
    DataError
        If a given file is missing, a file in the folder is not what was downloaded, or a file can
        be had neither there nor from the network; the message says what to fetch and from where.
    """
    found = _find({COUNTS: counts, SAMPLES: samples}, folder, download=download)
    return found[COUNTS], found[SAMPLES]


def find_live_seq_samples(
    samples: StrPath | None = None, *, folder: StrPath | None = None, download: bool = True
) -> Path:
    """Find the sample table alone, as `find_live_seq` does: all that simulated counts need."""
    return _find({SAMPLES: samples}, folder, download=download)[SAMPLES]


def _find(
    wanted: dict[Source, StrPath | None], folder: StrPath | None, *, download: bool
) -> dict[Source, Path]:
    if folder is None:
        root = Path(os.environ.get("XDG_CACHE_HOME", ""))
        # The standard has programs ignore a relative path.
        folder = (root if root.is_absolute() else Path.home() / ".cache") / "mongefit" / "live-seq"
    place = Path(folder)
    paths = {
        source: place / source.name if given is None else Path(require_file(given))
        for source, given in wanted.items()
    }
    missing = [source for source, path in paths.items() if not path.exists()]
    if missing and not download:
        raise DataError(_what_to_fetch(missing, place, "downloads are turned off"))
    for source in missing:
        try:
            _download(source, place)
        except OSError as error:
            still = [source for source in missing if not (place / source.name).exists()]
            raise DataError(_what_to_fetch(still, place, str(error))) from error
    if SAMPLES in missing and COUNTS in wanted:
        for source in (ANNOTATION, BLACKLIST):
            try:
                _download(source, place)
            except OSError as error:
                warn_user(f"{source.name} could not be downloaded ({error}).")
    for source, path in paths.items():
        record = Path(f"{path}.sha256")
        expected = record.read_text(encoding="ascii").split()[:1] if record.exists() else None
        if expected is not None and expected != [file_digest(path)]:
            raise DataError(
                f"{path} is not what was downloaded: its SHA-256 is not the one in {record.name}. "
                f"Delete both to fetch {source.name} again."
            )
    return paths


def _what_to_fetch(missing: Sequence[Source], place: Path, why: str) -> str:
    files = "\n".join(f"  {source.name} ({source.what})\n    {source.url}" for source in missing)
    return (
        f"The files of Live-seq (accession {ACCESSION}) are not here, and could not be downloaded "
        f"({why}). Fetch:\n{files}\nPut them into {place}, or name them with --counts and "
        "--samples."
    )


def _download(source: Source, place: Path) -> None:
    data = _fetch(source)
    digest = hashlib.sha256(data).hexdigest()
    if source.sha256 is not None and digest != source.sha256:
        message = f"{source.url} has the SHA-256 {digest}, not {source.sha256} that is on record. "
        if source.certain:
            raise OSError(message + "It may have been altered on its way.")
        warn_user(message + "It may be a newer version; its content is checked when it is read.")
    place.mkdir(parents=True, exist_ok=True)
    atomic_write(place / f"{source.name}.sha256", f"{digest}  {source.name}\n".encode())
    atomic_write(place / source.name, data)


def _fetch(source: Source) -> bytes:
    import http.client
    import ssl
    import urllib.request

    # Addresses are those above, all https, and where they lead to is checked.
    request = urllib.request.Request(source.url, headers={"User-Agent": "mongefit"})  # noqa: S310
    try:
        with urllib.request.urlopen(  # noqa: S310
            request, timeout=30.0, context=ssl.create_default_context()
        ) as response:
            if not response.geturl().startswith("https://"):
                raise OSError(f"{source.url} leads to an address without encryption")
            data: bytes = response.read(source.max_bytes + 1)
            length = response.headers.get("Content-Length")
    except http.client.HTTPException as error:
        raise OSError(f"{source.url}: {error!r}") from error
    if len(data) > source.max_bytes:
        raise OSError(f"{source.url} is larger than {source.max_bytes >> 20} MiB")
    if length not in (None, str(len(data))):
        raise OSError(f"{source.url} broke off after {len(data)} of {length} bytes")
    if source.name.endswith(".gz"):
        try:
            with gzip.open(io.BytesIO(data)) as stream:
                while stream.read(2**20):
                    pass
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise OSError(f"{source.url} is not a complete gzip file: {error}") from error
    return data
