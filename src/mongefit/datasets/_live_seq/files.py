"""What every reader of the files of Live-seq needs."""

from __future__ import annotations

import hashlib
import os

from mongefit._io import StrPath, missing_file
from mongefit.errors import DataError


def require_file(path: StrPath) -> str:
    """The path as text, if it is that of a file."""
    file = os.fspath(path)
    if os.path.isdir(file):
        raise DataError(f"{file} is a folder. Name a file in it.")
    if not os.path.exists(file):
        raise DataError(missing_file(file))
    return file


def file_digest(path: StrPath) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
