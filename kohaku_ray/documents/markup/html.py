"""Read HTML: what a reader sees of a page, its headings as sections, its tables row by row."""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kohaku_ray.documents.markup.formulas import write_delimited, write_mathml, write_tex
from kohaku_ray.documents.model import Attachment, Document, Paragraph
from kohaku_ray.documents.text.content import decode_text, default_doc_id, even_line_ends, well_formed
from kohaku_ray.documents.text.plain import Draft, finish, heading_path
from kohaku_ray.documents.text.raised import END, LOWER, RAISE, plain_maths, write_scripts
from kohaku_ray.documents.text.sentences import split_lines, split_sentences, whole_text, words_of
from kohaku_ray.documents.text.tables import TableCell, write_table
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
MAX_SPAN = 100  # most columns or rows that a cell is taken to span
_INVISIBLE = re.compile(
    r"(?:display\s*:\s*none|visibility\s*:\s*hidden|text-decoration[\w-]*\s*:[^;]*line-through)", re.IGNORECASE
)
_SPACES = re.compile(r"\s+")
_MARKERS = re.compile("[\x00-\x04]")  # which mark indents, raised and lowered characters while a page is read
_WITH_MATHML = re.compile(r"\b(?:katex|mwe-math-element)\b")  # drawn beside it
_TEX_PICTURE = re.compile(r"\b(?:math|tex|latex|formula(?:Inl|Dsp))\b")  # of Wikipedia, Sphinx, LaTeX2HTML, Doxygen
_ITEM = re.compile(r"(?:-|\d+\.) ")
_CODE = words_of("code kbd samp tt pre")
_BLANK_LINE = re.compile(r"\n[^\S\n]*\n")
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
_SAYS_SOMETHING = re.compile(r"[^\W_]")
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

    Navigation, footers, scripts, forms, hidden elements and a heading's link to itself are left out, and a paragraph,
    list or table outside an article that is short links alone, which stays where nothing else is there.
    Headings make sections, titled with the headings above them; a list and a table are one paragraph each,
    preformatted text is divided at blank lines; a table's row reads ``column: value; …``, where also first rows in bold
    name the columns, a definition ``term: text``. Formulas are read as `formulas` writes them, raised characters as
    `raised` does; deleted text is left out.
    An image is an attachment with its figure's caption, else its alternative text. Description, author, date and
    canonical URL are the metadata. With ``images`` also images without a caption are kept, with their address, to be
    read later.
    """
    if len(data) > MAX_BYTES:
        raise DataError(f"{name} has {len(data):,} bytes, at most {MAX_BYTES:,} are allowed: split it into files.")
    from selectolax.lexbor import LexborHTMLParser

    source, odd = decode_html(name, data)
    check_depth(name, source)
    tree = LexborHTMLParser(source)
    reader = _Reader(images, is_page=True)
    if tree.body is not None:
        reader.read(tree.body)
        reader.keep_menus()
    doc_id = default_doc_id(name)
    title = _title(tree, reader.drafts) or doc_id
    dropped = (pluralize(reader.n_unseen, "hidden element"),) if reader.n_unseen else ()
    return Document(doc_id, title, finish(reader.drafts, title), _metadata(tree), odd=odd, dropped=dropped)


def read_fragment(name: str, source: str, images: bool = False) -> list[Draft]:
    """Read the HTML that another format was written as, all of it; see `parse_html` for its lists and tables."""
    from selectolax.lexbor import LexborHTMLParser

    check_depth(name, source)
    reader = _Reader(images)
    reader.read(LexborHTMLParser(f"<body>{source}").body)
    return reader.drafts


def fragment_title(drafts: Sequence[Draft]) -> str:
    """The first heading of the first level; empty where there is none."""
    return next((draft.headings[0] for draft in drafts if len(draft.headings) == 1 and draft.headings[0]), "")


def _title(tree: Any, drafts: Sequence[Draft]) -> str:
    """The page's title; its only level-one heading where the title contains that (the rest names the site)."""
    node = tree.css_first("head > title")
    title = _plain(node.text()) if node is not None else ""
    headings = [draft.headings[0] for draft in drafts if len(draft.headings) == 1 and draft.headings[0]]
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
    """A table being read: its rows, how many of the first are its head or in bold, and what the cell round it holds."""

    rows: list[list[TableCell]] = field(default_factory=list)
    caption: str = ""
    n_head: int = 0
    n_bold: int = 0
    outer: tuple[_Table, list[str]] | None = None


