"""A small table of results that prints itself."""

from __future__ import annotations

import csv
import dataclasses
import html
import io
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows of results.

    It prints as text, shows itself in notebooks, and ``pandas.DataFrame(table.rows)`` makes a data
    frame of it.

    Attributes
    ----------
    rows
        One dictionary per row, all with the same keys; None where a value does not exist.
    headers
        The columns that are printed, and under which title.
    notes
        What the numbers mean, printed below them.
    """

    rows: tuple[dict[str, Any], ...]
    headers: dict[str, str]
    notes: tuple[str, ...] = ()

    def to_csv(self) -> str:
        """All columns, printed or not, in full precision, as comma-separated values."""
        text = io.StringIO()
        writer = csv.DictWriter(text, list(self.rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        return text.getvalue()

    def to_markdown(self) -> str:
        """The printed columns as a Markdown table, with the notes below it."""
        first, *others = self._printed(lambda text: text.replace("|", "\\|"))
        rule = ["---"] + ["---:"] * (len(first) - 1)
        lines = [f"| {' | '.join(cells)} |" for cells in (first, rule, *others)]
        return "\n".join([*lines, "", *(f"{note}  " for note in self.notes)]).rstrip()

    def __str__(self) -> str:
        cells = self._printed(str)
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
            for row in cells
        ]
        return "\n".join([*lines, *self.notes])

    _repr_markdown_ = to_markdown

    def _repr_html_(self) -> str:
        first, *others = self._printed(html.escape)
        head = "".join(f"<th>{cell}</th>" for cell in first)
        body = "".join(
            f"<tr><th>{name}</th>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
            for name, *cells in others
        )
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{notes}"

    def _printed(self, escape: Callable[[str], str]) -> list[list[str]]:
        """Titles and cells as text, four digits of each number."""
        rows = [[_cell(row[key]) for key in self.headers] for row in self.rows]
        return [[escape(cell) for cell in row] for row in [list(self.headers.values()), *rows]]


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return value if isinstance(value, str) else f"{value:.4g}"
