"""The renderers of a ``Table``: aligned text for a terminal, Markdown, CSV, LaTeX and HTML."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from dataclasses import replace

from markupsafe import Markup, escape

from kohaku_ray.pages.text import cut, one_line, visible
from kohaku_ray.table import Column, MarkedText, Table

SHORT_CHARS = 32
"""A label of at most this length is not broken over lines on a wide screen."""

_LABEL_CHARS = 200


def as_text(table: Table) -> str:
    """Align the columns with spaces; a rule stands below the head. Title and notes are left to the caller."""
    marked = [value for row in table.rows for value in row if isinstance(value, MarkedText)]
    width = max((len(value.suffix) for value in marked), default=0)
    names = {"best": "best ", "second": "2nd ", "": ""}

    def write(column: Column, value: object) -> str:
        if isinstance(value, MarkedText):
            return f"{names[value.mark]}{value.text}{value.suffix:<{width}}"
        return one_line(column.write(value))

    lines = _lines(table, one_line, write)
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    signs = ["<" if column.align == "left" else ">" for column in table.columns]
    return "\n".join(
        "  ".join(f"{cell:{sign}{width}}" for cell, sign, width in zip(line, signs, widths, strict=True)).rstrip()
        for line in lines
    )


def as_csv(table: Table) -> str:
    """Write head and rows as comma-separated values, for programs: no units, no separators, None is empty."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    columns = [replace(column, unit="", missing="") for column in table.columns]
    for row in [[column.label for column in columns], *table.rows]:
        texts = (
            str(value) if isinstance(value, int) else column.write(value)
            for column, value in zip(columns, row, strict=True)
        )
        writer.writerow(visible(text).replace("\r", "\n") for text in texts)  # csv does not quote a lone \r
    return buffer.getvalue()


def as_markdown(table: Table) -> str:
    """Write head and rows as a Markdown table; the best is bold, the second underlined."""
    marks = {"best": "**{}**", "second": "<ins>{}</ins>", "": "{}"}

    def write(column: Column, value: object) -> str:
        if isinstance(value, MarkedText):
            return marks[value.mark].format(value.text) + escape_markdown(value.suffix).replace("\\[", " \\[")
        return escape_markdown(column.write(value))

    head, *rows = _lines(table, escape_markdown, write)
    rule = ["---" if column.align == "left" else "---:" for column in table.columns]
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, rule, *rows])


def as_latex(table: Table) -> str:
    """Write head and rows as a LaTeX ``tabular`` with the rules of booktabs."""
    commands = {"best": r"\textbf{%s}", "second": r"\underline{%s}", "": "%s"}

    def write(column: Column, value: object) -> str:
        if not isinstance(value, MarkedText):
            return escape_latex(column.write(value))
        raised = value.raised.replace("†", r"\dagger")
        text = commands[value.mark] % escape_latex(value.text) + (f"$^{{{raised}}}$" if raised else "")
        text += f" {{[}}{value.footnote}{{]}}" if value.footnote else ""
        return text + (f" ({escape_latex(value.aside)})" if value.aside else "")

    head, *rows = (f"{' & '.join(line)} \\\\" for line in _lines(table, escape_latex, write))
    columns = "".join(column.align[0] for column in table.columns)
    body = ["\\toprule", head, "\\midrule", *rows, "\\bottomrule"]
    return "\n".join([f"\\begin{{tabular}}{{{columns}}}", *body, "\\end{tabular}"])


def as_html(table: Table, css_class: str = "scores") -> Markup:
    """Write the table as HTML that scrolls in its own box; every text is escaped, cut and visible.

    The columns of text before the first of numbers name the rows; text behind numbers is a remark.
    """
    n_names = next((number for number, column in enumerate(table.columns) if column.align == "right"), 0)
    names = []
    for column in table.columns:
        number_class = ' class="n"' if column.align == "right" else ""
        tooltip = f' title="{_html(column.tooltip)}"' if column.tooltip else ""
        names.append(f"<th{number_class}{tooltip}>{_html(column.label)}</th>")
    rows = []
    for row in table.rows:
        fields = []
        for number, (column, value) in enumerate(zip(table.columns, row, strict=True)):
            text = column.write(value)
            html = _html_of_mark(value) if isinstance(value, MarkedText) else _html(text)
            tag = "th" if number < n_names else "td"
            kind = "n" if column.align == "right" else "short" if tag == "th" and len(text) <= SHORT_CHARS else ""
            fields.append(f'<{tag} class="{kind}">{html}</{tag}>' if kind else f"<{tag}>{html}</{tag}>")
        rows.append(f"<tr>{''.join(fields)}</tr>\n")
    opened = f'<table class="{css_class}">' if css_class else "<table>"
    start = f'<div class="scroll">{opened}\n<thead><tr>{"".join(names)}</tr></thead>\n<tbody>\n'
    return Markup(f"{start}{''.join(rows)}</tbody></table></div>")  # noqa: S704 - every text is escaped


def _html(text: str) -> Markup:
    return escape(visible(cut(text, _LABEL_CHARS)))


def _html_of_mark(value: MarkedText) -> str:
    text = f'<span class="state">{_html(value.text)}</span>'
    if value.link:
        mark = f' class="{value.mark}"' if value.mark else ""
        text = f'<a{mark} href="{escape(value.link)}">{_html(value.text)}</a>'
    raised = f"<sup>{value.all_raised}</sup>" if value.all_raised else ""
    return text + raised + (f'<br><span class="paper">{_html(value.aside)}</span>' if value.aside else "")


def escape_markdown(text: str) -> str:
    """Escape a text for one line of Markdown."""
    return re.sub(r"([\\`*_{}\[\]<>|~&$#])", r"\\\1", one_line(text))


_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "`": r"\textasciigrave{}",
    "±": r"$\pm$",
    "†": r"$\dagger$",
    "·": r"$\cdot$",
    "–": r"\textendash{}",
    "…": r"\dots{}",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    **{letter: f"{{{letter}}}" for letter in '[]*"'},  # no optional argument, no starred command
    **{chr(0x2400 + code): f"{{[}}U+{code:04X}{{]}}" for code in range(0x20)},  # symbols that few fonts have
}


def escape_latex(text: str) -> str:
    """Escape a text for one line of LaTeX."""
    escaped = "".join(_LATEX.get(letter, letter) for letter in one_line(text))
    return re.sub(r"([-',])(?=\1)", r"\1{}", escaped)  # no ligature


def _lines(table: Table, escape: Callable[[str], str], write: Callable[[Column, object], str]) -> list[list[str]]:
    """Write head and rows, cell by cell."""
    head = [escape(column.label) for column in table.columns]
    return [head, *([write(*pair) for pair in zip(table.columns, row, strict=True)] for row in table.rows)]