class _Reader:
    """Walks the tree once, without recursion, and cuts what it sees into paragraphs."""

    def __init__(self, images: bool = False, is_page: bool = False) -> None:
        self._all_images, self._is_page = images, is_page
        self.n_unseen = 0  # elements with a text that no reader sees
        self._terms: list[str] = []  # of a list of definitions, before the text that defines them
        self._articles = 0  # how many <main> and <article> are open
        self._in_link = False
        self._bold = 0  # how many <b> and <strong> are open
        self._is_plain = False  # whether the row being read has text that is not bold
        self._n_links = self._link_chars = self._n_chars = 0  # since the last paragraph
        self._menus: list[Paragraph] = []  # paragraphs outside an article that are short links alone
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
            below = self._enter(node)
            while below is None and node.next is None:
                node = node.parent
                if node is None or node.mem_id == root.mem_id:
                    self._flush()
                    self._add_terms()
                    return
                self._close(node.tag, node.attributes)
            node = node.next if below is None else below

    def _enter(self, node: Any) -> Any:
        """Read a text or open an element; returns the first child to be read in it, or None."""
        if node.is_text_node:
            self._text(node)
        elif node.is_element_node:
            tag, attributes = node.tag, node.attributes
            formula = _formula(node, tag, attributes)
            if formula is not None:
                self._n_chars += len(formula)
                self._parts.append(formula)
            elif attributes and _is_unseen(attributes):
                self.n_unseen += tag not in _DROPPED and bool(node.text().strip())
            elif not _is_left_out(node, tag, attributes):
                self._open(tag, attributes)
                if node.first_child is not None:
                    return node.first_child
                self._close(tag, attributes)
        return None

    def keep_menus(self) -> None:
        """Keep the menus where there is nothing else to read."""
        if not any(paragraph.attachment is None for draft in self.drafts for paragraph in draft.paragraphs):
            self.drafts[0].paragraphs += self._menus

    def _track(self, tag: str, attributes: Mapping[str, str | None], step: int) -> None:
        if tag == "a":
            self._in_link = step > 0 and "href" in attributes  # a place is no link
            self._n_links += self._in_link
        elif tag in ("b", "strong"):
            self._bold += step
        elif tag in ("main", "article") or attributes.get("role") == "main":
            self._articles += step

    def _text(self, node: Any) -> None:
        text = _MARKERS.sub("", node.text_content or "")
        if not self._pre and ("$" in text or "\\" in text) and node.parent.tag not in _CODE:
            text = write_delimited(text)
        if _SAYS_SOMETHING.search(text):
            self._n_chars += len(text)
            self._link_chars += len(text) if self._in_link else 0
        if self._pre:
            self._parts.append(text)
            return
        if text.isspace():  # behind the marker of an item it would end the item's first line
            self._parts += [" "] * (not (self._parts and self._parts[-1].endswith(("\n", "- ", ". "))))
            return
        self._is_plain = self._is_plain or not self._bold
        self._parts.append(_SPACES.sub(" ", text))

    def _open(self, tag: str, attributes: Mapping[str, str | None]) -> None:
        self._track(tag, attributes, 1)
        if tag == "br":
            self._parts.append("\n")
        elif tag == "img":
            self._image(attributes)
        elif tag in ("sup", "sub"):
            self._parts.append(LOWER if tag == "sub" else RAISE)
        elif tag not in _BLOCKS:
            return
        elif self._table is not None:
            if tag == "table":
                self._table = _Table(outer=(self._table, self._parts))
                self._parts = []
            elif tag == "tr":
                self._table.rows.append([])
                self._is_plain = False
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
            self._flush()
            self._pre += tag == "pre"
            if tag == "figure":
                self._figures.append((self.drafts[-1].paragraphs, len(self.drafts[-1].paragraphs)))

    def _close(self, tag: str, attributes: Mapping[str, str | None]) -> None:
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
            text = _NOT_TEXT.sub("", well_formed(write_scripts("".join(self._parts))))
            self._parts.clear()
            if blocks := [block.strip("\n").rstrip() for block in _BLANK_LINE.split(text) if block.strip()]:
                self._add_terms()
                self._add(*(Paragraph(block, whole_text(block)) for block in blocks))
        elif tag == "dt":
            self._terms += filter(None, [self._taken()])
        elif tag == "figcaption":
            self._caption()
        else:
            self._flush()
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
            spans = _span(attributes, "colspan"), _span(attributes, "rowspan")
            table.rows[-1].append((self._taken(), *spans, tag == "th"))
        elif tag == "caption":
            table.caption = self._taken()
        elif tag == "tr":
            is_bold = not self._is_plain and any(cell[0] for cell in table.rows[-1])
            table.n_bold += is_bold and table.n_bold == len(table.rows) - 1
        elif tag == "thead":
            table.n_head = table.n_head or len(table.rows)
        elif tag != "table":
            self._parts.append(" ")
        elif table.outer is not None:
            self._table, self._parts = table.outer
            self._is_plain = True
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

    def _flush(self) -> None:
        """End the paragraph that is being read."""
        text = self._lines() if self._parts else ""
        if text:
            if self._terms and not _ITEM.match(text):
                text = f"{', '.join(self._terms).removesuffix(':')}: {text}"
                self._terms = []
            self._add_terms()
            self._add(Paragraph(text, split_sentences(text)))
        self._add_waiting()

    def _add_waiting(self) -> None:
        if self._waiting and self._table is None and not self._lists:
            self.drafts[-1].paragraphs += self._waiting
            self._waiting.clear()

    def _heading(self, level: int) -> None:
        heading = self._taken()
        self._n_links = self._link_chars = self._n_chars = 0
        self._add_terms()
        if heading:
            self.drafts.append(Draft(heading_path(self.drafts[-1].headings, level, heading)))

    def _add(self, *paragraphs: Paragraph) -> None:
        is_linked = not self._articles and self._link_chars >= MENU_SHARE * self._n_chars
        is_menu = is_linked and self._n_links >= MIN_MENU_LINKS and self._link_chars <= MAX_MENU_CHARS * self._n_links
        (self._menus if is_menu and self._is_page else self.drafts[-1].paragraphs).extend(paragraphs)
        self._n_links = self._link_chars = self._n_chars = 0

    def _image(self, attributes: Mapping[str, str | None]) -> None:
        source = (attributes.get("src") or "").strip()
        caption = _plain(attributes.get("alt") or attributes.get("title") or "")
        # icons and trackers; a search cannot find an image without text or figure
        is_icon = self._is_page and (self._table is not None or bool(self._lists))  # logos, signs of notes, arrows
        if not source or not (self._all_images or (not is_icon and (caption or self._figures))):
            return
        path = None if source.startswith("data:") and not self._all_images else well_formed(source)
        attachment = Attachment("image", path, caption or None)
        paragraph = Paragraph(caption, split_sentences(caption), attachment=attachment)
        self._waiting.append(paragraph)  # which comes after the text that it stands in

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
    """A table as one paragraph, its rows as sentences; the cells of one of a single column as paragraphs."""
    texts = [cell[0] for row in table.rows for cell in row if cell[0]]
    is_one_column = max((sum(bool(cell[0]) for cell in row) for row in table.rows), default=0) < 2
    if is_one_column:
        return [Paragraph(text, split_sentences(text)) for text in (table.caption, *texts) if text]
    n_bold = table.n_bold if table.n_bold < len(table.rows) else 0
    lines = write_table(table.rows, table.n_head or n_bold)
    text = "\n".join([table.caption, *lines] if table.caption else lines)
    return [Paragraph(text, split_lines(text), attachment=Attachment("table", None, table.caption or None))]


