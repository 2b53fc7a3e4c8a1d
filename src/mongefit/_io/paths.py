"""Which files can be read, and what to say of those that cannot."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence

from mongefit.errors import DataError, did_you_mean

StrPath = str | os.PathLike[str]

SUFFIXES = (".csv", ".tsv", ".npy", ".npz")
"""Extensions of the files that can be read and written."""

MAX_BYTES = 8 * 2**30
"""Largest array, in bytes, that is read unless the caller allows more."""


def suffix_of(path: StrPath) -> str:
    """The extension of a file, in lower case."""
    return os.path.splitext(path)[1].lower()


def require_file(path: StrPath, *, what: str = "file", error: type[DataError] = DataError) -> str:
    """The path as text, if it is that of a file."""
    file = os.fspath(path)
    if os.path.isdir(file):
        raise error(f"{file} is a folder. Name a {what} in it.")
    if not os.path.exists(file):
        raise error(missing_file(file))
    return file


def missing_file(path: StrPath) -> str:
    """What to say of a file that does not exist, with the near matches in its folder."""
    folder, name = os.path.split(path)
    folder = folder or os.curdir
    if not os.path.isdir(folder):
        return f"{os.fspath(path)} not found: there is no folder {folder}."
    try:
        with os.scandir(folder) as entries:
            present = [entry.name for entry in itertools.islice(entries, 1000)]
    except OSError:
        present = []
    hint = did_you_mean(name, present) or " Check the name and the folder."
    return f"{os.fspath(path)} not found.{hint}"


def unknown_suffix(path: StrPath, suffixes: Sequence[str]) -> str:
    """What to say of a file whose extension is not among ``suffixes``."""
    suffix = suffix_of(path)
    found = f"the extension {suffix}" if suffix else "no extension"
    known = ", ".join(suffixes)
    return f"{os.fspath(path)} has {found}. Known: {known}.{did_you_mean(suffix, suffixes)}"


def too_large(where: str, needed: int, max_bytes: int) -> str:
    """What to say of a table that takes more memory than it may."""
    return (
        f"{where} needs {needed / 2**30:.3g} GiB of memory, above the limit of "
        f"{max_bytes / 2**30:.3g} GiB. If this is right, raise max_bytes."
    )
