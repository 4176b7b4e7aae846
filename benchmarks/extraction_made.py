"""Make files whose content is known, for extraction.py: tables and sentences, typeset by programs of others.

    python extraction_made.py DIRECTORY

writes each table and page of prose by pdfTeX, groff, ReportLab, WeasyPrint, LibreOffice (each where it is installed),
as DOCX, HTML and Markdown, with ``made.json`` beside them: what each file holds.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path


@dataclass(frozen=True)
class Cell:
    """A cell as it is set: its text, the raised mark or power behind it, how many columns and rows it spans."""

    text: str
    mark: str = ""
    n_columns: int = 1
    n_rows: int = 1
    power: str = ""

    @property
    def raised(self) -> str:
        """What stands raised behind the text."""
        return self.mark or self.power


@dataclass(frozen=True)
class Table:
    """A table: rows of its header, then of its body; below a cell that spans rows, ``None`` stands."""

    name: str
    caption: str
    header: tuple[tuple[Cell | None, ...], ...]
    body: tuple[tuple[Cell | None, ...], ...]
    n_keys: int = 1  # how many of the first columns say which row it is
    note: str = ""

    def grid(self, rows: Sequence[Sequence[Cell | None]]) -> list[list[Cell]]:
        """Rows with a cell at every place, those that span several at each of them."""
        filled: list[list[Cell]] = []
        for row in rows:
            cells: list[Cell] = []
            for cell in row:
                cells += [filled[-1][len(cells)]] if cell is None else [cell] * cell.n_columns
            filled.append(cells)
        return filled

    def truth(self) -> list[dict[str, object]]:
        """Each cell beside the keys that is not empty: the texts of its row's keys, the texts above it, its own."""
        above, truth = self.grid(self.header), []
        for row in self.grid(self.body):
            keys = [cell.text for cell in row[: self.n_keys]]
            for column, cell in enumerate(row):
                names = list(dict.fromkeys(line[column].text for line in above if line[column].text))
                if column >= self.n_keys and cell.text:
                    text = f"{cell.text}^{cell.power}" if cell.power else cell.text
                    truth.append({"keys": keys, "names": names, "text": text, "mark": cell.mark})
        return truth


def table(
    name: str, caption: str, header: Sequence[str], body: Sequence[str], n_keys: int = 1, note: str = ""
) -> Table:
    """Read a table from lines of cells between bars.

    ``1,066^a`` has a mark, ``2 × 10^^9`` a power, ``Energy>2`` spans two columns, ``Model_2`` two rows; ``^`` is the
    cell above.
    """

    def cell(source: str) -> Cell | None:
        text, _, mark = source.strip().partition("^")
        if not text:
            return None if source.strip() else Cell("")
        columns, rows = re.search(r">(\d)", text), re.search(r"_(\d)$", text)
        text = re.sub(r">\d|_\d$", "", text)
        power = mark[1:] if mark[:1] == "^" else ""
        return Cell(text, "" if power else mark, int(columns[1]) if columns else 1, int(rows[1]) if rows else 1, power)

    read = [tuple(tuple(map(cell, line.split("|"))) for line in lines) for lines in (header, body)]
    return Table(name, caption, *read, n_keys=n_keys, note=note)


_LONG = [f"Site {i:02d}|{1000 + 37 * i:,}|{1.05 + i / 100:.2f}|{(i * 7919) % 997}.{i % 10}" for i in range(1, 71)]