def _is_unseen(attributes: Mapping[str, str | None]) -> bool:
    """Whether an element is hidden or struck through."""
    style = attributes.get("style") or ""
    return "hidden" in attributes or (style != "" and _INVISIBLE.search(style) is not None)


def _formula(node: Any, tag: str, attributes: Mapping[str, str | None]) -> str | None:
    """A formula as text; None: the element is none."""
    if tag == "math":
        return write_mathml(node)
    if tag == "script" and (attributes.get("type") or "").lower().startswith("math/tex"):
        return write_tex(node.text() or "")
    classes = attributes.get("class") or ""
    if tag == "img" and _TEX_PICTURE.search(classes):
        return write_tex((attributes.get("alt") or "").strip().strip("$")) or None
    math = node.css_first("math") if _WITH_MATHML.search(classes) else None
    return write_mathml(math) if math is not None else None


def _is_left_out(node: Any, tag: str, attributes: Mapping[str, str | None]) -> bool:
    if tag in _DROPPED:
        return True
    if tag == "a" and "#" in (attributes.get("href") or ""):
        return node.text().strip() in ("¶", "§")  # a heading's link to itself, as Sphinx and rustdoc set it
    return (attributes.get("role") or "").lower() in _DROPPED_ROLES


def _span(attributes: Mapping[str, str | None], key: str) -> int:
    return min(max(_whole_number(attributes, key), 1), MAX_SPAN)


def _whole_number(attributes: Mapping[str, str | None], key: str, default: int = 1) -> int:
    """An attribute's number; ``default`` where it is missing or out of range."""
    value = attributes.get(key) or ""
    return int(value) if value.isascii() and value.isdigit() and len(value) < 7 else default
