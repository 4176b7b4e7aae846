"""Draw documentation of Debian packages by a seed, with questions about it, for `extraction.py --draw`.

No file is chosen by hand: packages are those named ``*-doc`` and ``r-cran-*``, shuffled by the seed, of which PDFs and
HTML pages are taken until there are enough. Cells and sentences to look for are read from them by other programs:
pdftotext, selectolax. `draw_markup` takes of them pages with tables and with formulas, Markdown and reStructuredText.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import shutil
import subprocess
import sys
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

WANTED = {".pdf": 36, ".html": 28}  # files of a draw
MAX_PER_PACKAGE = 4  # of a kind: else one package decides
MAX_PACKAGES = 120
MAX_DEB_BYTES, MAX_HTML_BYTES, MAX_PAGES = 20_000_000, 600_000, 80
MAX_CELLS, MAX_SENTENCES = 12, 6  # questions of a file

MARKUP_WANTED = {"table": 72, "mathml": 16, "tex": 16, ".rst": 28, ".md": 28}  # a page with a formula may have tables
MAX_MARKUP_PACKAGES, MAX_LOOKED_AT = 400, 80  # packages; files of a package that are looked at
AT_ONCE = 40  # packages of a download

Question = dict[str, Any]  # kind, file, value, and row and column, sentence or formula


def draw(seed: int, work: Path) -> tuple[list[Path], list[Question]]:
    """The files of a draw and its questions; those of a seed are fetched once."""
    return _drawn_once(seed, work / f"draw{seed}", fetch_files)


def draw_markup(seed: int, work: Path) -> tuple[list[Path], list[Question]]:
    """The files of a draw of HTML, Markdown and reStructuredText, likewise."""
    return _drawn_once(seed, work / f"markup{seed}", fetch_markup)


def _drawn_once(
    seed: int, directory: Path, fetch: Callable[[random.Random, Path], Iterator[str]]
) -> tuple[list[Path], list[Question]]:
    listed = directory / "questions.json"
    if not listed.exists():
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        chance = random.Random(seed)
        files = sorted(fetch(chance, directory))
        questions: list[Question] = []
        for name in files:
            path = directory / name
            for kind, read, most in _ASKED.get(path.suffix, ()):
                drawn = list(read(path))
                chance.shuffle(drawn)
                questions += [{"kind": f"{path.suffix[1:]} {kind}", "file": name, **q} for q in drawn[:most]]
        listed.write_text(json.dumps({"files": files, "questions": questions}, indent=1))
    saved = json.loads(listed.read_text())
    return [directory / name for name in saved["files"]], saved["questions"]


def fetch_files(chance: random.Random, directory: Path) -> Iterator[str]:
    """Download packages until there are enough PDFs and pages; yields the names of the files, below the directory."""
    names = subprocess.run(["apt-cache", "pkgnames"], capture_output=True, text=True, check=True).stdout.split()
    families = [sorted(name for name in names if is_in(name)) for is_in in (_is_vignette, lambda n: n.endswith("-doc"))]
    for family in families:
        chance.shuffle(family)
    left = dict(WANTED)
    packages = filter(None, chain.from_iterable(zip_longest(*families)))
    n_fetched = 0
    for package in packages:
        if not any(left.values()) or n_fetched == MAX_PACKAGES:
            return
        if not left[".html" if package.endswith("-doc") else ".pdf"]:
            continue
        n_fetched += 1
        taken = dict.fromkeys(WANTED, 0)
        for path in sorted(_unpack(package, directory), key=lambda _: chance.random()):
            if left[path.suffix] and taken[path.suffix] < MAX_PER_PACKAGE:
                name = f"{package}-{'-'.join(path.relative_to(directory / 'unpacked').parts[3:])}"
                shutil.copy(path, directory / name)
                left[path.suffix] -= 1
                taken[path.suffix] += 1
                yield name
        shutil.rmtree(directory / "unpacked")


def fetch_markup(chance: random.Random, directory: Path) -> Iterator[str]:
    """Download documentation until there are enough files of every kind; yields their names, below the directory.

    Every other is one with vignettes; of those whose names begin with one word, as ``libghc-`` of a quarter of all
    documentation, one is taken in turn.
    """
    names = subprocess.run(["apt-cache", "pkgnames"], capture_output=True, text=True, check=True).stdout.split()
    families: dict[str, list[str]] = defaultdict(list)
    for name in sorted(name for name in names if name.endswith("-doc")):
        families[name.partition("-")[0]].append(name)
    for family in families.values():
        chance.shuffle(family)
    in_turn = chance.sample(list(families.values()), len(families))
    vignettes = sorted(filter(_is_vignette, names))
    chance.shuffle(vignettes)
    in_turns = filter(None, chain.from_iterable(zip_longest(*in_turn)))
    packages = list(filter(None, chain.from_iterable(zip_longest(vignettes, in_turns))))
    left = dict(MARKUP_WANTED)
    for start in range(0, MAX_MARKUP_PACKAGES, AT_ONCE):
        if not any(left.values()):
            return
        unpacked = directory / "unpacked"
        for file in _download(packages[start : start + AT_ONCE], directory / "packages"):
            shutil.rmtree(unpacked, ignore_errors=True)
            subprocess.run(["dpkg-deb", "-x", str(file), str(unpacked)], check=True)
            package = file.name.partition("_")[0]
            taken = dict.fromkeys(MARKUP_WANTED, 0)
            files = sorted(_readable(unpacked), key=lambda _: chance.random())
            for path in files[:MAX_LOOKED_AT]:
                kinds = _markup_kinds(path)
                kind = next((kind for kind in kinds if left[kind] and taken[kind] < MAX_PER_PACKAGE), None)
                if kind is not None:
                    name = f"{package}-{'-'.join(path.relative_to(unpacked).parts[3:])}"
                    name = name.removesuffix(".txt") if path.suffix == ".txt" else name
                    shutil.copy(path, directory / name)
                    left[kind] -= 1
                    taken[kind] += 1
                    yield name
        shutil.rmtree(unpacked, ignore_errors=True)
        shutil.rmtree(directory / "packages")


def _download(packages: Sequence[str], directory: Path) -> list[Path]:
    """Packages that are not too large, in the order of their names."""
    directory.mkdir()
    command = ["apt-cache", "show", "--no-all-versions", *packages]
    said = subprocess.run(command, capture_output=True, text=True).stdout
    sizes = re.findall(r"^Package: (\S+)$.*?^Size: (\d+)$", said, re.MULTILINE | re.DOTALL)
    small = [package for package, size in sizes if int(size) <= MAX_DEB_BYTES]
    if small:
        subprocess.run(["apt-get", "download", "-qq", *small], cwd=directory, check=False, capture_output=True)
    return sorted(directory.glob("*.deb"))


_TEX = re.compile(r"\\\((.+?)\\\)|\\\[(.+?)\\\]|(?<!\$)\$\$([^$]+)\$\$", re.DOTALL)


def _markup_kinds(path: Path) -> Iterator[str]:
    """What a file may be drawn as, the rarest first."""
    if not 500 < path.stat().st_size < MAX_HTML_BYTES:
        return
    if path.name.endswith((".rst", ".rst.txt")):
        yield ".rst"
    elif path.suffix == ".md":
        yield ".md"
    elif path.suffix == ".html":
        source = path.read_bytes().decode("utf-8", "replace")
        if re.search(r"<(?:\w+:)?math\b", source):
            yield "mathml"
        if next(page_formulas(path), None) is not None:
            yield "tex"
        if "<table" in source and next(chain(html_cells(path), spanned_cells(path)), None) is not None:
            yield "table"


def _is_vignette(name: str) -> bool:
    return name.startswith("r-cran-")


def _readable(unpacked: Path) -> Iterator[Path]:
    """Files in formats that are drawn."""
    for file in sorted(unpacked.rglob("*")):
        if not file.is_file() or file.is_symlink():
            continue
        if file.name.endswith((".pdf.gz", ".html.gz", ".rst.gz", ".rst.txt.gz", ".md.gz")):
            file = file.with_suffix("")
            file.write_bytes(gzip.decompress(file.with_name(f"{file.name}.gz").read_bytes()))
        if file.suffix in (".pdf", ".html", ".rst", ".md") or file.name.endswith(".rst.txt"):
            yield file


def _unpack(package: str, directory: Path) -> Iterator[Path]:
    """The PDFs and pages of a package that are neither too long nor without text."""
    unpacked = directory / "unpacked"
    unpacked.mkdir(exist_ok=True)
    said = subprocess.run(["apt-cache", "show", "--no-all-versions", package], capture_output=True, text=True)
    size = re.search(r"^Size: (\d+)", said.stdout, re.MULTILINE)
    if size is None or int(size[1]) > MAX_DEB_BYTES:
        return
    subprocess.run(["apt-get", "download", "-qq", package], cwd=unpacked, check=False, capture_output=True)
    for file in unpacked.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", file.name, "."], cwd=unpacked, check=True)
    for file in _readable(unpacked):
        if file.suffix == ".html" and 2000 < file.stat().st_size < MAX_HTML_BYTES:
            yield file
        elif file.suffix == ".pdf":
            said = subprocess.run(["pdfinfo", str(file)], capture_output=True, text=True, errors="replace")
            pages = re.search(r"^Pages: +(\d+)", said.stdout, re.MULTILINE)
            if pages is not None and int(pages[1]) <= MAX_PAGES and len(run_text(file).split()) > 100:
                yield file


def run_text(path: Path, *options: str) -> str:
    """Text of a PDF by pdftotext."""
    command = ["pdftotext", *options, str(path), "-"]
    return subprocess.run(command, capture_output=True, timeout=300).stdout.decode("utf-8", "replace")


_CELL = re.compile(r"\S(?:.*?\S)?(?=\s{2,}|\s*$)")
_NUMBER = re.compile(r"[-+−]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?%?")
_WORD = re.compile(r"[A-Za-z]{2,}")


def _one_line(text: str) -> str:
    return " ".join(text.replace("\u2018", "'").replace("\u2019", "'").split())


def _is_asked(text: str) -> bool:
    """Whether it is a number of two digits or more."""
    return _NUMBER.fullmatch(text) is not None and len(re.sub(r"\D", "", text)) >= 2


def pdf_cells(path: Path) -> Iterator[Question]:
    """Numbers of rows below a row of words that has a name over each, by the layout that pdftotext keeps."""
    for page in run_text(path, "-layout").split("\f"):
        rows = [[(m.start(), m.end(), m[0]) for m in _CELL.finditer(line)] for line in page.split("\n") if line.strip()]
        start = 0
        while start < len(rows):
            end = start
            while end < len(rows) and _is_row(rows[end]):
                end += 1
            if end - start >= 2:
                names = next(
                    (above for above in rows[max(0, start - 2) : start][::-1] if len(above) > 1 and not _has(above)),
                    None,
                )
                if names is not None and len(rows[start]) - 1 <= len(names) <= len(rows[start]):
                    for row in rows[start:end]:
                        yield from _cells_of(row, names)
            start = max(end, start + 1)


def _has(row: Sequence[tuple[int, int, str]]) -> int:
    return sum(_NUMBER.fullmatch(cell[2]) is not None for cell in row)


def _is_row(row: Sequence[tuple[int, int, str]]) -> bool:
    return len(row) >= 3 and _has(row[1:]) >= 2 and not _has(row[:1]) and _WORD.search(row[0][2]) is not None


def _cells_of(row: Sequence[tuple[int, int, str]], names: Sequence[tuple[int, int, str]]) -> Iterator[Question]:
    for left, right, value in row[1:]:
        over = [name for a, b, name in names if min(right, b) > max(left, a)]
        if not _is_asked(value) or len(over) != 1 or sum(cell[2] == value for cell in row) > 1:
            continue
        if _WORD.search(over[0]) and not re.search(r"\d", over[0]) and len(over[0].split()) <= 4:
            yield {"row": _one_line(row[0][2]), "column": _one_line(over[0]), "value": value}


_ONLY_NUMBER = re.compile(r"(?<![\w.,(=-])\d[\d,]*(?:\.\d+)?(?![\w,=)]|\.\d)")
_LABELLED = re.compile(r"(?:Figure|Table|Section|Chapter|Equation|page|version|http|\[)\s*$")


def pdf_sentences(path: Path) -> Iterator[Question]:
    """Sentences of prose with one number in them."""
    for block in re.split(r"\n\s*\n", run_text(path).replace("\f", "\n\n")):
        paragraph = _one_line(re.sub(r"(\w)-\n(\w)", r"\1\2", block))
        for sentence in re.split(r"(?<=[a-z)]\.)\s+(?=[A-Z])", paragraph):
            found = list(_ONLY_NUMBER.finditer(sentence))
            is_sentence = 70 < len(sentence) < 260 and sentence[0].isupper() and sentence.endswith(".")
            if not is_sentence or len(found) != 1 or len(_WORD.findall(sentence)) < 10:
                continue
            value = found[0][0]
            is_year = re.fullmatch(r"(?:19|20)\d\d", value) is not None
            if _is_asked(value) and not is_year and not _LABELLED.search(sentence[: found[0].start()]):
                yield {"sentence": sentence, "value": value}


def html_cells(path: Path) -> Iterator[Question]:
    """Numbers of tables without spans, each under a name."""
    from selectolax.lexbor import LexborHTMLParser

    tree = LexborHTMLParser(path.read_bytes().decode("utf-8", "replace"))
    for table in tree.css("table"):
        nodes = [row.css("td, th") for row in table.css("tr")]
        rows = [[_one_line(cell.text()) for cell in row] for row in nodes]
        spans = any("colspan" in cell.attributes or "rowspan" in cell.attributes for row in nodes for cell in row)
        if len(rows) < 3 or spans or len(rows[0]) < 2 or any(len(row) != len(rows[0]) for row in rows):
            continue
        if any(map(_NUMBER.fullmatch, rows[0])):
            continue
        for row in rows[1:]:
            for name, value in zip(rows[0][1:], row[1:], strict=True):
                is_named = _WORD.search(row[0]) and _WORD.search(name) and len(row[0]) < 60
                if is_named and _is_asked(value) and row.count(value) == 1:
                    yield {"row": row[0], "column": name, "value": value}


def spanned_cells(path: Path) -> Iterator[Question]:
    """Numbers of tables with spans: each under all names over it, at every place that it spans."""
    from selectolax.lexbor import LexborHTMLParser

    tree = LexborHTMLParser(path.read_bytes().decode("utf-8", "replace"))
    for table in tree.css("table"):
        if table.css_first("[colspan], [rowspan]") is None or table.css_first("table table") is not None:
            continue
        grid: dict[tuple[int, int], tuple[str, bool]] = {}
        rows = table.css("tr")
        for i, row in enumerate(rows):
            column = 0
            for cell in row.css("td, th"):
                while (i, column) in grid:
                    column += 1
                wide, high = (_span(cell.attributes.get(key)) for key in ("colspan", "rowspan"))
                for k in range(wide * high):
                    grid[i + k // wide, column + k % wide] = _one_line(cell.text()), cell.tag == "th"
                column += wide
        width = 1 + max((column for _, column in grid), default=-1)
        lines = [[grid.get((i, column), ("", False)) for column in range(width)] for i in range(len(rows))]
        n_head = next((i for i, line in enumerate(lines) if not all(marked for _, marked in line)), len(lines))
        for line in lines[n_head:] if 0 < n_head < 5 else ():
            for column in range(1, width):
                over = list(dict.fromkeys(names[column][0] for names in lines[:n_head]))
                value = line[column][0]
                is_named = _WORD.search(line[0][0]) and _WORD.search(" ".join(over)) and len(line[0][0]) < 60
                if is_named and _is_asked(value) and sum(text == value for text, _ in line) == 1:
                    yield {"row": line[0][0], "column": " ".join(over), "value": value}


def _span(written: str | None) -> int:
    return min(int(written), 50) if written and written.isdecimal() and int(written) else 1


def markdown_cells(path: Path) -> Iterator[Question]:
    """Numbers of tables between bars, each under a name."""
    names: list[str] = []
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        cells = [_one_line(re.sub(r"[*`]", "", cell)) for cell in line.strip().strip("|").split("|")]
        if len(cells) < 2 or (names and len(cells) != len(names)):
            names = []
        elif not names:
            names = cells
        else:
            for name, value in zip(names[1:], cells[1:], strict=True):
                if _WORD.search(cells[0]) and _WORD.search(name) and _is_asked(value) and cells.count(value) == 1:
                    yield {"row": cells[0], "column": name, "value": value}


_LEAVES = ("mi", "mn", "mo", "mtext")
_FORMULA_WORD = re.compile(r"\d+(?:[.,]\d+)*|[^\W\d_]")


def mathml_formulas(path: Path) -> Iterator[Question]:
    """Formulas in MathML: what their leaves hold, and which number or letter has which power."""
    from selectolax.lexbor import LexborHTMLParser

    source = re.sub(r"(</?)\w+:(?=m[a-z]|annotation|semantics)", r"\1", path.read_bytes().decode("utf-8", "replace"))
    for math in LexborHTMLParser(source).css("math"):
        leaves = [_one_line(leaf.text()) for leaf in math.css(", ".join(_LEAVES))]
        powers = []
        for power in math.css("msup"):
            parts = [part for part in power.iter() if part.tag in ("mi", "mn")]
            if len(parts) == 2 and sum(1 for _ in power.iter()) == 2:
                powers.append([_one_line(part.text()) for part in parts])
        words = [word for leaf in leaves for word in _FORMULA_WORD.findall(normal(leaf))]
        if len(words) > 2:
            yield {"formula": words, "powers": powers, "value": " ".join(leaves)[:80]}


_PICTURES = "img.math, img.latex, img.formulaInl, img.formulaDsp"  # of Sphinx, LaTeX2HTML and Doxygen


def page_formulas(path: Path) -> Iterator[Question]:
    """Formulas that a page holds in TeX, for MathJax or as the text of a picture: their numbers and powers."""
    from selectolax.lexbor import LexborHTMLParser

    tree = LexborHTMLParser(path.read_bytes().decode("utf-8", "replace"))
    for node in tree.css("script, pre, code, style"):
        if node.parent is not None:
            node.decompose()
    pictures = [
        node.attributes.get("alt") or "" for node in tree.css("img.math, img.latex, img.formulaInl, img.formulaDsp")
    ]
    text = tree.body.text() if tree.body is not None else ""
    for tex in (*pictures, *(next(filter(None, match)) for match in _TEX.findall(text))):
        words = re.findall(r"\d+(?:[.,]\d+)*", tex)
        powers = re.findall(r"(?<![\w\\}])(\w)\^\{?(\d+)\b\}?", tex)
        if len(words) > 1 and len(tex) < 400:
            yield {"formula": words, "powers": powers, "value": _one_line(tex)[:80]}


_ASKED: Mapping[str, Sequence[tuple[str, Callable[[Path], Iterator[Question]], int]]] = {
    ".pdf": (("cell", pdf_cells, MAX_CELLS), ("sentence", pdf_sentences, MAX_SENTENCES)),
    ".html": (
        ("cell", html_cells, MAX_CELLS),
        ("spanned cell", spanned_cells, MAX_CELLS),
        ("MathML", mathml_formulas, MAX_CELLS),
        ("TeX", page_formulas, MAX_CELLS),
    ),
    ".md": (("cell", markdown_cells, MAX_CELLS),),
}

MAX_ROW_CHARS = 400  # longest line that is one row: farther from its name a value is not read with it


def normal(text: str) -> str:
    """A text in one spelling of quotes, signs and spaces, and of case."""
    text = unicodedata.normalize("NFKC", text).translate(str.maketrans("−–‐’‘“”", "---''\"\""))
    return " ".join(text.split()).casefold()


def _tokens(text: str) -> list[str]:
    return re.findall(r"[a-zα-ω]{2,}|\d[\d.,]*\d|\d", normal(text))


def found(question: Question, paragraphs: Sequence[Sequence[str]]) -> int:
    """2: a line has the value with the names of its row and its column; 1: its row's alone, the other near; 0: none.

    Args:
        question: A cell, or a sentence, whose words a line must have with its number.
        paragraphs: The lines of each, as `normal` writes them; a line is a sentence or a table's row.
    """
    value = normal(question["value"]).strip(",.")
    has_value = re.compile(rf"(?<![\w.]){re.escape(value)}(?!\w|[.,]\d)")
    best = 0
    if "sentence" in question:
        words = [word for word in _tokens(question["sentence"]) if len(word) > 2]
        for lines in paragraphs:
            text = " ".join(lines)
            if has_value.search(text) and sum(word in text for word in words) >= 0.85 * len(words):
                return 2
        return 0
    if "formula" in question:
        return _found_formula(question, paragraphs)
    row, column = _tokens(question["row"]), _tokens(question["column"])
    for lines in paragraphs:
        for line in lines:
            if value in line and has_value.search(line) and all(word in line for word in row):
                if len(line) < MAX_ROW_CHARS and all(word in line for word in column):
                    return 2
                best = max(best, int(all(word in " ".join(lines) for word in column)))
    return best


def _found_formula(question: Question, paragraphs: Sequence[Sequence[str]]) -> int:
    """2: a paragraph has all numbers and letters, and the powers with their sign; 1: the numbers and letters alone."""
    words, best = Counter(question["formula"]), 0
    powers = [re.compile(rf"{re.escape(normal(a))}\s?\^\(?{re.escape(normal(b))}") for a, b in question["powers"]]
    for lines in paragraphs:
        text = " ".join(lines)
        if not words - Counter(_FORMULA_WORD.findall(text)):
            if all(power.search(text) for power in powers):
                return 2
            best = 1
    return best


def peers() -> list[str]:
    """The other tools that are installed, pdftotext among them."""
    return ["pdftotext", *(name for name in ("pymupdf4llm", "markitdown") if find_spec(name) is not None)]


_READ_BY = """
import sys, time, json, warnings
warnings.simplefilter("ignore")
if sys.argv[1] == "pymupdf4llm":
    from pymupdf4llm import to_markdown as read
