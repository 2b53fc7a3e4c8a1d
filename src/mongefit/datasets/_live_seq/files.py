"""What every reader of the files of Live-seq needs."""

from __future__ import annotations

import contextlib
import csv
import gzip
import hashlib
import zlib
from collections.abc import Iterator

from mongefit._io import StrPath, require_file
from mongefit.errors import DataError


@contextlib.contextmanager
def reading(path: StrPath) -> Iterator[str]:
    """The path as text; raise a `DataError` if the file is missing or turns out to be damaged."""
    file = require_file(path)
    try:
        yield file
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(
            f"{file} is damaged or incomplete ({error}). Delete it and fetch it again."
        ) from error
    except UnicodeDecodeError as error:
        raise DataError(f"{file} is not text ({error.reason}). Fetch it again.") from error
    except csv.Error as error:
        raise DataError(f"{file} is not a table in csv: {error}. Fetch it again.") from error
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror or error}.") from error


def read_rows(
    path: StrPath, delimiter: str = ",", *, strict: bool = False
) -> list[tuple[int, list[str]]]:
    """The cells of every row of a text file, after the number of the row's last line."""
    with reading(path) as file, open(file, encoding="utf-8-sig", newline="") as stream:
        reader = csv.reader(stream, delimiter=delimiter, strict=strict)
        return [(reader.line_num, row) for row in reader]


def file_digest(path: StrPath) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
