"""Read HTML: what a reader sees of a page, its headings as sections, its tables row by row."""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from kohaku_ray.documents.markup.formulas import write_delimited, write_katex, write_mathml, write_tex
from kohaku_ray.documents.model import Attachment, Document, Paragraph
from kohaku_ray.documents.text.content import decode_text, default_doc_id, even_line_ends, well_formed
from kohaku_ray.documents.text.plain import Draft, finish, heading_path, list_paragraphs
from kohaku_ray.documents.text.raised import END, LOWER, MARK, RAISE, is_note_link, plain_maths, write_scripts
from kohaku_ray.documents.text.sentences import split_lines, split_sentences, whole_text, words_of
from kohaku_ray.documents.text.tables import (
    MAX_HEADER_ROWS,
    Hints,
    TableCell,
    cell_texts,
    fill_spans,
    header_rows,
    is_headed,
    is_wide,
    name_columns,
    write_rows,
)
from kohaku_ray.errors import DataError
from kohaku_ray.records import pluralize

_CHARSET = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([\w.:-]+)", re.IGNORECASE)


def decode_html(name: str, data: bytes) -> tuple[str, tuple[str, ...]]:
    """Decode a page by its declared charset, else as `decode_text` does."""
    declared = _CHARSET.search(data[:4096])
    is_marked = data.startswith((codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    if declared is None or is_marked:
        return decode_text(name, data)
    charset = declared[1].decode("ascii", "replace")
    try:
        # browsers read declared Latin-1 as Windows-1252, and as UTF-8 a declared UTF-16 whose tags are ASCII
        codec = codecs.lookup({"iso-8859-1": "cp1252", "latin1": "cp1252"}.get(charset.lower(), charset)).name
        if codec.startswith(("utf", "ascii")) or b"\0" in data:
            return decode_text(name, data)  # which names the place of a NUL
        return even_line_ends(data.decode(codec, "replace")), ()
    except LookupError:
        raise DataError(f"{name} says its charset is {charset!r}, which is unknown: save it as UTF-8.") from None


MAX_DEPTH = 2000  # most tags open at a time: the HTML standard's algorithm takes time quadratic in them
MAX_REOPENED = 1_000_000  # most elements made by reopening formatting tags: each block reopens all that were left open
_TAG = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9-]*)")
_FORMATTING = words_of("a b big code em font i nobr s small strike strong tt u")
_OPTIONAL_END = words_of(
    """p li dd dt tr td th thead tbody tfoot option optgroup colgroup caption rp rt html head body
    area base br col embed hr img input link meta source track wbr param path"""
)


def check_depth(name: str, source: str) -> None:
    """Reject a page whose tags are nested, or left open, beyond what the parser reads in bounded time."""
    if source.count("<") <= MAX_DEPTH // 2:
        return
    depth = n_open = n_reopened = 0
    for closing, name_of_tag in _TAG.findall(source):
        tag = name_of_tag.lower()
        if tag in _FORMATTING:
            n_open = max(0, n_open - 1) if closing else n_open + 1
        elif not closing:
            n_reopened += n_open
            if n_reopened > MAX_REOPENED:
                raise DataError(
                    f"{name} leaves tags like <b> and <font> open: they are reopened more than {MAX_REOPENED:,} times "
                    f"(<{tag}> is the last): close them (HTML Tidy does so)."
                )
        if tag in _OPTIONAL_END:
            continue
        depth = max(0, depth - 1) if closing else depth + 1
        if depth > MAX_DEPTH:
            raise DataError(
                f"{name} is nested too deep: more than {MAX_DEPTH:,} tags are open at a time (<{name_of_tag}> is "
                "the last): close them (HTML Tidy does so)."
            )


