"""What the cells of a table may hold, and how large a table may be."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

MAX_BYTES = 8 * 2**30
"""Largest array, in bytes, that is read unless the caller allows more."""


class Content(NamedTuple):
    """What the cells of a table may hold."""

    name: str
    parse: Callable[[str], Any]
    typecode: str
    kinds: str
    columns: int | None = None


def _parse_number(text: str) -> float:
    if "_" in text:  # float() takes 1_000, which in a table is more likely a label
        raise ValueError
    return float(text)


def _parse_row_number(text: str) -> int:
    if not re.fullmatch(r"\s*[+-]?[0-9]{1,18}\s*", text):
        raise ValueError
    return int(text)


POINTS = Content("number", _parse_number, "d", "iuf")
PAIRS = Content("row number", _parse_row_number, "q", "iu", columns=2)


def parses(content: Content, cell: str) -> bool:
    """Whether a cell holds what it may."""
    try:
        content.parse(cell)
    except ValueError:
        return False
    return True


def too_large(where: str, needed: int, max_bytes: int) -> str:
    """What to say of a table that takes more memory than it may."""
    return (
        f"{where} needs {needed / 2**30:.3g} GiB of memory, above the limit of "
        f"{max_bytes / 2**30:.3g} GiB. If this is right, raise max_bytes."
    )