else:
    from markitdown import MarkItDown
    def read(path): return MarkItDown().convert(path).text_content
start = time.process_time()
text = read(sys.argv[2])
print("\\0" + json.dumps([text, 1000 * (time.process_time() - start)]))
"""


def read_by_peer(tool: str, path: Path, timeout_s: float) -> tuple[str, list[list[str]], float]:
    """Text of a PDF by another tool, the lines of its paragraphs with each row under its names, and CPU milliseconds.

    Raises:
        subprocess.SubprocessError: It failed, or took longer.
    """
    if tool == "pdftotext":
        start = sum(os.times()[2:4])
        text = subprocess.run(
            ["pdftotext", "-layout", str(path), "-"], capture_output=True, check=True, timeout=timeout_s
        ).stdout.decode("utf-8", "replace")
        ms = 1000 * (sum(os.times()[2:4]) - start)
    else:
        command = [sys.executable, "-c", _READ_BY, tool, str(path)]
        said = subprocess.run(command, capture_output=True, check=True, timeout=timeout_s, text=True)
        text, ms = json.loads(said.stdout.rpartition("\0")[2])
    return text, [list(_rows_with_names(block.split("\n"))) for block in re.split(r"\n\s*\n", text)], ms


def _rows_with_names(lines: Sequence[str]) -> Iterator[str]:
    """Lines of a paragraph; rows of a table of Markdown with the names in its first."""
    names: list[str] = []
    for line in lines:
        if not line.startswith("|"):
            names = []
            yield line
            continue
        cells = [cell.strip(" *_") for cell in line.strip("|").split("|")]
        if names and not re.fullmatch(r"[\s|:-]+", line):
            yield "; ".join(f"{name}: {cell}" for name, cell in zip(names, cells, strict=False))
        names = names or cells
