"""Measure how much of a file's numbers, tables, formulas and notes arrives, ours beside other tools, by another reader.

Three parts, each printed as tables of Markdown:

*   held out (`--draw SEED`): PDFs and HTML pages of Debian packages drawn by a seed, which no rule was written for. A
    rule of the reader is judged here: numbers and words lost, order, cells and sentences that are found, CPU time.
*   real: documentation of Debian packages (HTML) and of npm packages (Markdown, HTML, Word), fetched as
    extraction_files.txt lists it. Numbers lost, invented and changed per 10,000, against selectolax' bare
    text and python-docx.
*   made: tables and sentences that extraction_made.py has typeset by other programs. The share of cells and of facts
    that are right, and milliseconds per page, beside other extractors in an environment that is made for them.

    python benchmarks/extraction.py [--draw SEED | --part real|made] [--work DIRECTORY]
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import html
import json
import re
import shutil
import subprocess
import sys
import tarfile
import time
import unicodedata
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import extraction_draw

from kohaku_ray.documents.model import Document
from kohaku_ray.documents.parse import parse_file
from kohaku_ray.errors import DataError

HERE = Path(__file__).parent
PEERS = (
    "pymupdf4llm==1.28.2",
    "pymupdf-layout==1.28.2",
    "pdfplumber==0.11.10",
    "pypdf==7.1.1",
    "trafilatura==2.3.1",
    "markitdown[pdf,docx]==0.1.9",
)
WRITERS = ("reportlab==5.1.0", "weasyprint==70.0", "python-docx==1.2.0")
COLUMN_GAP = 15.0  # least distance of two columns, in points
MAX_PITCH = 1.15  # widest digits of a number, as a share of the usual width at their height
MIN_MENU_LINKS, MENU_SHARE = 5, 0.8  # fewest links of a menu, and least share of its text in them
MAX_LOST, MIN_CELLS = 1.0, 0.98  # most numbers lost per 10,000; least share of cells right

Grid = list[list[str]]
Row = list[tuple[str, str]]  # names and values, as our sentences have them


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=("real", "made"), help="default: both")
    parser.add_argument("--work", type=Path, default=Path("runs/extraction"), help="downloads and made files")
    parser.add_argument("--draw", type=int, metavar="SEED", help="measure files drawn by this seed instead")
    parser.add_argument("--markup", action="store_true", help="draw HTML with tables and formulas, Markdown and rst")
    parser.add_argument("--peer-seconds", type=float, default=60, help="longest that another tool may take for a file")
    parser.add_argument("--show", action="store_true", help="print every number and cell that is not right")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    if arguments.draw is not None:
        measure_draw(arguments.draw, arguments.work, arguments.peer_seconds, arguments.show, arguments.markup)
        return 0
    kept = [
        part(arguments.work, arguments.show)
        for name, part in (("real", measure_real), ("made", measure_made))
        if arguments.part in (None, name)
    ]
    return 0 if all(kept) else 1


# Files drawn by a seed


@dataclass
class Drawn:
    """What a tool made of the drawn files of a kind."""

    n_files: int = 0
    n_rejects: int = 0
    n_pages: int = 0
    n_numbers: int = 0
    n_lost: int = 0
    n_words: int = 0
    n_words_lost: int = 0
    n_ordered: int = 0  # of the runs of four words that occur once in both texts, those in one order
    n_runs: int = 0
    cpu_ms: float = 0.0
    hits: Counter[tuple[str, int]] = field(default_factory=Counter)  # kind of question, `extraction_draw.found`


def measure_draw(seed: int, work: Path, peer_seconds: float, show: bool, of_markup: bool) -> None:
    """Print a row per kind of file and tool; other tools read the PDFs where they are installed."""
    files, questions = (extraction_draw.draw_markup if of_markup else extraction_draw.draw)(seed, work)
    drawn: dict[tuple[str, str], Drawn] = defaultdict(Drawn)
    for path in files:
        asked = [question for question in questions if question["file"] == path.name]
        try:
            body = {".pdf": read_pdf, ".html": read_html}.get(path.suffix, read_source)(path)[0]
        except subprocess.SubprocessError as error:
            print(f"{path.name}: {error}", file=sys.stderr)
            continue
        run = extraction_draw.run_text(path) if path.suffix == ".pdf" else ""
        n_pages = count_pages(path)
        for tool in ("kohaku_ray", *(extraction_draw.peers() if path.suffix == ".pdf" and peer_seconds else ())):
            try:
                if tool == "kohaku_ray":
                    text, paragraphs, ms = _read_drawn(path)
                else:
                    text, paragraphs, ms = extraction_draw.read_by_peer(tool, path, peer_seconds)
            except (DataError, subprocess.SubprocessError) as error:
                reason = str(error) if isinstance(error, DataError) else type(error).__name__
                print(f"{path.name}: {tool}: {reason}", file=sys.stderr)
                drawn[kind_of(path), tool].n_rejects += 1
                continue
            figures = drawn[kind_of(path), tool]
            figures.n_files += 1
            figures.n_pages += n_pages
            figures.cpu_ms += ms
            lost = Counter(numbers(body)) - Counter(numbers(text))
            figures.n_numbers += len(numbers(body))
            figures.n_lost += lost.total()
            figures.n_words += len(_words(body))
            figures.n_words_lost += (Counter(_words(body)) - Counter(_words(text))).total()
            n_ordered, n_runs = _order(run, text)
            figures.n_ordered, figures.n_runs = figures.n_ordered + n_ordered, figures.n_runs + n_runs
            normal = [[extraction_draw.normal(line) for line in lines] for lines in paragraphs]
            for question in asked:
                grade = extraction_draw.found(question, normal)
                figures.hits[question["kind"], grade] += 1
                if show and grade < 2 and tool == "kohaku_ray":
                    print(f"{grade}: {question}")
            if show and tool == "kohaku_ray":
                print(f"{path.name}: {ms / n_pages:.0f} ms a page, lost {list(lost.elements())[:20]}", flush=True)
    print(
        "\n| files | tool | read | rejects | pages | numbers | lost per 10,000 | words lost per 10,000 | order |",
        end="",
    )
    print(" cells: strong, any, of | sentences, of | CPU ms per page |\n" + "|---" * 12 + "|")
    for (kind, tool), of in drawn.items():
        cells = [sum(n for (k, grade), n in of.hits.items() if "cell" in k and grade >= least) for least in (2, 1, 0)]
        n_sentences = sum(n for (k, _), n in of.hits.items() if "sentence" in k)
        print(
            f"| {kind} | {tool} | {of.n_files} | {of.n_rejects} | {of.n_pages} | {of.n_numbers:,} | "
            f"{10_000 * of.n_lost / max(of.n_numbers, 1):.1f} | {10_000 * of.n_words_lost / max(of.n_words, 1):.0f} | "
            f"{of.n_ordered / max(of.n_runs, 1):.3f} | {cells[0]}, {cells[1]}, {cells[2]} | "
            f"{of.hits['pdf sentence', 2]}, {n_sentences} | {of.cpu_ms / max(of.n_pages, 1):.1f} |"
        )
    print("\n| questions | tool | found: strong | any | of |\n|---|---|---|---|---|")
    for (_, tool), of in drawn.items():
        for asked_kind in sorted({kind for kind, _ in of.hits}):
            counts = [sum(of.hits[asked_kind, grade] for grade in range(least, 3)) for least in (2, 1, 0)]
            print(f"| {asked_kind} | {tool} | {' | '.join(map(str, counts))} |")


def _read_drawn(path: Path) -> tuple[str, list[list[str]], float]:
    """Our text of a file, the lines of its paragraphs, and CPU milliseconds."""
    data = path.read_bytes()
    start = time.process_time()
    document = parse_file(path.name, data)
    ms = 1000 * (time.process_time() - start)
    paragraphs = [paragraph.text.split("\n") for section in document.sections for paragraph in section.paragraphs]
    return text_of(document), paragraphs, ms


def _words(text: str) -> list[str]:
    return [word.casefold() for word in re.findall(r"[^\W\d_]{4,}", unicodedata.normalize("NFKC", text))]


def _order(text: str, other: str) -> tuple[int, int]:
    """How many runs of four words that occur once in both texts stand in the same order, and how many there are."""
    places = []
    for words in (re.findall(r"\w+", text.casefold()), re.findall(r"\w+", other.casefold())):
        runs = [tuple(words[i : i + 4]) for i in range(len(words) - 3)]
        n = Counter(runs)
        places.append({run: i for i, run in enumerate(runs) if n[run] == 1})
    common = [places[1][run] for run in places[0] if run in places[1]]
    tails: list[int] = []  # the longest growing subsequence
    for place in common:
        i = bisect_left(tails, place)
        tails[i:] = [place, *tails[i + 1 :]]
    return len(tails), len(common)


# Real files


def measure_real(work: Path, show: bool) -> bool:
    """Print a row per kind of file."""
    losses: dict[str, Loss] = defaultdict(Loss)
    for path in fetch(work, HERE / "extraction_files.txt"):
        try:
            figures = measure_file(path)
        except DataError as error:
            print(f"{path.name}: {error}", file=sys.stderr)
            losses[kind_of(path)].n_rejects += 1
            continue
        losses[kind_of(path)] += figures
        for what in ("lost", "invented", "changed") if show else ():
            for text in getattr(figures, what):
                print(f"{path.relative_to(work)}: {what} {text}")
    print("\n| files | read | rejects | numbers | lost per 10,000 | not in the file, per 10,000 | changed |")
    print("|---|---|---|---|---|---|---|")
    for kind, loss in losses.items():
        per = 10_000 / max(loss.n_numbers, 1)
        print(
            f"| {kind} | {loss.n_files} | {loss.n_rejects} | {loss.n_numbers:,} | {len(loss.lost) * per:.2f} | "
            f"{len(loss.invented) * per:.2f} | {len(loss.changed)} |"
        )
    return all(len(loss.lost) * 10_000 <= MAX_LOST * loss.n_numbers for loss in losses.values())


def kind_of(path: Path) -> str:
    return {"htm": "HTML", "html": "HTML", "md": "Markdown"}.get(path.suffix[1:], path.suffix[1:].upper())


def fetch(work: Path, files: Path) -> Iterator[Path]:
    """Download and unpack what a list names, and yield its files.

    A line is a registry, a package, its version, perhaps ``sha256:`` and a digest, and patterns of paths in it.
    """
    for line in files.read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        registry, package, version, *patterns = line.split()
        digest = patterns.pop(0).removeprefix("sha256:") if patterns[0].startswith("sha256:") else ""
        directory = work / f"{package.replace('/', '-')}_{version.replace(':', '-').replace('/', '-')}"
        if not directory.exists():
            unpacked = directory.with_suffix(".part")
            shutil.rmtree(unpacked, ignore_errors=True)
            unpacked.mkdir(parents=True)
            {"debian": unpack_deb, "npm": unpack_npm}[registry](package, version, digest, unpacked)
            unpacked.rename(directory)
        for pattern in patterns:
            files = sorted(directory.glob(pattern))
            if not files:
                print(f"{package} {version}: nothing is {pattern}", file=sys.stderr)
            for file in files:
                if file.suffix == ".gz":
                    plain = file.with_suffix("")
                    plain.write_bytes(gzip.decompress(file.read_bytes()))
                    file = plain
                yield file


def unpack_deb(package: str, version: str, digest: str, directory: Path) -> None:
    command = ["apt-get", "download", "-qq", f"{package}={version}"]
    if subprocess.run(command, cwd=directory, check=False).returncode:  # a point release has replaced it
        subprocess.run([*command[:-1], package], cwd=directory, check=True)
    [file] = directory.glob("*.deb")
    if version.partition(":")[2] not in file.name and version not in file.name:
        print(f"{package} {version} is no longer there: {file.name} instead", file=sys.stderr)
    check_digest(file, digest)
    subprocess.run(["dpkg-deb", "-x", file.name, "."], cwd=directory, check=True)
    file.unlink()


def unpack_npm(package: str, version: str, digest: str, directory: Path) -> None:
    subprocess.run(["npm", "pack", "--silent", f"{package}@{version}"], cwd=directory, check=True, capture_output=True)
    [file] = directory.glob("*.tgz")
    unpack_tar(file, digest, directory)


def unpack_tar(file: Path, digest: str, directory: Path) -> None:
    check_digest(file, digest)
    with tarfile.open(file) as archive:
        archive.extractall(directory, filter="data")
    file.unlink()


def check_digest(file: Path, digest: str) -> None:
    if digest and hashlib.sha256(file.read_bytes()).hexdigest() != digest:
        print(f"{file.name} is another file than the one that was listed", file=sys.stderr)


NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


def numbers(text: str) -> list[str]:
    """Numbers of three digits or more or with a point; one in which a line may break is whole."""
    text = unicodedata.normalize("NFKC", text.replace("\u200b", ""))
    return [number for number in NUMBER.findall(text) if len(re.sub(r"\D", "", number)) >= 3 or "." in number]


@dataclass
class Loss:
    """Numbers that an independent reader finds and we do not, and the other way round."""

    n_files: int = 0
    n_rejects: int = 0
    n_numbers: int = 0
    lost: list[str] = field(default_factory=list)
    invented: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)

    def __iadd__(self, other: Loss) -> Loss:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)
        return self


def measure_file(path: Path) -> Loss:
    """Compare the numbers of a file with those that another program reads."""
    read = {"pdf": read_pdf, "docx": read_docx, "md": read_markdown}.get(path.suffix[1:], read_html)
    ours = Counter(numbers(text_of(parse_file(path.name, path.read_bytes()))))
    body, frame = (Counter(numbers(text)) for text in read(path))
    lost = list((body - ours).elements())
    invented = [number for number, n in ours.items() for _ in range(n) if number not in body and number not in frame]
    changed = []
    for number in invented:
        digits = re.sub(r"\D", "", number)
        for other in lost:
            lost_digits = re.sub(r"\D", "", other)
            short, long = sorted((digits, lost_digits), key=len)
            if 2 * len(short) > len(long) and (long.startswith(short) or long.endswith(short)):
                changed.append(f"{other} → {number}")
                break
    return Loss(1, 0, sum(body.values()), lost, invented, changed)


def text_of(document: Document) -> str:
    """A document's text; what its sections and the rows of a table repeat, once: headings above, names of columns."""
    parts: list[str] = [document.title]
    path: list[str] = []
    for section in document.sections:
        headings = section.title.split(" › ")
        parts += [heading for i, heading in enumerate(headings) if path[: i + 1] != headings[: i + 1]]
        path = headings
        for paragraph in section.paragraphs:
            names: tuple[str, ...] = ()
            for line in paragraph.text.split("\n"):
                row = read_row(line)
                if row is not None and names == (names := tuple(name for name, _ in row)):
                    parts += [value for _, value in row]
                else:
                    parts.append(line)
    return "\n".join(parts)


