"""A table as data; ``kohaku_ray.pages.tables`` writes it as text, Markdown, CSV, LaTeX and HTML."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    label: str
    format: str = ""  # of its floats, as ``format`` takes it, such as ``+.4f``
    unit: str = ""  # written behind each number
    align: Literal["left", "right"] = "right"
    tooltip: str = ""  # what its values mean, where the label does not say it
    missing: str = ""  # stands for None

    def write(self, value: object) -> str:
        """Write a value of the column as plain text."""
        if value is None:
            return self.missing
        if isinstance(value, MarkedText):
            return value.text
        if isinstance(value, str):
            return value
        return (f"{value:,}" if isinstance(value, int) else format(value, self.format)) + self.unit


@dataclass(frozen=True, slots=True)
class MarkedText:
    """A value of a table with marks."""

    text: str
    mark: Literal["best", "second", ""] = ""
    raised: str = ""  # stars and daggers beside it
    footnote: int = 0  # number of its note below the table
    aside: str = ""  # a second figure, in brackets
    link: str = ""  # address of what is behind it, on a page

    @property
    def all_raised(self) -> str:
        """Its marks with the number of its note."""
        return self.raised + (f"[{self.footnote}]" if self.footnote else "")

    @property
    def suffix(self) -> str:
        """Everything that stands behind the text."""
        return f" {self.all_raised}".rstrip() + (f" ({self.aside})" if self.aside else "")


TableRow = tuple[object, ...]
"""Values: texts, numbers, ``MarkedText``; None is not known."""


@dataclass(frozen=True, slots=True)
class Table:
    """Columns, rows, and notes that stand below."""

    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]
    title: str = ""
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, head: Iterable[object], rows: Iterable[Iterable[object]], title: str = "", n_text: int = 1) -> Table:
        """Make a table of columns or labels; of labels the first ``n_text`` are of text, the others of numbers."""
        columns = (
            name if isinstance(name, Column) else Column(str(name), align="left" if number < n_text else "right")
            for number, name in enumerate(head)
        )
        return cls(tuple(columns), tuple(tuple(row) for row in rows), title)