MAX_BYTES = 64 * 2**20  # largest page, in bytes; its tree takes about ten times as much memory
MAX_CELL_CHARS = 500  # a table with a longer cell is page layout: its cells become paragraphs
MAX_SPAN = 100  # most columns or rows that a cell is taken to span
_INVISIBLE = re.compile(
    r"(?:display\s*:\s*none|visibility\s*:\s*hidden|text-decoration[\w-]*\s*:[^;]*line-through)", re.IGNORECASE
)
_WHITE = re.compile(
    r"(?<![\w-])color\s*:\s*(?:white|#fff(?:fff)?|rgba?\(\s*255\s*,\s*255\s*,\s*255)(?!\w)", re.IGNORECASE
)
_GROUND = re.compile(r"background|bgcolor|rel=[\"']?stylesheet", re.IGNORECASE)  # may be of another colour than white
_SPACES = re.compile(r"\s+")
_MARKERS = re.compile("[\x00-\x04]")  # which mark indents, raised and lowered characters while a page is read
_MATHS = re.compile(
    r"(?<![\w-])(?:(?P<tex>katex(?:-display)?|mwe-math-element)|(?P<jax>MathJax\w*)|"
    r"(?P<image>mwe-math-fallback[\w-]*|latex|tex|math|imgmath))(?![\w-])"
)
_ITEM = re.compile(r"(?:-|\d+\.) ")
_NOTE = re.compile(r"\b(?:foot|end)?note-?ref|\bfootnote|\breference\b|\bcitation\b", re.IGNORECASE)
_CODE = words_of("code kbd samp tt pre")
_PREFIXED_MATHS = re.compile(r"(</?)\w+:(?=m[a-z]|semantics|annotation|none)")
_SHIFTED = re.compile(r"vertical-align\s*:\s*(sub|sup)", re.IGNORECASE)
_ROLES = {
    "table": "table",
    "grid": "table",
    "row": "tr",
    "cell": "td",
    "gridcell": "td",
    "columnheader": "th",
    "rowheader": "th",
}
"""Elements that a ``<div>`` or ``<span>`` with such a role stands for."""
_NOT_TEXT = re.compile("[\x00-\x08\x0b-\x1f\x7f\u00ad\u200b\ufeff]")
_DROPPED = words_of(
    """script style noscript template nav footer svg math iframe object embed canvas video audio button select input
    textarea datalist dialog menu head del s strike"""
)
_DROPPED_ROLES = words_of("navigation banner contentinfo search menu menubar dialog alert")
_BLOCKS = words_of(
    """address article aside blockquote body center dd details div dl dt fieldset figcaption figure form h1 h2 h3 h4 h5
    h6 header hgroup hr li main ol p pre section summary table tbody td tfoot th thead tr ul caption"""
)
MIN_MENU_LINKS = 5  # fewest links of a menu
MENU_SHARE = 0.8  # least share of a menu's text that is in links
MAX_MENU_CHARS = 40  # longest mean text of a menu's links, in characters
MAX_LABEL_CHARS = 16  # longest mean text outside the links of a line that turns pages, per link: ", Previous: "
_TURNS = words_of("next prev previous up top first last contents index")  # rel of links between a document's pages
_SAYS_SOMETHING = re.compile(r"[^\W_]")
_TRACKED = words_of("a main article")
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_METADATA = {
    "description": ("description", "og:description", "dc.description"),
    "author": ("author", "article:author", "dc.creator", "citation_author"),
    "date": ("date", "article:published_time", "dc.date", "citation_publication_date"),
    "url": ("og:url",),
}
"""Metadata key, and the names of the ``<meta>`` elements that may hold it; the first one found is used."""