_ENTRY = re.compile(r"(?:\.\s?){3,}\s*\d+\s*$")


def read_pdf(path: Path) -> tuple[str, str]:
    """Text by pdftotext, which keeps raised characters apart with -bbox: that of the body; and what frames it.

    These are lines at a page's top or bottom that stand on three pages, or on half of them, digits apart, or have the
    page's number; pages and entries of a table of contents; and upright words, as labels of axes are. Digits set
    farther apart than this height's usually are, as in the rows of a matrix, are numbers of one digit.
    """
    command = ["pdftotext", "-bbox", str(path), "-"]
    source = subprocess.run(command, capture_output=True, check=True, timeout=300).stdout.decode("utf-8", "replace")
    pages = []
    word = re.compile(r'<word xMin="([\d.-]+)" yMin="([\d.-]+)" xMax="([\d.-]+)" yMax="([\d.-]+)">(.*?)</word>')
    frame = []
    pitches: dict[float, list[float]] = defaultdict(list)  # width of a digit, by the height of its word
    for *box, text in word.findall(source):
        left, top, right, bottom = map(float, box)
        if text.isdecimal() and len(text) > 1:
            pitches[round(bottom - top, 1)].append((right - left) / len(text))
    usual = {height: sorted(widths)[len(widths) // 2] for height, widths in pitches.items()}
    for page in source.split("<page ")[1:]:
        rows: dict[int, list[tuple[float, float, str]]] = defaultdict(list)
        for *box, text in word.findall(page):
            left, top, right, bottom = map(float, box)
            text = html.unescape(text)
            if len(text) > 2 and bottom - top > 1.3 * (right - left):
                frame.append(text)
                continue
            if text.isdecimal() and right - left > MAX_PITCH * len(text) * usual.get(round(bottom - top, 1), 1e9):
                text = " ".join(text)
            rows[round((top + bottom) / 6)].append((left, right, text))
        pages.append([list(columns_of(sorted(rows[height]))) for height in sorted(rows)])
    edges = Counter(
        shape for rows_of in pages for shape in {shape_of(text) for row in rows_of[:3] + rows_of[-3:] for text in row}
    )
    offsets = Counter(
        n - i for i, rows_of in enumerate(pages) for row in rows_of[:2] + rows_of[-2:] for n in labels(" ".join(row))
    )
    needed = min(3, max(2, (len(pages) + 1) // 2))
    body = []
    for i, rows_of in enumerate(pages):
        is_contents = 4 * sum(_ENTRY.search(" ".join(row)) is not None for row in rows_of) > len(rows_of)
        for k, row in enumerate(rows_of):
            depth = min(k, len(rows_of) - 1 - k)
            is_labelled = depth < 2 and any(offsets[n - i] >= 3 for n in labels(" ".join(row)))
            is_framed = is_contents or is_labelled or _ENTRY.search(" ".join(row)) is not None
            for text in row:
                may_run = any(map(str.isalpha, text)) or len(row) < 3  # else the cells of a table
                is_repeated = edges[shape_of(text)] >= needed or shape_of(text).strip(" -–") == "#"
                is_edge = depth < 3 and may_run and is_repeated
                (frame if is_framed or is_edge else body).append(text)
    return "\n".join(body), "\n".join(frame)


def columns_of(words: Sequence[tuple[float, float, str]]) -> Iterator[str]:
    """Join the words of a row (left, right, text) that stand closer than `COLUMN_GAP`."""
    texts: list[str] = []
    end = 0.0
    for left, right, text in words:
        if texts and left - end > COLUMN_GAP:
            yield " ".join(texts)
            texts = []
        texts.append(text)
        end = right
    yield " ".join(texts)


def shape_of(text: str) -> str:
    """A line with its digits as one sign."""
    return re.sub(r"\d+", "#", text)


def labels(line: str) -> list[int]:
    """The whole numbers with which a line begins and ends, of which one may be its page's."""
    words = line.split()
    return [int(word) for word in {*words[:1], *words[-1:]} if word.isdecimal() and len(word) < 5]


def read_html(path: Path, source: str = "") -> tuple[str, str]:
    """Bare text of the body by selectolax, and of what frames it: navigation, footers and lists of links."""
    from selectolax.lexbor import LexborHTMLParser

    tree = LexborHTMLParser(source or path.read_bytes().decode("utf-8", "replace"))
    for node in tree.css("script, style, noscript, template, svg, select, head, del, s, strike"):
        if node.parent is not None:
            node.decompose()
    frame = [node.attributes.get("alt") or "" for node in tree.css("img")]
    for node in tree.css("nav, footer, aside, ul, ol, table, div, p"):
        links = sum(len(link.text()) for link in node.css("a")) if node.tag not in ("nav", "footer", "aside") else 0
        n_links = len(node.css("a"))
        is_menu = n_links >= MIN_MENU_LINKS and links > MENU_SHARE * len("".join(node.text().split()))
        if node.parent is not None and (is_menu or node.tag in ("nav", "footer", "aside")):
            frame.append(node.text(separator=" "))
            node.decompose()
    return tree.body.text(separator=" ") if tree.body is not None else "", " ".join(frame)


def read_source(path: Path) -> tuple[str, str]:
    """A file as it is written, addresses left out."""
    return re.sub(r"\b\w+://\S+", "", path.read_text(encoding="utf-8", errors="replace")), ""


def read_markdown(path: Path) -> tuple[str, str]:
    """Bare text of the page that Python-Markdown makes of it."""
    import markdown

    source = path.read_text(encoding="utf-8", errors="replace")
    page = f"<body>{markdown.markdown(source, extensions=['tables', 'fenced_code', 'sane_lists'])}"
    body, frame = read_html(path, page)
    # Markdown within HTML stays as it is there: addresses of links and images are no text
    return re.sub(r"\]\(\s*https?:[^)]*\)", "]", body), frame


def read_docx(path: Path) -> tuple[str, str]:
    import docx

    try:
        file = docx.Document(str(path))
    except KeyError:  # strict Open XML, which this reader does not know
        return "", ""
    cells = [cell.text for table in file.tables for row in table.rows for cell in row.cells]
    return "\n".join([*(paragraph.text for paragraph in file.paragraphs), *cells]), ""


# Made files


def read_row(line: str) -> Row | None:
    """A row of a table as our sentences have it: ``name: value; …``; None: the line is none."""
    parts = [part.partition(": ") for part in line.split("; ")]
    if len(parts) < 2 or not all(joint for _, joint, _ in parts):
        return None
    return [(name, value) for name, _, value in parts]


_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻ᵃᵇᶜ", "0123456789-abc")
_LOWERED = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")


def plain(text: str) -> str:
    """Text without the marks of Markdown and HTML; raised characters as ``^2``, lowered ones as they are."""
    text = html.unescape(text)
    text = re.sub(r"<sup>(.*?)</sup>", r"^\1", text)
    text = re.sub(r"</?sub>|\*\*|(?<!\w)_|_(?!\w)|<br ?/?>|[`$\x02]", " " * 0, text.replace("<br>", " "))
    text = re.sub(r"[⁰¹²³⁴-⁹⁻ᵃᵇᶜ]+", lambda match: "^" + match[0].translate(_RAISED), text)
    text = re.sub(r"\^\{([^}]*)\}", r"^\1", text.translate(_LOWERED))
    text = unicodedata.normalize("NFKC", text.replace("−", "-").replace("–", "-").replace("‐", "-").replace("·", "·"))
    return re.sub(r"\s+", " ", text).strip()


def is_cell(cell: str, text: str, mark: str) -> bool:
    """Whether a cell was read: its text, and its mark nowhere or set apart."""
    cell, text = plain(cell).replace("\\", ""), plain(text)
    if cell == text or cell.replace("- ", "").replace(" ", "") == text.replace(" ", ""):
        return True
    apart = r"(?:\s|\^|\[|\()" + ("*" if mark in "*†" else "+")
    return bool(mark) and re.fullmatch(rf"{re.escape(text)}{apart}\(?\[?\^?{re.escape(mark)}[\])]*", cell) is not None


def is_in_grid(grid: Grid, cell: Mapping[str, Any]) -> bool:
    """Whether a table has a cell in its row, below its names; blanks are filled from above and from the left."""
    names, keys = cell["names"], cell["keys"]
    above: list[str] = []
    last: list[str] = []
    for row in grid:
        width = max(len(row), len(above))
        filled = [plain(text) or (last[i] if i < len(keys) and i < len(last) else "") for i, text in enumerate(row)]
        if all(any(plain(key) == text for text in filled) for key in keys):
            for column, read_cell in enumerate(row):
                over = above[column] if column < len(above) else ""
                if is_cell(read_cell, cell["text"], cell["mark"]) and all(plain(name) in over for name in names):
                    return True
        spread, before = [], ""
        for text in [*row, *[""] * (width - len(row))]:
            before = plain(text) or before
            spread.append(f"{plain(text)} {before}")
        above = [f"{a} {b}" for a, b in zip([*above, *[""] * (width - len(above))], spread, strict=True)]
        last = filled
    return False


def is_in_rows(rows: Sequence[Row], cell: Mapping[str, Any]) -> bool:
    """Whether one of our rows has a cell under its names."""
    for row in rows:
        if all(any(is_cell(value, key, "") for _, value in row) for key in cell["keys"]):
            for name, value in row:
                if is_cell(value, cell["text"], cell["mark"]) and all(
                    plain(name_part) in plain(name) for name_part in cell["names"]
                ):
                    return True
    return False


@dataclass
class Reading:
    """What a tool made of a file."""

    text: str
    ms: float
    grids: list[Grid] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    error: str = ""


def read_by_us(path: Path) -> Reading:
    data = path.read_bytes()
    start = time.perf_counter()
    document = parse_file(path.name, data)
    ms = 1000 * (time.perf_counter() - start)
    texts = [paragraph.text for section in document.sections for paragraph in section.paragraphs]
    rows = [row for text in texts for line in text.split("\n") if (row := read_row(line)) is not None]
    return Reading("\n".join(texts), ms, rows=rows)


def score(truth: Mapping[str, Any], reading: Reading) -> tuple[list[str], int, list[str], int]:
    """Cells that are not right and how many there are, and the same of facts."""
    cells = truth.get("cells", ())
    wrong = [
        f"{' '.join(cell['keys'])} · {', '.join(cell['names'])}: {cell['text']}"
        for cell in cells
        if not (is_in_rows(reading.rows, cell) or any(is_in_grid(grid, cell) for grid in reading.grids))
    ]
    text = plain(reading.text)
    facts = truth.get("facts", ())
    missed = [
        fact["name"]
        for fact in facts
        if not all(re.search(pattern, text) for pattern in fact["must"])
        or any(re.search(pattern, text) for pattern in fact["must_not"])
    ]
    return wrong, len(cells), missed, len(facts)


@dataclass
class Share:
    """Right cells and facts of a tool."""

    n_cells: int = 0
    n_cells_right: int = 0
    n_facts: int = 0
    n_facts_right: int = 0
    ms: list[float] = field(default_factory=list)  # per page, of every file


def measure_made(work: Path, show: bool) -> bool:
    """Make files, read them by us and by the others, and print a row per format and tool."""
    python = make_environment(work)
    made = work / "made"
    shutil.rmtree(made, ignore_errors=True)
    subprocess.run([python, "-u", str(HERE / "extraction_made.py"), str(made)], check=True)
    truth: dict[str, dict[str, Any]] = json.loads((made / "made.json").read_text())
    command = [python, str(HERE / "extraction_peers.py"), *(str(made / name) for name in truth)]
    shares: dict[tuple[str, str], Share] = defaultdict(Share)
    by_writer: dict[str, Share] = defaultdict(Share)

    def add(tool: str, name: str, reading: Reading) -> None:
        wrong, n_cells, missed, n_facts = score(truth[name], reading)
        kind = kind_of(Path(name))
        counted = [shares[kind, tool], *([by_writer[name.partition("_")[2]]] if tool == "kohaku_ray" else [])]
        for share in counted:
            share.n_cells, share.n_cells_right = share.n_cells + n_cells, share.n_cells_right + n_cells - len(wrong)
            share.n_facts, share.n_facts_right = share.n_facts + n_facts, share.n_facts_right + n_facts - len(missed)
            share.ms.append(reading.ms / n_pages[name])
        print(
            f"{name}: {tool}: {n_cells - len(wrong)} of {n_cells} cells, {n_facts - len(missed)} of {n_facts} facts, "
            f"{reading.ms / n_pages[name]:.1f} ms per page{f', {reading.error}' * bool(reading.error)}",
            flush=True,
        )
        if show and tool == "kohaku_ray":
            for what in (*wrong, *missed):
                print(f"{name}: not right: {what}")

    n_pages = {name: count_pages(made / name) for name in truth}
    read_by_us(made / next(name for name in truth if name.endswith(".pdf")))  # imports
    for name in truth:
        add("kohaku_ray", name, read_by_us(made / name))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as peers:
        for line in peers.stdout or ():
            reply = json.loads(line)
            name, tool = reply.pop("file"), reply.pop("tool")
            add(tool, name, Reading(**reply))
    if peers.returncode:
        raise SystemExit(f"extraction_peers.py ended with exit code {peers.returncode}: its table would be in part.")
    print("\n| format | tool | cells right | of | facts right | of | ms per page (median) |")
    print("|---|---|---|---|---|---|---|")
    for (kind, tool), share in sorted(shares.items()):
        print_share(f"{kind} | {tool}", share)
    print("\n| written by | cells right | of | facts right | of | ms per page (median) |")
    print("|---|---|---|---|---|---|")
    for writer, share in by_writer.items():
        print_share(writer, share)
    ours = {kind: share.n_cells_right / share.n_cells for (kind, tool), share in shares.items() if tool == "kohaku_ray"}
    is_ahead = all(
        share.n_cells_right / share.n_cells < ours[kind]
        for (kind, tool), share in shares.items()
        if tool != "kohaku_ray"
    )
    return min(ours.values()) >= MIN_CELLS and is_ahead


def print_share(name: str, share: Share) -> None:
    cells, facts = (
        f"{right / n:.3f} | {n}" if n else " | "
        for right, n in ((share.n_cells_right, share.n_cells), (share.n_facts_right, share.n_facts))
    )
    print(f"| {name} | {cells} | {facts} | {median(share.ms):.1f} |")


def count_pages(path: Path) -> int:
    if path.suffix != ".pdf":
        return 1
    import pymupdf

    with pymupdf.open(path) as file:
        return int(file.page_count)


def make_environment(work: Path) -> str:
    """Install the other extractors and the writers of the made files apart from ours; returns their Python."""
    python = work / "peers" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(work / "peers")], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *PEERS, *WRITERS], check=True)
    return str(python.absolute())


if __name__ == "__main__":
    sys.exit(main())
