"""What formats that mark headings and tables share: paths of headings, rows of tables as text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from kohaku_ray.documents.model import Paragraph, Section
from kohaku_ray.documents.text import PATH


@dataclass
class Draft:
    """A section being read: the headings that lead to it, and its paragraphs."""

    headings: tuple[str, ...]
    paragraphs: list[Paragraph] = field(default_factory=list)


def heading_path(above: Sequence[str], level: int, heading: str) -> tuple[str, ...]:
    """The headings that lead to a new one; a level left out (h1, h3) is an empty string."""
    return (*above[: level - 1], *[""] * (level - 1 - len(above)), heading)


def finish(drafts: Sequence[Draft], title: str) -> tuple[Section, ...]:
    """Make sections of drafts; leave out an empty one whose title the document's or the next section's repeats."""
    following = [*drafts[1:], Draft(())]
    return tuple(
        Section(_section_title(draft.headings, title), tuple(draft.paragraphs))
        for draft, after in zip(drafts, following, strict=True)
        if draft.paragraphs or not _is_named_later(draft.headings, after.headings, title)
    )


def _section_title(headings: Sequence[str], title: str) -> str:
    return PATH.join(heading for i, heading in enumerate(headings) if heading and (i, heading) != (0, title)) or title


def _is_named_later(headings: Sequence[str], after: Sequence[str], title: str) -> bool:
    return _section_title(headings, title) == title or tuple(after[: len(headings)]) == tuple(headings)


_NUMERIC = re.compile(r"[\s\d.,:%±+×~≈<>=()^/−–-]*\d[\s\d.,:%±+×~≈<>=()^/−–-]*[^\W\d]{0,4}%?")


def written_rows(cells: Sequence[Sequence[str]], has_header: bool) -> list[str]:
    """Write a table's rows.

    Args:
        cells: Rows, the empty cells with them.
        has_header: Whether the first row names the columns.

    Returns:
        ``column: value; …`` per row under a header, else its cells joined by bars; empty cells left out. A header
        without rows is written as a row.
    """
    if has_header and len(cells) > 1:
        names, *body = cells
        rows = [
            "; ".join(f"{name}: {value}" if name else value for name, value in zip(names, row, strict=False) if value)
            for row in body
        ]
    else:
        rows = [" | ".join(filter(None, row)) for row in cells]
    return [row for row in rows if row]


def looks_like_header(cells: Sequence[Sequence[str]], ruled: bool) -> bool:
    """Whether the first row names the columns, in a table that marks no header.

    Args:
        cells: Rows, the empty cells with them.
        ruled: Whether the table has rules or a grid; without them, some column must hold numbers under a word.
    """
    header, *body = cells
    names = [name for name in header if name]
    # one empty name is common: over the column of row labels
    if not body or len(names) < max(2, len(header) - 1) or any(map(is_number, names)):
        return False
    if any(len(row) != len(header) for row in body):
        return False
    return ruled or any(sum(is_number(row[i]) for row in body) * 2 >= len(body) for i in range(1, len(header)))


def is_number(text: str) -> bool:
    """Whether a cell holds a number, perhaps with a unit of a few letters."""
    return _NUMERIC.fullmatch(text) is not None


def spread(rows: Sequence[Sequence[tuple[str, int, int, bool]]]) -> list[list[str]]:
    """Cells at their columns: names and row labels that span several are repeated, other values occur once."""
    carried: dict[int, tuple[str, int]] = {}  # column → text from a row above, and how many rows it still covers
    table = []
    for row in rows:
        cells: list[str] = []

        def take_carried(cells: list[str] = cells) -> None:
            while len(cells) in carried:
                text, n = carried.pop(len(cells))
                if n > 1:
                    carried[len(cells)] = text, n - 1
                cells.append(text)

        for text, n_columns, n_rows, is_name in row:
            take_carried()
            for i in range(n_columns):
                shown = text if i == 0 or is_name else ""
                if n_rows > 1:
                    carried[len(cells)] = shown, n_rows - 1
                cells.append(shown)
        take_carried()
        table.append(cells)
    return table