def parse_html(name: str, data: bytes, images: bool = False) -> Document:
    """Parse a page as a browser does, malformed tags included.

    Navigation, footers, scripts, forms and hidden elements are left out, and what frames an article: asides, headers
    without a heading, runs of short links, links to the next page. All of it stays where nothing else is there.
    Headings make sections, titled with the headings above them; a list (in parts, where it is long), a table and
    preformatted text are one paragraph each; a table's row reads ``column: value; …``, a
    definition ``term: text``. Formulas are read as `formulas` writes them, raised characters as `raised` does; deleted
    text is left out. An image is an attachment with its figure's caption, else its alternative text. Description,
    author, date and canonical URL are the metadata. With ``images`` also images without a caption are kept, with their
    address, to be read later.
    """
    if len(data) > MAX_BYTES:
        raise DataError(f"{name} has {len(data):,} bytes, at most {MAX_BYTES:,} are allowed: split it into files.")
    from selectolax.lexbor import LexborHTMLParser

    source, odd = decode_html(name, data)
    check_depth(name, source)
    if ":math" in source:  # of XHTML, which gives MathML a prefix
        source = _PREFIXED_MATHS.sub(r"\1", source)
    tree = LexborHTMLParser(source)
    is_white_page = _GROUND.search(source) is None
    reader = _Reader(images, is_white_page=is_white_page)
    if tree.body is not None:
        reader.read(tree.body)
        reader.drop_menus()
        if not any(draft.paragraphs for draft in reader.drafts):
            reader = _Reader(images, has_frame=False, is_white_page=is_white_page)
            reader.read(tree.body)
    doc_id = default_doc_id(name)
    title = _title(tree, reader) or doc_id
    dropped = (pluralize(reader.n_unseen, "hidden element"),) if reader.n_unseen else ()
    return Document(doc_id, title, finish(reader.drafts, title), _metadata(tree), odd=odd, dropped=dropped)


def fragment_paragraphs(name: str, source: str) -> list[Paragraph]:
    """Read a piece of HTML within other text: its paragraphs, lists and tables, headings as paragraphs, no images.

    Raises:
        DataError: Its tags are nested too deep.
    """
    from selectolax.lexbor import LexborHTMLParser

    check_depth(name, source)
    body = LexborHTMLParser(source).body
    if body is None:
        return []
    reader = _Reader(has_frame=False)
    reader.read(body)
    paragraphs: list[Paragraph] = []
    for draft in reader.drafts:
        if draft.headings:
            paragraphs.append(Paragraph(draft.headings[-1], split_sentences(draft.headings[-1])))
        paragraphs += [
            paragraph
            for paragraph in draft.paragraphs
            if paragraph.attachment is None or paragraph.attachment.kind != "image"
        ]
    return paragraphs


def read_fragment(name: str, source: str) -> list[Draft]:
    """Read the HTML that another format was written as, all of it; see `parse_html` for its lists and tables."""
    from selectolax.lexbor import LexborHTMLParser

    check_depth(name, source)
    reader = _Reader(has_frame=False)
    reader.read(LexborHTMLParser(f"<body>{source}").body)
    return reader.drafts


def _title(tree: Any, reader: _Reader) -> str:
    """The page's title; its only level-one heading where the title contains that (the rest names the site)."""
    node = tree.css_first("head > title")
    title = _plain(node.text()) if node is not None else ""
    headings = [draft.headings[0] for draft in reader.drafts if len(draft.headings) == 1 and draft.headings[0]]
    if headings and (not title or (len(headings) == 1 and headings[0] in title)):
        return headings[0]
    return title


def _metadata(tree: Any) -> dict[str, str]:
    """Read the metadata in the page's head."""
    given: dict[str, str] = {}
    for node in tree.css("meta[content]"):
        attributes = node.attributes
        key = (attributes.get("name") or attributes.get("property") or "").strip().lower()
        value = _plain(attributes.get("content") or "")
        if key and value:
            given.setdefault(key, value)
    metadata = {ours: next((given[key] for key in keys if key in given), "") for ours, keys in _METADATA.items()}
    canonical = tree.css_first("link[rel=canonical][href]")
    if canonical is not None:
        metadata["url"] = _plain(canonical.attributes.get("href") or "") or metadata["url"]
    return {key: value for key, value in metadata.items() if value}


def _plain(text: str) -> str:
    return _SPACES.sub(" ", _NOT_TEXT.sub("", well_formed(text))).strip()


def _shown(text: str) -> str:
    """What is shown of a page's text, on one line."""
    text = write_scripts(text)
    return _plain(text if text.isascii() else plain_maths(text))


@dataclass
class _Table:
    """A table being read: its rows, how many of the first are its head, and what the cell round it holds."""

    rows: list[list[TableCell]] = field(default_factory=list)
    caption: str = ""
    n_head: int = 0
    n_grouped: int = 0  # rows of the groups that have ended
    outer: tuple[_Table, list[str]] | None = None