TABLES = (
    table(
        "plain",
        "Energy of training runs",
        ["Model|Power (W)|Energy (MWh)|PUE"],
        ["GPT-3|300|1,287|1.10", "Gopher|330|1,066|1.08", "OPT|400|324|1.09", "BLOOM|400|433|1.20", "T5|310|85.7|1.12"],
    ),
    table(
        "stacked",
        "Energy and emissions by model",
        ["Model_2|Energy>2|Emissions>2", "^|MWh|kWh per query|tonnes|share (%)"],
        ["GPT-3|1,287|0.004|552|12.5", "Gopher|1,066|0.003|380|9.1", "OPT|324|0.002|75|3.4", "T5|85.7|0.001|47|1.2"],
    ),
    table(
        "rows",
        "Use of electricity by region",
        ["Region|Year|Use (TWh)|Share (%)"],
        ["Europe_3|2021|96.1|2.4", "^|2022|99.8|2.6", "^|2023|104.2|2.7", "Asia_2|2021|140.5|1.9", "^|2022|151.0|2.1"],
        n_keys=2,
    ),
    table(
        "marks",
        "Energy and emissions as reported",
        ["Model|Energy (MWh)|Emissions (t)|Days"],
        [
            "GPT-3|1,287^a|552|14.8^2",
            "Gopher|1,066^b|380^a|38",
            "OPT|324|75^1|33^*",
            "BLOOM|433^c|25|118",
            "T5|85.7|47^2|20",
        ],
        note="a Estimated from the number of devices.",
    ),
    table(
        "wrapped",
        "Methods and what they measure",
        ["Method|What it measures|Error (%)"],
        [
            "Meter|Power at the wall outlet, once per second, of the whole server with its fans and power supply|1.5",
            "RAPL|Power of the processor package and of the memory, in steps of 15.3 microjoules|4.2",
            "NVML|Power of the graphics card alone, as a mean over 25 milliseconds of a window of 100|5.0",
        ],
    ),
    table(
        "gaps",
        "Change of use by quarter",
        ["Site|Q1|Q2|Q3|Q4"],
        ["Dublin|+3.1%|-0.4%||2.2%", "Oslo|-1.7%|n/a|0.9%|", "Paris||12.0%|-5.5%|1.0%", "Rome|0.0%|-2.3%|4.4%|7.9%"],
    ),
    table(
        "years",
        "Electricity of data centres (TWh)",
        ["Country|2019|2020|2021|2022"],
        ["France|11.2|11.6|12.0|12.3", "Ireland|2.5|3.0|4.0|5.3", "Spain|6.1|6.0|6.4|6.8", "Sweden|2.9|3.2|3.1|3.4"],
    ),
    table(
        "words",
        "Licence and origin",
        ["Model|Licence|Origin|Released"],
        ["Falcon|Apache 2.0|Abu Dhabi|2023", "BLOOM|RAIL 1.0|Paris|2022", "Pythia|Apache 2.0|Washington|2023"],
    ),
    table(
        "powers",
        "Size and work of models",
        ["Model|Parameters|Work (FLOP)|Error"],
        [
            "GPT-3|1.75 × 10^^11|3.14 × 10^^23|2.1 × 10^^-3",
            "OPT|1.75 × 10^^11|4.3 × 10^^23|3.0 × 10^^-3",
            "T5|1.1 × 10^^10|3.3 × 10^^22|4.5 × 10^^-2",
        ],
    ),
    table("long", "All sites", ["Site|Use (MWh)|PUE|Water (ML)"], _LONG),
)

BEFORE = "The figures below were collected in 2023 from public reports, and checked against the meters of each site."
AFTER = "All values were rounded as the reports had them; where a report gave 3 values, the last one was taken."

