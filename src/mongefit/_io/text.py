"""What the cells of a table may hold, and tables as text with commas or tabs between them."""

from __future__ import annotations

import csv
import io
import re
from array import array
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mongefit._io.paths import SUFFIXES, too_large
from mongefit.errors import DataError

DELIMITERS = {".csv": ",", ".tsv": "\t"}


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


def read_text(file: str, delimiter: str, content: Content, max_bytes: int) -> NDArray[Any]:
    """The cells of a text file, [n, d]; faults are named by line and column."""
    values: array[Any] = array(content.typecode)
    columns = blank = end = 0
    try:
        # Without newline="" the line numbers of the reader would miscount quoted line breaks.
        with open(file, encoding="utf-8-sig", newline="") as stream:
            reader = csv.reader(stream, delimiter=delimiter, strict=True)
            for row in reader:
                line, end = end + 1, reader.line_num
                if not row or (len(row) == 1 and not row[0].strip()):
                    blank = blank or line
                    continue
                if blank:
                    raise DataError(f"{file}, line {blank} is blank, but rows follow. Remove it.")
                where = f"{file}, line {line}"
                is_first = not columns
                columns = columns or content.columns or len(row)
                _check_width(row, columns, where)
                if is_first and _is_header(row, where):
                    continue
                try:
                    values.extend(map(content.parse, row))
                except ValueError:
                    raise DataError(_bad_cell(file, line, row, content, delimiter)) from None
                if (needed := len(values) * values.itemsize) > max_bytes:
                    raise DataError(too_large(f"{file}, up to line {line},", needed, max_bytes))
    except UnicodeDecodeError as error:
        raise DataError(
            f"{file} is not UTF-8 text ({error.reason}). Export the table again as UTF-8, or give "
            f"the file the extension of what it holds: {', '.join(SUFFIXES)}."
        ) from error
    except csv.Error as error:
        raise DataError(f"{file}, line {end + 1}: {error}. Check the quotation marks.") from error
    if not values:
        what = "holds a header but no rows" if columns else "is empty"
        raise DataError(f"{file} {what}.")
    return np.frombuffer(values, dtype=content.typecode).reshape(-1, columns)


def encode_text(table: NDArray[Any], delimiter: str, header: Sequence[str] | None) -> bytes:
    """A table as the content of a text file, with the names of its columns if there are any."""
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, delimiter=delimiter, lineterminator="\n")
    if header is not None:
        _check_header(header, table.shape[1])
        writer.writerow(header)
    # The writer renders Python floats with repr, which reading turns into the same float again.
    writer.writerows(table.tolist())
    return buffer.getvalue().encode()


def _is_header(row: Sequence[str], where: str) -> bool:
    if any(parses(POINTS, cell) for cell in row):
        return False
    for column, cell in enumerate(row, start=1):
        # What pandas and R write above a column of row labels, which are not coordinates.
        if not cell.strip():
            raise DataError(
                f"{where}, column {column}: the header has no name here, as above a column of row "
                "labels. Remove the column (pandas: to_csv(index=False)), or name it to keep it."
            )
    return True


def _check_header(header: Sequence[str], columns: int) -> None:
    if len(header) != columns:
        raise ValueError(f"header has {len(header)} names for {columns} columns.")
    for name in header:
        if not name.strip() or not _is_header([name], "header"):
            raise ValueError(f"{name!r} cannot name a column: use a word that is not a number.")


def _check_width(row: Sequence[str], columns: int, where: str) -> None:
    if len(row) < columns:
        raise DataError(
            f"{where}, column {len(row) + 1}: the row ends after {_quote(row[-1])}; "
            f"{columns} columns are expected, it has {len(row)}."
        )
    if len(row) > columns:
        raise DataError(
            f"{where}, column {columns + 1}: unexpected {_quote(row[columns])}; "
            f"{columns} columns are expected, the row has {len(row)}."
        )


def _bad_cell(file: str, line: int, row: Sequence[str], content: Content, delimiter: str) -> str:
    column = next(i for i, cell in enumerate(row) if not parses(content, cell))
    cell = row[column]
    message = f"{file}, line {line}, column {column + 1}: "
    if not cell.strip():
        return message + f"the cell is empty. Fill in a {content.name}, or remove the row."
    message += f"{_quote(cell)} is not a {content.name}."
    if any(other in cell for other in ";\t," if other != delimiter):
        wanted = {",": "commas", "\t": "tabs"}[delimiter]
        return message + f" Cells must be separated by {wanted} here, and decimals use a point."
    if line == 1:
        return message + " (A first row is taken for a header when no cell of it is a number.)"
    return message


def _quote(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "…")