class _Reader:
    """Walks the tree once, without recursion, and cuts what it sees into paragraphs."""

    def __init__(self, images: bool = False, has_frame: bool = True, is_white_page: bool = False) -> None:
        self._all_images, self._has_frame, self._is_white_page = images, has_frame, is_white_page
        self.n_unseen = 0  # elements with a text that no reader sees
        self._has_tex_scripts: bool | None = None  # None: not looked for yet
        self._terms: list[str] = []  # of a list of definitions, before the text that defines them
        self._in_term = False
        self._articles = 0  # how many <main> and <article> are open
        self._in_link = False
        self._n_links = self._n_turns = self._link_chars = self._all_chars = 0  # since the last paragraph
        # paragraphs that are links alone, by id, with their links and characters; kept, so that no id is used again
        self._linked: dict[int, tuple[Paragraph, int, int]] = {}
        self._waiting: list[Paragraph] = []  # images inside a list or table, which come after it
        self.drafts = [Draft(())]
        self._parts: list[str] = []
        self._lists: list[int | None] = []  # next number of every open list; None: bullets
        self._pre = 0
        self._table: _Table | None = None
        self._figures: list[tuple[list[Paragraph], int]] = []  # list of paragraphs and where its images begin

    def read(self, root: Any) -> None:
        """Read everything under a node."""
        node = root.first_child
        while node is not None:
            below = None
            if node.is_text_node:
                self._text(node)
            elif node.is_element_node:
                tag, attributes = node.tag, node.attributes
                if attributes:
                    tag = _acting_tag(tag, attributes)
                formula = self._note_link(node, attributes) if tag == "a" else None
                formula = formula or self._formula(root, node, tag, attributes)
                if formula is not None:
                    self._all_chars += len(formula)
                    self._parts.append(formula)
                elif attributes and self._is_unseen(attributes):
                    self.n_unseen += tag not in _DROPPED and bool(node.text().strip())
                elif not (_is_left_out(tag, attributes) or self._is_frame(node, tag, attributes)):
                    if tag in _TRACKED or attributes:
                        self._track(tag, attributes, 1)
                    self._open(node, tag, attributes)
                    below = node.first_child
                    if below is None:
                        self._close(tag, attributes)
            if below is not None:
                node = below
                continue
            while node.next is None:
                node = node.parent
                if node is None or node.mem_id == root.mem_id:
                    self._flush()
                    self._add_terms()
                    return
                tag, attributes = node.tag, node.attributes
                self._close(_acting_tag(tag, attributes) if attributes else tag, attributes)
            node = node.next

    def _is_unseen(self, attributes: Mapping[str, str | None]) -> bool:
        """Whether an element is hidden, struck through, or white on a page without any other ground."""
        style = attributes.get("style") or ""
        if "hidden" in attributes or (style and _INVISIBLE.search(style)):
            return True
        return self._is_white_page and bool(style) and _WHITE.search(style) is not None

    def drop_menus(self) -> None:
        """Remove the runs of paragraphs outside an article that are short links alone."""
        for draft in self.drafts:
            kept: list[Paragraph] = []
            for is_linked, run in groupby(draft.paragraphs, key=lambda paragraph: id(paragraph) in self._linked):
                paragraphs = list(run)
                links = [self._linked[id(paragraph)] for paragraph in paragraphs if is_linked]
                n_links, n_chars = sum(n for _, n, _ in links), sum(n for _, _, n in links)
                if n_links < MIN_MENU_LINKS or n_chars > MAX_MENU_CHARS * n_links:
                    kept += paragraphs
            draft.paragraphs = kept

    def _is_frame(self, node: Any, tag: str, attributes: Mapping[str, str | None]) -> bool:
        """Whether an element stands beside the article: an aside, or a header without a heading."""
        if not (attributes or tag in ("header", "aside")) or self._articles or not self._has_frame:
            return False
        if tag == "header":
            return node.css_first(", ".join(_HEADINGS)) is None
        return tag == "aside" or attributes.get("role") == "complementary"

    def _track(self, tag: str, attributes: Mapping[str, str | None], step: int) -> None:
        if tag == "a":
            self._in_link = step > 0 and "href" in attributes  # a place is no link
            self._n_links += self._in_link
            self._n_turns += self._in_link and not _TURNS.isdisjoint((attributes.get("rel") or "").lower().split())
        elif tag in _TRACKED or attributes.get("role") == "main":
            self._articles += step

    def _note_link(self, node: Any, attributes: Mapping[str, str | None]) -> str | None:
        """The mark of a note that is a link without raised type."""
        if not self._parts or "#" not in (attributes.get("href") or ""):
            return None
        text = node.text()
        is_mark = is_note_link(self._parts[-1], text) and node.css_first("sup") is None
        return f"{MARK}{text.strip()}{END}" if is_mark else None

    def _formula(self, root: Any, node: Any, tag: str, attributes: Mapping[str, str | None]) -> str | None:
        """A formula as text, empty where it is read elsewhere; None: the element holds none."""
        if tag == "math":
            return write_mathml(node)
        if tag == "script":
            kind = (attributes.get("type") or "").lower()
            if not kind.startswith("math/"):
                return None
            source = node.text() or ""
            if kind.startswith("math/mml"):
                return mathml_text(source)
            return source if kind.startswith("math/ascii") else write_tex(source)
        match = _MATHS.search(attributes.get("class") or "") if "class" in attributes else None
        if match is None and tag != "mjx-container":
            return None
        if match is not None and match["image"]:
            alternative = attributes.get("alt") or ""
            return write_tex(alternative) if tag == "img" and alternative.strip() else None
        if match is not None and match["jax"]:
            if self._has_tex_scripts is None:
                self._has_tex_scripts = root.css_first("script[type^='math/']") is not None
            if self._has_tex_scripts or match["jax"] == "MathJax_Preview":
                return ""
        if (math := node.css_first("math")) is not None:
            return write_mathml(math)
        if (source := attributes.get("data-mathml") or "") or (inner := node.css_first("[data-mathml]")) is not None:
            return mathml_text(source or inner.attributes["data-mathml"] or "")
        for query, key in (("[data-latex]", "data-latex"), ("img[alt]", "alt")):
            if (inner := node.css_first(query)) is not None:
                return write_tex(inner.attributes[key] or "")
        if match is not None and match["tex"] and (drawn := node.css_first(".katex-html")) is not None:
            return write_katex(drawn)
        return None

    def _text(self, node: Any) -> None:
        text = _MARKERS.sub("", node.text_content or "")
        if not self._pre and ("$" in text or "\\" in text) and node.parent.tag not in _CODE:
            text = write_delimited(text)
        if _SAYS_SOMETHING.search(text):
            self._all_chars += len(text)
            self._link_chars += len(text) if self._in_link else 0
        if self._pre:
            self._parts.append(text)
            return
        if text.isspace():
            self._parts.append(" ")
            return
        self._parts.append(_SPACES.sub(" ", text))

    def _open(self, node: Any, tag: str, attributes: Mapping[str, str | None]) -> None:
        if tag == "br":
            self._parts.append("\n")
        elif tag == "img":
            self._image(attributes)
        elif tag in ("sup", "sub"):
            self._parts.append(LOWER if tag == "sub" else MARK if _marks_a_note(node, attributes) else RAISE)
        elif tag not in _BLOCKS:
            return
        elif self._table is not None:
            if tag == "table":
                self._table = _Table(outer=(self._table, self._parts))
                self._parts = []
            elif tag == "tr":
                self._table.rows.append([])
            elif tag in ("td", "th", "caption"):
                self._parts.clear()
            elif tag != "dd":
                self._parts.append(" ")
        elif tag in ("ul", "ol"):
            if not self._lists:
                self._flush()
            self._lists.append(_whole_number(attributes, "start") if tag == "ol" else None)
        elif tag == "li":
            self._item(attributes)
        elif tag == "table":
            self._flush()
            self._table = _Table()
        elif self._lists:
            if tag != "dd":
                self._break_line()
        else:
            self._flush(at_block=True)
            self._pre += tag == "pre"
            self._in_term = self._in_term or tag == "dt"
            if tag == "figure":
                self._figures.append((self.drafts[-1].paragraphs, len(self.drafts[-1].paragraphs)))

    def _close(self, tag: str, attributes: Mapping[str, str | None]) -> None:
        if tag in _TRACKED or attributes:
            self._track(tag, attributes, -1)
        if tag in ("sup", "sub"):
            self._parts.append(END)
        if tag not in _BLOCKS:
            return
        if tag == "dt" and (self._table is not None or self._lists):
            self._parts.append(": ")
        elif self._table is not None:
            self._close_in_table(self._table, tag, attributes)
        elif tag in ("ul", "ol") and self._lists:
            self._lists.pop()
            if not self._lists:
                self._flush()
        elif self._lists:
            if tag != "li":
                self._break_line()
        elif tag in _HEADINGS:
            self._heading(_HEADINGS[tag])
        elif tag == "pre":
            self._pre = max(0, self._pre - 1)
            text = _NOT_TEXT.sub("", well_formed(write_scripts("".join(self._parts)))).strip("\n").rstrip()
            self._parts.clear()
            if text.strip():
                self._add_terms()
                self._add(Paragraph(text, whole_text(text)))
        elif tag == "dt":
            self._flush(at_block=True)
            self._in_term = False
        elif tag == "figcaption":
            self._caption()
        else:
            self._flush(at_block=True)
            if tag == "figure" and self._figures:
                self._figures.pop()
            if tag == "dl":
                self._add_terms()

    def _add_terms(self) -> None:
        """Add the terms of a list of definitions that no text follows."""
        terms, self._terms = self._terms, []
        if terms:
            text = ", ".join(terms)
            self._add(Paragraph(text, split_sentences(text)))

    def _close_in_table(self, table: _Table, tag: str, attributes: Mapping[str, str | None]) -> None:
        if tag in ("td", "th"):
            if not table.rows:
                table.rows.append([])
            spans = _span(attributes, "colspan"), _span(attributes, "rowspan") * (attributes.get("rowspan") != "0")
            table.rows[-1].append((self._taken(), *spans, tag == "th"))
        elif tag == "caption":
            table.caption = self._taken()
        elif tag in ("thead", "tbody", "tfoot"):
            n_rows = len(table.rows)
            for i in range(table.n_grouped, n_rows):  # rowspan=0: to the end of the group
                table.rows[i] = [(*cell[:2], cell[2] or n_rows - i, cell[3]) for cell in table.rows[i]]
            table.n_grouped = n_rows
            if tag == "thead":
                table.n_head = table.n_head or n_rows
        elif tag != "table":
            self._parts.append(" ")
        elif table.outer is not None:
            self._table, self._parts = table.outer
            rows = [[cell[0] for cell in row if cell[0]] for row in table.rows]
            if sum(map(bool, rows)) > 1 and max(map(len, rows)) > 1:
                self._waiting += _table_paragraphs(table)
            else:  # layout within a cell
                self._parts += [f" {text} " for row in ([table.caption], *rows) for text in row]
        else:
            self._table = None
            self._parts.clear()
            self._add_terms()
            if paragraphs := _table_paragraphs(table):
                self._add(*paragraphs)
            self._add_waiting()

    def _taken(self) -> str:
        """What has been read since the last cut, on one line."""
        text = _shown("".join(self._parts))
        self._parts.clear()
        return text

    def _break_line(self) -> None:
        if self._parts and not self._parts[-1].endswith(("\n", "- ", ". ")):
            self._parts.append("\n")

    def _item(self, attributes: Mapping[str, str | None]) -> None:
        if not self._lists:
            self._flush()
            return
        number = self._lists[-1]
        if number is not None:
            number = _whole_number(attributes, "value", number)
            self._lists[-1] = number + 1
        marker = "- " if number is None else f"{number}. "
        # NUL, which no text node holds, outlives the collapsing of white space as an inner list's indent
        self._parts.append("\n" + "\0" * 2 * (len(self._lists) - 1) + marker)

    def _lines(self) -> str:
        """What has been read, its lines trimmed and blank ones left out; an inner list keeps its indent."""
        text = write_scripts("".join(self._parts))
        lines = (text if text.isascii() else plain_maths(text)).split("\n")
        self._parts.clear()
        indents = ((len(line) - len(line.lstrip("\0")), _plain(line)) for line in lines)
        return "\n".join(" " * indent + line for indent, line in indents if line and line != "-")

    def _flush(self, at_block: bool = False) -> None:
        """End the paragraph, or at a block within the term of a definition that term, that is being read."""
        if at_block and self._in_term:
            self._terms += filter(None, [self._taken()])
        elif self._parts:
            text = self._lines()
            if text and self._terms:
                if _ITEM.match(text):
                    self._add_terms()
                else:
                    text = f"{', '.join(self._terms).removesuffix(':')}: {text}"
                    self._terms = []
            if text:
                self._add(*(Paragraph(part, split_sentences(part)) for part in list_paragraphs(text)))
        self._add_waiting()

    def _add_waiting(self) -> None:
        if self._waiting and self._table is None and not self._lists:
            self.drafts[-1].paragraphs += self._waiting
            self._waiting.clear()

    def _heading(self, level: int) -> None:
        heading = self._taken()
        self._n_links = self._n_turns = self._link_chars = self._all_chars = 0
        self._add_terms()
        if heading:
            self.drafts.append(Draft(heading_path(self.drafts[-1].headings, level, heading)))

    def _add(self, *paragraphs: Paragraph) -> None:
        # links to a document's other pages and their labels, as in Texinfo's manuals
        are_turns = self._has_frame and self._n_links == self._n_turns and self._link_chars
        if not (are_turns and self._all_chars - self._link_chars <= MAX_LABEL_CHARS * self._n_links):
            self.drafts[-1].paragraphs += paragraphs
        if not self._articles and 0 < MENU_SHARE * self._all_chars <= self._link_chars:
            counts = self._n_links, self._link_chars
            for paragraph in paragraphs:
                self._linked[id(paragraph)] = (paragraph, *counts)
                counts = 0, 0
        self._n_links = self._n_turns = self._link_chars = self._all_chars = 0

    def _image(self, attributes: Mapping[str, str | None]) -> None:
        source = (attributes.get("src") or "").strip()
        caption = _plain(attributes.get("alt") or attributes.get("title") or "")
        is_inside = self._table is not None or bool(self._lists)
        # icons and trackers; a search cannot find an image without text or figure
        if not source or not (self._all_images or (not is_inside and (caption or self._figures))):
            return
        path = None if source.startswith("data:") and not self._all_images else well_formed(source)
        attachment = Attachment("image", path, caption or None)
        paragraph = Paragraph(caption, split_sentences(caption), attachment=attachment)
        if is_inside:
            self._waiting.append(paragraph)
            return
        if "".join(self._parts).strip():
            self._flush()
        self._add(paragraph)

    def _caption(self) -> None:
        """Give a figure's caption to its image, else keep it as text."""
        caption = self._lines()
        paragraphs, start = self._figures[-1] if self._figures else ([], 0)
        for i in range(start, len(paragraphs)):
            attachment = paragraphs[i].attachment
            if caption and attachment is not None:
                attachment = Attachment(attachment.kind, attachment.path, caption)
                text = caption if attachment.kind == "image" else f"{caption}\n{paragraphs[i].text}"
                spans = split_sentences(text) if attachment.kind == "image" else split_lines(text)
                paragraphs[i] = Paragraph(text, spans, attachment=attachment)
                return
        if caption:
            self._add(Paragraph(caption, split_sentences(caption)))