SENTENCES: tuple[tuple[str, str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("power", r"The model has 1.3 × 10{^9} parameters in all.", (r"1\.3 ?[×x] ?10\^9\b",), (r"\b109\b",)),
    ("negative power", r"A request takes 2.4 × 10{^-3} kilowatt hours.", (r"2\.4 ?[×x] ?10\^-3\b",), ()),
    ("area", r"The hall has 1,200 m{^2} of floor.", (r"1,200 ?m\^2",), (r"m2\b",)),
    ("index", r"It emitted 552 tonnes of CO{_2} that year.", (r"CO_?2\b",), (r"CO 2", r"CO \[2")),
    ("indexed", r"Here x{_1} is the load and x{_2} the loss.", (r"x_?1\b.*x_?2\b",), (r"x \[?\d",)),
    (
        "note on a number",
        r"The mean PUE was 1.58{!2} in that survey.",
        (r"1\.58(?![\d.])",),
        (r"1\.582", r"1\.58\^?2\b"),
    ),
    ("note on a thousand", r"It used 1,287{!a} MWh in total.", (r"1,287(?![\w.])",), (r"1,287a",)),
    ("notes", r"Others report 0.95{!3,4} for the same site.", (r"0\.95(?![\d.])",), (r"0\.953",)),
    ("note on a word", r"This was the largest cluster{!5} of its time.", (r"cluster\b(?!5)",), (r"cluster5",)),
    ("ordinal", r"It ran on the 21{^st} of May.", (r"21(\^)?st\b",), (r"21 st", r"21 \[")),
    ("thousands", r"The cost was 12,345,678 dollars and 90 cents.", (r"12,345,678 dollars and 90",), ()),
    ("range", r"Estimates lie between 4.3 and 5.7 litres, or 17-19 ounces.", (r"4\.3 and 5\.7", r"17-19"), ()),
    ("minus", r"The temperature was -12.5 degrees.", (r"-12\.5 degrees",), ()),
    ("percent", r"Load fell by 7.25% to 92.75% within 3 hours.", (r"7\.25 ?% to 92\.75 ?%",), ()),
    ("hyphens", r"A data-driven, energy-efficient and well-known method.", ("data-driven, energy-efficient",), ()),
)
"""Name, source (``{^9}`` raised, ``{_2}`` lowered, ``{!2}`` a note's mark), what must and must not be read."""

FORMULAS: tuple[tuple[str, str, str, str], ...] = (
    ("square", "E = m c^2", "<mi>E</mi><mo>=</mo><mi>m</mi><msup><mi>c</mi><mn>2</mn></msup>", r"E ?= ?m ?c ?\^ ?2"),
    (
        "fraction",
        r"P = \frac{a}{b + 12}",
        "<mi>P</mi><mo>=</mo><mfrac><mi>a</mi><mrow><mi>b</mi><mo>+</mo><mn>12</mn></mrow></mfrac>",
        r"P ?= ?\(?a\)? ?/ ?\(b ?\+ ?12\)",
    ),
    ("sum", r"\sum_{i=1}^{20} x_i", "", r"[∑Σ] ?_? ?\(?i ?= ?1\)? ?\^?\(?20\)? ?x_?i"),
    ("root", r"\sqrt{2 \pi} \approx 2.507", "", r"√ ?\(? ?2 ?π ?\)? ?≈ ?2\.507"),
)
"""Name, TeX, MathML (without it, in Markdown alone), and what must be read."""

_PARTS = re.compile(r"\{([\^_!])([^}]*)\}")


def written(source: str, raised: str, lowered: str, text: Callable[[str], str] = str, note: str = "") -> str:
    """A sentence with its raised and lowered characters in a format's markup, and its text escaped."""
    parts = _PARTS.split(source)
    sentence = text(parts[0])
    markup = {"^": raised, "_": lowered, "!": note or raised}
    for kind, run, after in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        sentence += markup[kind].format(text(run)) + text(after)
    return sentence


def html_table(made: Table, attributes: str = "") -> str:
    rows = []
    for tag, part in (("th", made.header), ("td", made.body)):
        for row in part:
            cells = [
                f"<{tag}{f' colspan={c.n_columns}' * (c.n_columns > 1)}{f' rowspan={c.n_rows}' * (c.n_rows > 1)}>"
                f"{escape(c.text)}{f'<sup>{c.raised}</sup>' * bool(c.raised)}</{tag}>"
                for c in row
                if c is not None
            ]
            rows.append(f"<tr>{''.join(cells)}</tr>")
    n = len(made.header)
    head, body = "".join(rows[:n]), "".join(rows[n:])
    note = f"<p>{made.note}</p>" if made.note else ""
    return (
        f"<table {attributes}><caption>Table 1: {made.caption}</caption><thead>{head}</thead>"
        f"<tbody>{body}</tbody></table>{note}"
    )


def web_table(made: Table) -> str:
    """A table as pages of the web write it.

    Headers without ``<thead>``, a unit on a line of its own, keys as row headers, lists in long cells, marks as links,
    hidden keys to sort by, a row over the second half and a last row with the source.
    """
    n_columns = sum(cell.n_columns for cell in made.header[0] if cell is not None)

    def content(cell: Cell, is_name: bool) -> str:
        text = escape(cell.text)
        if is_name:
            text = re.sub(r" (\([^)]*\))$", r"<br><small>\1</small>", text)
        elif len(text) > 40:
            text = f"<ul>{''.join(f'<li>{part}</li>' for part in re.split(r'(?<=,) ', text))}</ul>"
        elif re.fullmatch(r"[\d,]+", text):
            text = f'<span style="display:none">{int(text.replace(",", "")):09d}</span>{text}'
        mark = f'<sup class="reference" id="ref-{cell.mark}"><a href="#note-{cell.mark}">[{cell.mark}]</a></sup>'
        return text + mark * bool(cell.mark) + f"<sup>{cell.power.replace('-', '−')}</sup>" * bool(cell.power)

    rows = []
    for i, row in enumerate((*made.header, *made.body)):
        if i == len(made.header) + len(made.body) // 2 and all(cell is not None for cell in row[: made.n_keys]):
            rows.append(f"<tr><th colspan={n_columns}>Reported later</th></tr>")
        is_header = i < len(made.header)
        rows.append("<tr>")
        for column, cell in enumerate(row):
            if cell is not None:
                tag, scope = ("th", ' scope="row"') if column < made.n_keys and not is_header else ("td", "")
                tag = "th" if is_header else tag
                spans = f" colspan={cell.n_columns}" * (cell.n_columns > 1) + f" rowspan={cell.n_rows}" * (
                    cell.n_rows > 1
                )
                rows.append(f"<{tag}{scope}{spans}>{content(cell, is_header)}</{tag}>")
        rows.append("</tr>")
    source = f"<tr><td colspan={n_columns}><small>Source: reports. {escape(made.note)}</small></td></tr>"
    return (
        f'<table class="wikitable sortable"><caption>Table 1: {made.caption}</caption>{"".join(rows)}{source}</table>'
    )


def html_page(body: str, style: str = "") -> str:
    return f"<!doctype html><meta charset=utf-8><title>A report</title><style>{style}</style><body>{body}</body>"


def html_of_table(made: Table, style: str = "") -> str:
    return html_page(f"<h1>A report</h1><p>{BEFORE}</p>{html_table(made)}<p>{AFTER}</p>", style)


def html_of_prose(style: str = "", formulas: bool = True) -> str:
    paragraphs = [
        f"<p>{written(source, '<sup>{}</sup>', '<sub>{}</sub>', escape)}</p>" for _, source, _, _ in SENTENCES
    ]
    maths = [f"<p>So <math>{formula[2]}</math> holds.</p>" for formula in FORMULAS if formula[2] and formulas]
    return html_page(f"<h1>A report</h1>{''.join(paragraphs)}{''.join(maths)}", style)


def markdown_of_table(made: Table) -> str:
    lines = [
        f"| {' | '.join(c.text + f'<sup>{c.raised}</sup>' * bool(c.raised) for c in row if c is not None)} |"
        for row in (*made.header, *made.body)
    ]
    lines.insert(1, "|---" * len(made.header[0]) + "|")
    return f"# A report\n\n{BEFORE}\n\n" + "\n".join(lines) + f"\n\n{AFTER}\n"


def markdown_of_prose() -> str:
    lines = [written(source, "<sup>{}</sup>", "<sub>{}</sub>") for _, source, _, _ in SENTENCES]
    return "# A report\n\n" + "\n\n".join([*lines, *(f"So ${tex}$ holds." for _, tex, _, _ in FORMULAS)]) + "\n"


_TEX = str.maketrans({"%": r"\%", "&": r"\&", "×": r"$\times$", "#": r"\#"})


def tex_text(text: str) -> str:
    return re.sub(r"(?<![\w])-(?=\d)", "$-$", text.translate(_TEX))


def tex_page(body: str) -> str:
    return (
        "\\documentclass[11pt]{article}\\usepackage{booktabs,longtable}\\usepackage[utf8]{inputenc}\n"
        "\\begin{document}\\title{A report}\\date{}\\maketitle\\section{Results}\n"
        f"{body}\n\\end{{document}}\n"
    )


def tex_of_table(made: Table, style: str) -> str:
    def line(row: Sequence[Cell | None]) -> str:
        cells = []
        for cell in row:
            if cell is None:
                cells.append("")
                continue
            text = tex_text(cell.text) + rf"\textsuperscript{{{cell.raised}}}" * bool(cell.raised)
            bars = "|c|" if style == "grid" else "c"
            cells.append(rf"\multicolumn{{{cell.n_columns}}}{{{bars}}}{{{text}}}" if cell.n_columns > 1 else text)
        return " & ".join(cells) + r" \\"

    n = len(made.grid(made.header)[0])
    columns = ["l"] + ["p{6cm}" if made.name == "wrapped" and i == 1 else "r" for i in range(1, n)]
    rules = {"grid": ("|", r"\hline", r"\hline", r"\hline"), "booktabs": ("", r"\toprule", r"\midrule", r"\bottomrule")}
    bar, top, middle, bottom = rules.get(style, ("", "", "", ""))
    spec = bar + bar.join(columns) + bar
    head = [line(row) for row in made.header]
    if len(head) > 1:
        spans, column = [], 1
        for cell in made.header[0]:
            n_columns = cell.n_columns if cell else 1
            rule = r"\cline" if style == "grid" else r"\cmidrule(lr)"
            spans += [f"{rule}{{{column}-{column + n_columns - 1}}}"] if n_columns > 1 else []
            column += n_columns
        head.insert(1, "".join(spans) if style in ("grid", "booktabs") else "")
    body = []
    for i, row in enumerate(made.body):
        after = made.body[i + 1] if i + 1 < len(made.body) else ()
        is_spanned = bool(after) and after[0] is None
        body.append(
            line(row) + ((rf"\cline{{2-{n}}}" if is_spanned else r"\hline") if style == "grid" and after else "")
        )
    if made.name == "long":
        first = f"{top} {' '.join(head)} {middle}"
        return tex_page(
            f"{BEFORE}\n\n\\begin{{longtable}}{{{spec}}}\\caption{{{made.caption}}}\\\\ {first} \\endhead {bottom} "
            f"\\endfoot\n" + "\n".join(body) + f"\n\\end{{longtable}}\n{AFTER}"
        )
    note = rf"\\ \small {made.note}" if made.note else ""
    return tex_page(
        f"{BEFORE}\n\n\\begin{{table}}[h]\\centering\\caption{{{made.caption}}}\\begin{{tabular}}{{{spec}}}{top}\n"
        + "\n".join([*head, middle, *body])
        + f"\n{bottom}\\end{{tabular}}{note}\\end{{table}}\n\n{AFTER}"
    )


def tex_of_prose() -> str:
    lines = [
        written(source, "$^{{{}}}$", "$_{{{}}}$", tex_text, r"\textsuperscript{{{}}}").replace("^{$-$3}", "^{-3}")
        for _, source, _, _ in SENTENCES
    ]
    lines = [re.sub(r"\b([x])\$_", r"$\1_", line) for line in lines]
    return tex_page("\n\n".join([*lines, *(f"So ${tex}$ holds." for _, tex, _, _ in FORMULAS)]))


def groff_of_table(made: Table, style: str) -> str:
    formats = [
        " ".join("^" if c is None else " ".join(["c", *"s" * (c.n_columns - 1)]) for c in row) for row in made.header
    ]
    n = len(made.grid(made.header)[0])
    lines = []
    for row in (*made.header, *made.body):
        texts = []
        for cell in row:
            if cell is None:
                texts.append(r"\^")
                continue
            text = cell.text.replace("-", r"\-") + (rf"\*{{{cell.raised}\*}}" if cell.raised else "")
            texts.append(f"T{{\n{text}\nT}}" if made.name == "wrapped" and len(cell.text) > 30 else text)
        lines.append("\t".join(texts))
    width = "lw(6c)" if made.name == "wrapped" else "n"
    formats.append(" ".join(["l", *([width if i == 1 else "n" for i in range(1, n)])]) + ".")
    options = "allbox center;" if style == "allbox" else "box center;" if style == "box" else "center;"
    head = "\n".join(lines[: len(made.header)]) + ("\n=" if style == "box" else "")
    opening, closing = (
        (".TS H", f"{options}\n" + "\n".join(formats) + f"\n{head}\n.TH\n")
        if made.name == "long"
        else (
            ".TS",
            f"{options}\n" + "\n".join(formats) + f"\n{head}\n",
        )
    )
    body = "\n".join(lines[len(made.header) :])
    note = f".LP\n{made.note}\n" if made.note else ""
    return (
        f".TL\nA report\n.NH\nResults\n.LP\n{BEFORE}\n.LP\nTable 1: {made.caption}\n{opening}\n{closing}{body}\n.TE\n"
        f"{note}.LP\n{AFTER}\n"
    )


def groff_of_prose() -> str:
    text = [
        written(source, r"\*{{{}\*}}", r"\*<{}\*>", lambda part: part.replace("-", r"\-").replace("×", r"\(mu"))
        for _, source, _, _ in SENTENCES
    ]
    return ".TL\nA report\n.NH\nResults\n.LP\n" + "\n.LP\n".join(text) + "\n"


def make_tex(path: Path, source: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "x.tex").write_text(source, encoding="utf-8")
        command = ["pdflatex", "-interaction=nonstopmode", "x.tex"]
        for _ in range(3 if "longtable}" in source.partition("\\begin{document}")[2] else 1):
            subprocess.run(command, cwd=directory, capture_output=True, check=False, timeout=120)
        shutil.copy(Path(directory) / "x.pdf", path)


def make_groff(path: Path, source: str) -> None:
    done = subprocess.run(
        ["groff", "-Tpdf", "-t", "-ms", "-Kutf8"], input=source.encode(), capture_output=True, check=True, timeout=120
    )
    path.write_bytes(done.stdout)


def make_reportlab(path: Path, made: Table | None, style: str) -> None:
    from reportlab.lib import colors
    from reportlab.lib.styles import getSampleStyleSheet
    from reportlab.platypus import Paragraph, SimpleDocTemplate, Spacer
    from reportlab.platypus import Table as Flowable

    styles = getSampleStyleSheet()
    story: list[object] = [Paragraph("A report", styles["Title"]), Spacer(1, 12)]
    if made is None:
        for _, source, _, _ in SENTENCES:
            text = written(source, "<super>{}</super>", "<sub>{}</sub>", escape)
            story += [Paragraph(text, styles["Normal"]), Spacer(1, 8)]
    else:
        head, rows = made.grid(made.header), made.grid(made.body)
        cells: list[list[object]] = []
        for row in (*head, *rows):
            is_wrapped = made.name == "wrapped"
            cells.append(
                [
                    Paragraph(
                        f"{escape(c.text)}<super>{c.raised}</super>" if c.raised else escape(c.text), styles["Normal"]
                    )
                    if c.raised or (is_wrapped and len(c.text) > 30)
                    else c.text
                    for c in row
                ]
            )
        commands: list[tuple[object, ...]] = [("VALIGN", (0, 0), (-1, -1), "MIDDLE")]
        cell_of = {(r, c): cell for r, row in enumerate((*head, *rows)) for c, cell in enumerate(row)}
        done: set[int] = set()
        for (r, c), cell in cell_of.items():
            if (cell.n_columns > 1 or cell.n_rows > 1) and id(cell) not in done:
                done.add(id(cell))
                commands.append(("SPAN", (c, r), (c + cell.n_columns - 1, r + cell.n_rows - 1)))
        if style == "grid":
            commands.append(("GRID", (0, 0), (-1, -1), 0.5, colors.black))
        elif style == "zebra":
            commands += [("BACKGROUND", (0, 0), (-1, len(head) - 1), colors.lightgrey)]
            commands += [
                ("BACKGROUND", (0, i), (-1, i), colors.whitesmoke) for i in range(len(head) + 1, len(cells), 2)
            ]
        else:
            commands.append(("FONT", (0, 0), (-1, len(head) - 1), "Helvetica-Bold"))
        widths = [60, 260, 60] if made.name == "wrapped" else None
        story += [Paragraph(BEFORE, styles["Normal"]), Spacer(1, 10)]
        story += [Paragraph(f"Table 1: {made.caption}", styles["Normal"]), Spacer(1, 4)]
        story += [Flowable(cells, colWidths=widths, repeatRows=len(head), style=commands), Spacer(1, 10)]
        story += [Paragraph(made.note, styles["Normal"]), Spacer(1, 6)] if made.note else []
        story += [Paragraph(AFTER, styles["Normal"])]
    SimpleDocTemplate(str(path)).build(story)


STYLES = {
    "ruled": "body{font:11pt serif} table{border-collapse:collapse} th,td{border:1px solid black;padding:3px 8px}",
    "open": "body{font:11pt sans-serif} th,td{padding:3px 14px;text-align:right} th{font-weight:bold} "
    "th[colspan]{text-align:center} th:first-child,td:first-child{text-align:left} thead{border-bottom:1px solid}",
    "zebra": "body{font:10pt sans-serif} table{border-spacing:0} th{background:#ddd} th,td{padding:4px 12px} "
    "tr:nth-child(even) td{background:#eee}",
}


def make_weasyprint(path: Path, made: Table | None, style: str) -> None:
    import weasyprint

    page = html_of_prose(STYLES[style], formulas=False) if made is None else html_of_table(made, STYLES[style])
    weasyprint.HTML(string=page).write_pdf(str(path))


def make_docx(path: Path, made: Table | None) -> None:
    import docx

    file = docx.Document()
    file.add_heading("A report", 1)
    if made is None:
        for _, source, _, _ in SENTENCES:
            paragraph, parts = file.add_paragraph(), _PARTS.split(source)
            paragraph.add_run(parts[0])
            for kind, run, after in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
                font = paragraph.add_run(run).font
                font.subscript, font.superscript = (True, None) if kind == "_" else (None, True)
                paragraph.add_run(after)
        file.save(str(path))
        return
    file.add_paragraph(BEFORE)
    file.add_paragraph(f"Table 1: {made.caption}", style="Caption")
    head, rows = made.grid(made.header), made.grid(made.body)
    grid = file.add_table(len(head) + len(rows), len(head[0]), style="Table Grid")
    seen: set[int] = set()
    for r, row in enumerate((*head, *rows)):
        for c, cell in enumerate(row):
            if id(cell) in seen:
                continue
            if cell.n_columns > 1 or cell.n_rows > 1:
                seen.add(id(cell))
                grid.cell(r, c).merge(grid.cell(r + cell.n_rows - 1, c + cell.n_columns - 1))
            paragraph = grid.cell(r, c).paragraphs[0]
            paragraph.add_run(cell.text).bold = r < len(head)
            if cell.raised:
                paragraph.add_run(cell.raised).font.superscript = True
    if made.note:
        file.add_paragraph(made.note)
    file.add_paragraph(AFTER)
    file.save(str(path))


def convert_docx(directory: Path, files: Sequence[Path]) -> None:
    """Print Word documents as PDF."""
    with tempfile.TemporaryDirectory() as profile:
        command = ["soffice", f"-env:UserInstallation=file://{profile}", "--headless", "--convert-to", "pdf"]
        subprocess.run(
            [*command, "--outdir", str(directory), *map(str, files)], capture_output=True, check=True, timeout=300
        )


def ways() -> dict[str, Callable[[Path, Table | None], None]]:
    """How to write a table, or without one the sentences, by the end of the file's name; those that can be had here."""
    writers: dict[str, Callable[[Path, Table | None], None]] = {}

    def text(path: Path, source: str) -> None:
        path.write_text(source, encoding="utf-8")

    writers["html.html"] = lambda path, made: text(path, html_of_table(made) if made else html_of_prose())
    writers["web.html"] = lambda path, made: text(
        path,
        html_page(f"<h1>A report</h1><p>{BEFORE}</p>{web_table(made)}<p>{AFTER}</p>") if made else html_of_prose(),
    )
    writers["in_markdown.md"] = lambda path, made: text(
        path, f"# A report\n\n{BEFORE}\n\n{html_table(made)}\n\n{AFTER}\n" if made else markdown_of_prose()
    )
    writers["pipes.md"] = lambda path, made: text(path, markdown_of_table(made) if made else markdown_of_prose())
    writers["word.docx"] = make_docx
    if shutil.which("pdflatex"):
        for style in ("grid", "booktabs", "open"):
            writers[f"tex_{style}.pdf"] = lambda path, made, style=style: make_tex(  # type: ignore[misc]
                path, tex_of_table(made, style) if made else tex_of_prose()
            )
    if shutil.which("groff") and shutil.which("gropdf"):
        for style in ("allbox", "box", "open"):
            writers[f"groff_{style}.pdf"] = lambda path, made, style=style: make_groff(  # type: ignore[misc]
                path, groff_of_table(made, style) if made else groff_of_prose()
            )
    for style in ("grid", "zebra", "bold"):
        writers[f"reportlab_{style}.pdf"] = lambda path, made, style=style: make_reportlab(path, made, style)  # type: ignore[misc]
    for style in STYLES:
        writers[f"weasyprint_{style}.pdf"] = lambda path, made, style=style: make_weasyprint(path, made, style)  # type: ignore[misc]
    return writers


def expected(made: Table | None, is_html: bool, is_markdown: bool) -> dict[str, object]:
    """What a file holds."""
    if made is not None:
        return {"cells": made.truth()}
    facts = [{"name": name, "must": must, "must_not": must_not} for name, _, must, must_not in SENTENCES]
    for name, _, mathml, must in FORMULAS:
        if is_markdown or (is_html and mathml):
            facts.append({"name": name, "must": (must,), "must_not": ()})
    return {"facts": facts}


def is_flat(made: Table) -> bool:
    """Whether a pipe table can hold it: one row of names, no spans."""
    return len(made.header) == 1 and all(cell is not None for row in made.body for cell in row)


def main() -> int:
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    truth: dict[str, dict[str, object]] = {}
    for ending, write in ways().items():
        is_html, is_markdown = ending.endswith("html"), ending.endswith("md")
        prose_styles = ("html.html", "pipes.md", "word.docx", "tex_grid.pdf", "groff_allbox.pdf")
        is_prose = ending in (*prose_styles, "reportlab_grid.pdf", "weasyprint_ruled.pdf")
        for made in (*TABLES, *([None] if is_prose else [])):
            if ending == "pipes.md" and made is not None and not is_flat(made):
                continue
            name = f"{made.name if made else 'prose'}_{ending}"
            start = time.perf_counter()
            write(directory / name, made)
            print(f"{name}: written in {time.perf_counter() - start:.1f} s")
            truth[name] = expected(made, is_html, is_markdown)
    if shutil.which("soffice"):
        files = sorted(directory.glob("*.docx"))
        convert_docx(directory, files)
        for file in files:
            (directory / f"{file.stem}.pdf").rename(directory / f"{file.stem.replace('_word', '_office')}.pdf")
            truth[f"{file.stem.replace('_word', '_office')}.pdf"] = truth[file.name]
    (directory / "made.json").write_text(json.dumps(truth, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