def _table_paragraphs(table: _Table) -> list[Paragraph]:
    """A table as one paragraph, its rows as sentences; the cells of one that is page layout as paragraphs."""
    texts = [cell[0] for row in table.rows for cell in row if cell[0]]
    is_one_column = max((sum(bool(cell[0]) for cell in row) for row in table.rows), default=0) < 2
    is_headed = table.n_head > 0 or (len(table.rows) > 1 and _names_all(table.rows[0]))
    if is_one_column or (not is_headed and max(map(len, texts), default=0) > MAX_CELL_CHARS):
        return [Paragraph(text, split_sentences(text)) for text in (table.caption, *texts) if text]
    lines = _table_lines(table)
    text = "\n".join([table.caption, *lines] if table.caption else lines)
    return [Paragraph(text, split_lines(text), attachment=Attachment("table", None, table.caption or None))]


def _names_all(row: Sequence[TableCell]) -> bool:
    return len(row) > 1 and all(cell[3] for cell in row)


def _table_lines(table: _Table) -> list[str]:
    """The rows as text, those of a header joined; a row of names further down begins another header."""
    filled = fill_spans(table.rows)
    kept = [i for i, row in enumerate(table.rows) if any(cell[0] for cell in row)]
    grid = [filled[i] for i in kept]
    width = max(map(len, grid))
    grid = [[*row, *[None] * (width - len(row))] for row in grid]
    are_wide = list(map(is_wide, grid))
    starts: list[bool] = []
    for i, row in zip(kept, grid, strict=True):
        # with the names that a row above spans into it
        goes_on = starts[-1:] == [True] and sum(map(bool, row)) > 1 and all(cell[3] for cell in row if cell)
        starts.append(i < table.n_head or _names_all(table.rows[i]) or goes_on)
    if all(starts):
        starts[1:] = [False] * (len(starts) - 1)
    marked = [start and not wide for start, wide in zip(starts, are_wide, strict=True)]
    lines: list[str] = []
    names: list[str] = []
    body: list[list[TableCell | None]] = []

    def write_body() -> None:
        cells = [[row[0][0]] if row[0] and is_wide(row) else cell_texts(row, names) for row in body]
        if names:
            lines.extend(write_rows([names, *cells], 0))
        else:
            for row, texts in zip(body, cells, strict=True):
                n = 1 if is_headed(row) and not is_wide(row) else 0
                rest = " | ".join(filter(None, texts[n:]))
                lines.append(": ".join(filter(None, [*texts[:n], rest])))
        body.clear()

    i = 0
    while i < len(grid):
        is_first = not names and all(are_wide[:i]) and not are_wide[i]
        n = header_rows(grid[i:], Hints(marked[i : i + MAX_HEADER_ROWS])) if marked[i] or is_first else 0
        if n:
            write_body()
            names = name_columns(grid[i : i + n])
            i += n
        else:
            body.append(grid[i])
            i += 1
    write_body()
    return lines


def mathml_text(source: str) -> str:
    """Write the first formula in MathML of a piece of HTML as text."""
    from selectolax.lexbor import LexborHTMLParser

    if source.count("<") > MAX_DEPTH:
        check_depth("a formula", source)
    math = LexborHTMLParser(source).css_first("math")
    return write_mathml(math) if math is not None else ""


def _marks_a_note(node: Any, attributes: Mapping[str, str | None]) -> bool:
    """Whether raised characters are the mark of a note or a citation: a link to it, or so called."""
    parent = node.parent
    around = parent.attributes if parent is not None and parent.tag == "a" else {}
    if _NOTE.search(" ".join(filter(None, (attributes.get("class"), around.get("class"), around.get("role"))))):
        return True
    if "#" in (around.get("href") or "") and parent.text().strip() == node.text().strip():
        return True
    child = node.first_child
    return child is not None and not child.is_text_node and node.css_first("a[href*='#']") is not None


def _is_left_out(tag: str, attributes: Mapping[str, str | None]) -> bool:
    if tag in _DROPPED:
        return True
    if not attributes:
        return False
    return (attributes.get("role") or "").lower() in _DROPPED_ROLES


def _acting_tag(tag: str, attributes: Mapping[str, str | None]) -> str:
    """The tag that an element stands for by its role or by its type's place on the line."""
    if "role" in attributes and tag in ("div", "span"):
        return _ROLES.get(attributes["role"] or "", tag)
    if "style" not in attributes or not (tag == "span" or tag in _FORMATTING):
        return tag
    shift = _SHIFTED.search(attributes["style"] or "")
    return shift[1].lower() if shift else tag


def _span(attributes: Mapping[str, str | None], key: str) -> int:
    return min(max(_whole_number(attributes, key), 1), MAX_SPAN)


def _whole_number(attributes: Mapping[str, str | None], key: str, default: int = 1) -> int:
    """An attribute's number; ``default`` where it is missing or out of range."""
    value = attributes.get(key) or ""
    return int(value) if value.isascii() and value.isdigit() and len(value) < 7 else default
