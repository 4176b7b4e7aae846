"""Read Markdown: sections from headings, the text as a reader sees it."""

from __future__ import annotations

import html
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from importlib import import_module
from itertools import pairwise
from typing import Any

import yaml
from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from markdown_it.tree import SyntaxTreeNode

from kohaku_ray.documents.markup.formulas import match_formula, write_tex
from kohaku_ray.documents.markup.html import fragment_paragraphs, mathml_text
from kohaku_ray.documents.model import Attachment, Document, Paragraph, Section
from kohaku_ray.documents.text.content import decode_text, default_doc_id, flat_metadata, well_formed
from kohaku_ray.documents.text.plain import Draft, finish, heading_path, list_paragraphs
from kohaku_ray.documents.text.raised import END, LOWER, MARK, RAISE, is_note_link, plain_maths, write_scripts
from kohaku_ray.documents.text.sentences import split_lines, split_sentences, whole_text
from kohaku_ray.documents.text.tables import as_grid, header_rows, join_names, write_rows
from kohaku_ray.errors import DataError

table_rule: Any = import_module("markdown_it.rules_block.table")  # its package names a function so

MAX_KEYS = 2000  # most keys of a mapping in the front matter, merged keys included
_TOML = re.compile(r"\+\+\+[^\S\n]*\n(.*?)^\+\+\+[^\S\n]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_FRONT_MATTER = re.compile(r"---[^\S\n]*\n(.*?)^(?:---|\.\.\.)[^\S\n]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_INVISIBLE_HTML = re.compile(r"<!--.*?(?:-->|\Z)|<(script|style)\b.*?(?:</\1\s*>|\Z)", re.DOTALL | re.IGNORECASE)
_SPACES = re.compile(r"[^\S\n]+")
_BREAKING_TAG = re.compile(r"<(?:br|/p|/div|/tr|/li|/h[1-6])\b[^>]*>", re.IGNORECASE)
_TAG = re.compile(r"</?[A-Za-z][^>]*>")
_READ_AS_HTML = re.compile(
    r"<(?:table|math|dl|sup|sub|del|s|strike|mjx-container|script\s+type=.?math|tr|td|th)\b|katex", re.I
)
_INLINE_TAG = re.compile(r"<(/?)([A-Za-z][A-Za-z0-9-]*)")
_TABLE_TAG = re.compile(r"<(/?)table\b", re.IGNORECASE)
_NOTE_MARK = re.compile(r"\[\^([^\]\s^]{1,40})\]")
_SCRIPT = re.compile(
    r"(?<=[\w)])\^([\w+−-]{1,8})\^(?!\w)|(?<![^\s(])\^(\d{1,3}m?)\^(?=[A-Z])|(?<=[A-Za-z])~([\w+−-]{1,4})~"
)
_GRID = re.compile(r"\+(?:[-=:]+\+)+")  # a border of a table that is drawn
_MARKERS = re.compile("[\x01-\x04]")  # which mark raised and lowered characters while a file is read
MAX_NESTING = 100  # most blocks within each other; CommonMark's 20 are too few for lists of real files
MAX_FORMULA_LINES = 500  # most lines of a formula
MAX_TAGS_ABOVE = 5  # most lines of HTML above the first line of its table
_MATHS_FENCES = ("math", "latex", "tex", "katex")


def parse_markdown(name: str, data: bytes, images: bool = False) -> Document:
    """Parse a Markdown file (CommonMark with tables).

    The title is the front matter's, else the first level-one heading, else the file's stem. Every heading begins a
    section, titled with the headings above it and its own: ``Results › Energy``. The heading that is the document's
    title is not repeated there; text under it, or before any heading, is in a section titled like the document. A list,
    a table and a block of code are one paragraph each; a table's row, in HTML too, reads ``column: value; …``.
    Formulas are read as `formulas` writes them, raised characters as `raised` does; deleted text is left out. An
    image is an attachment captioned with its alternative text. ``id`` or ``document_id`` of the front matter is the
    ``doc_id``, the rest the metadata. With ``images``, data URIs and ``<img>`` in HTML are kept, to be read later.
    """
    text, odd = decode_text(name, data)
    metadata, body = _front_matter(name, text)
    tree = SyntaxTreeNode(_reader().parse(_MARKERS.sub("", body)))
    headings = [_inline(node.children[0]) for node in tree.children if node.type == "heading" and node.tag == "h1"]
    doc_id = metadata.pop("document_id", "") or metadata.pop("id", "") or default_doc_id(name)
    title = metadata.pop("title", "") or next(filter(None, headings), "") or doc_id
    return Document(doc_id, title, _sections(tree.children, title, images), metadata, odd=odd)


@cache
def _reader() -> MarkdownIt:
    reader = MarkdownIt("commonmark", {"maxNesting": MAX_NESTING}).enable(["table", "strikethrough"])
    reader.inline.ruler.before("escape", "formula", _formula)
    reader.inline.ruler.before("link", "note_mark", _note_mark)
    reader.inline.ruler.before("strikethrough", "script", _script)
    ends: Any = {"alt": ["paragraph", "reference", "blockquote", "list"]}
    reader.block.ruler.before("table", "nested_too_deep", _nested_too_deep)
    reader.block.ruler.before("fence", "formula_block", _formula_block, ends)
    reader.block.ruler.before("reference", "note", _note, ends)
    reader.block.ruler.before("html_block", "html_table", _html_table, ends)
    reader.block.ruler.before("table", "grid_table", _grid_table, {"alt": ["paragraph", "reference"]})
    reader.block.ruler.at("table", _table, {"alt": ["paragraph", "reference"]})
    return reader


def _nested_too_deep(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Read a line as a paragraph where a list or quote round it is the deepest that is read: the library drops it."""
    if silent or state.level < MAX_NESTING - 4:  # a list and its item, a paragraph and its text
        return False
    state.push("paragraph_open", "p", 1).map = [start, start + 1]
    inline = state.push("inline", "", 0)
    inline.map, inline.children = [start, start + 1], []
    inline.content = state.getLines(start, start + 1, 0, False).lstrip("> -*+\t")
    state.push("paragraph_close", "p", -1)
    state.line = start + 1
    return True


def _formula(state: StateInline, silent: bool) -> bool:
    """Read a formula between dollar signs or escaped brackets, in which nothing is markup."""
    if state.src[state.pos] not in "$\\":
        return False
    match = match_formula(state.src, state.pos)
    if match is None:
        return False
    if not silent:
        state.push("formula", "", 0).content = match[1]
    state.pos = match[0]
    return True


def _note_mark(state: StateInline, silent: bool) -> bool:
    match = _NOTE_MARK.match(state.src, state.pos) if state.src[state.pos] == "[" else None
    if match is None:
        return False
    if not silent:
        state.push("note_mark", "", 0).content = match[1]
    state.pos = match.end()
    return True


def _script(state: StateInline, silent: bool) -> bool:
    """Read a run that is raised or lowered as Pandoc writes it: ``10^9^``, ``H~2~O``."""
    match = _SCRIPT.match(state.src, state.pos)
    if match is None:
        return False
    if not silent:
        state.push("script", "", 0).content = f"{LOWER if match[3] else RAISE}{match[match.lastindex or 0]}{END}"
    state.pos = match.end()
    return True


def _line(state: StateBlock, line: int) -> str:
    return state.src[state.bMarks[line] + state.tShift[line] : state.eMarks[line]]


def _push_lines(state: StateBlock, kind: str, content: str, start: int, end: int) -> bool:
    token = state.push(kind, "", 0)
    token.content, token.map = content, [start, end]
    state.line = end
    return True


def _formula_block(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Read a formula on lines of its own, some of which may look like a list or a heading."""
    first = _line(state, start).rstrip()
    closing = {"$$": "$$", "\\[": "\\]"}.get(first[:2])
    if closing is None or state.is_code_block(start):
        return False
    parts: list[str] = []
    rest = first[2:]
    for line in range(start, min(end, start + MAX_FORMULA_LINES)):
        rest = rest if line == start else _line(state, line).rstrip()
        if not (rest or line == start):
            return False
        if rest.endswith(closing):
            return silent or _push_lines(state, "formula", "\n".join([*parts, rest[:-2]]), start, line + 1)
        if closing in rest:
            return False
        parts.append(rest)
    return False


def _note(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Read the first line of a note, ``[^1]: text``, as a paragraph that begins with its mark."""
    line = _line(state, start)
    match = _NOTE_MARK.match(line)
    if match is None or line[match.end() : match.end() + 1] != ":" or state.is_code_block(start):
        return False
    if silent:
        return True
    lines, after = [line[match.end() + 1 :].strip()], start + 1
    while after < end and not state.isEmpty(after) and not _NOTE_MARK.match(_line(state, after)):
        lines.append(_line(state, after).strip())
        after += 1
    state.push("paragraph_open", "p", 1).map = [start, after]
    token = state.push("inline", "", 0)
    token.content, token.map, token.children = f"[{match[1]}] " + "\n".join(lines), [start, after], []
    state.push("paragraph_close", "p", -1)
    state.line = after
    return True


def _html_table(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Read HTML with a table to the table's end, over blank lines."""
    if state.is_code_block(start) or not _line(state, start).startswith("<") or start < state.env.get("after", 0):
        return False
    depth, has_table = 0, False
    for line in range(start, end):
        text = _line(state, line)
        if not depth and (not text or line > start + MAX_TAGS_ABOVE):
            break
        for tag in _TABLE_TAG.findall(text):
            depth += -1 if tag else 1
            has_table = True
        if depth <= 0 and has_table:
            content = "\n".join(_line(state, i) for i in range(start, line + 1))
            return silent or _push_lines(state, "html_block", content, start, line + 1)
    if depth:
        state.env["after"] = end  # its end is missing, which is not searched for again
    return False


def _table(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Read a table with pipes, and of its rows also the cells beyond the header's, which the rule itself drops."""
    first = len(state.tokens)
    if not table_rule.table(state, start, end, silent):
        return False
    tokens = state.tokens[first:]
    n_columns, line, kept = sum(token.type == "th_open" for token in tokens), start, []
    for token in tokens:
        if token.type == "tr_open" and token.map:
            line = token.map[0]
        elif token.type == "tr_close" and line > start:
            cells = table_rule.escapedSplit(_line(state, line).strip())
            cells = cells[not cells[0] : len(cells) - (not cells[-1])]
            for cell in cells[n_columns:]:
                inline = Token("inline", "", 0, map=[line, line + 1], level=token.level + 2, content=cell.strip())
                inline.children = []
                kept += [Token("td_open", "td", 1, level=token.level + 1), inline, Token("td_close", "td", -1)]
        kept.append(token)
    state.tokens[first:] = kept
    return True


def _grid_table(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Read a table drawn with ``+---+`` and bars, as Pandoc and reStructuredText have it."""
    if state.is_code_block(start) or start < state.env.get("grid", 0):
        return False
    if _GRID.fullmatch(_line(state, start).rstrip()) is None:
        return False
    line, lines = start, []
    while line < end and (text := _line(state, line).rstrip())[:1] in ("+", "|"):
        lines.append(text)
        line += 1
    if len(lines) < 3 or _GRID.fullmatch(lines[-1]) is None or {len(text) for text in lines} != {len(lines[0])}:
        state.env["grid"] = line  # none of its lines begins another
        return False
    if silent:
        return True
    cells, n_head = _drawn_cells(lines)
    names = join_names(cells[:n_head]) if n_head else [""] * len(cells[0])
    state.push("table_open", "table", 1).map = [start, line]
    for part, kind, texts in (
        ("thead", "th", [names]),
        ("tbody", "td", [[text for text, _ in row] for row in cells[n_head:]]),
    ):
        state.push(f"{part}_open", part, 1)
        for row in texts:
            state.push("tr_open", "tr", 1)
            for text in row:
                state.push(f"{kind}_open", kind, 1)
                inline = state.push("inline", "", 0)
                inline.content, inline.map, inline.children = text, [start, line], []
                state.push(f"{kind}_close", kind, -1)
            state.push("tr_close", "tr", -1)
        state.push(f"{part}_close", part, -1)
    state.push("table_close", "table", -1)
    state.line = line
    return True


def _drawn_cells(lines: Sequence[str]) -> tuple[list[list[tuple[str, bool]]], int]:
    """The texts of a drawn table by row and column, one that spans several at each, and how many rows name columns."""
    edges = sorted({i for text in lines for i, char in enumerate(text) if char == "+" and _GRID.match(text, i)})
    edges = [*edges, len(lines[0]) - 1]
    open_cells: list[list[str] | None] = [None] * (len(edges) - 1)
    rows: list[list[list[str]]] = []
    n_head = 0
    for text in lines[1:]:
        is_border = [set(text[left + 1 : right]) <= set("-=:") for left, right in pairwise(edges)]
        if any(is_border):
            rows.append([cell or [] for cell in open_cells])
            n_head = n_head or len(rows) * ("+=" in text)
            open_cells = [None if ends else cell for cell, ends in zip(open_cells, is_border, strict=True)]
        for i, ends in enumerate(is_border):
            if ends:
                continue
            goes_on = i > 0 and not is_border[i - 1] and text[edges[i]] not in "|+"
            open_cells[i] = cell = (open_cells[i - 1] if goes_on else None) or open_cells[i] or []
            if goes_on:
                cell[-1] += text[edges[i] : edges[i + 1]]
            else:
                cell.append(text[edges[i] + 1 : edges[i + 1]])
    return [[(" ".join(" ".join(cell).split()), True) for cell in row] for row in rows], n_head


def _front_matter(name: str, text: str) -> tuple[dict[str, str], str]:
    """Metadata from the YAML between ``---`` lines, or the TOML between ``+++``, at the top, and the text below it."""
    if toml := _TOML.match(text):
        try:
            return flat_metadata(tomllib.loads(toml[1])), text[toml.end() :]
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise DataError(f"{name}: the front matter is not TOML: {error}: quote texts.") from None
    match = _FRONT_MATTER.match(text)
    if match is None:
        return {}, text
    try:
        values = yaml.load(match[1], _FrontMatter)  # noqa: S506
        if values is None:
            return {}, text[match.end() :]
        # between two rules there may also be ordinary text
        return (flat_metadata(values), text[match.end() :]) if isinstance(values, Mapping) else ({}, text)
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, OverflowError) as error:
        where = getattr(error, "problem_mark", None)
        line = f" at line {where.line + 2}" if where is not None else ""
        problem = getattr(error, "problem", None) or error
        raise DataError(f"{name}: the front matter is not YAML: {problem}{line}: quote values with colons.") from None


class _FrontMatter(yaml.SafeLoader):
    """Safe YAML, in which merges (``<<``) cannot grow a mapping without bound."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        super().flatten_mapping(node)
        if len(node.value) > MAX_KEYS:
            raise yaml.YAMLError(f"a mapping has {len(node.value):,} keys, at most {MAX_KEYS:,} are allowed")


def paged_markdown(default_title: str, text: str, page_of: Callable[[int], int]) -> tuple[str, tuple[Section, ...]]:
    """Read Markdown's title and sections; ``page_of`` says which page a line, counted from 0, is on."""
    tree = SyntaxTreeNode(_reader().parse(text))
    headings = [_inline(node.children[0]) for node in tree.children if node.type == "heading" and node.tag == "h1"]
    title = next(filter(None, headings), "") or default_title
    return title, _sections(tree.children, title, False, page_of)


def _sections(
    nodes: Sequence[SyntaxTreeNode], title: str, images: bool, page_of: Callable[[int], int] | None = None
) -> tuple[Section, ...]:
    drafts = [Draft(())]
    for node in nodes:
        if node.type == "heading":
            drafts.append(Draft(heading_path(drafts[-1].headings, int(node.tag[1]), _inline(node.children[0]))))
            drafts[-1].paragraphs.extend(_images(node, images))
        else:
            page = page_of(node.map[0]) if page_of is not None and node.map is not None else None
            paragraphs = _paragraphs(node, images)
            drafts[-1].paragraphs.extend(
                paragraphs if page is None else [replace(paragraph, page=page) for paragraph in paragraphs]
            )
    return finish(drafts, title)


def _paragraphs(node: SyntaxTreeNode, images: bool) -> Iterator[Paragraph]:
    """Yield the paragraphs of one block, its images after its text."""
    if node.type == "blockquote":
        for child in node.children:
            yield from _paragraphs(child, images)
        return
    if node.type == "html_block" and (paragraphs := _read_html(node.content)) is not None:
        yield from paragraphs
        yield from _images(node, images)
        return
    if node.type in ("fence", "code_block") and not _is_formula(node):
        text = node.content.strip("\n")
        spans = whole_text(text)
    elif node.type == "table":
        text = "\n".join(_rows(node))
        spans = split_lines(text)
    else:
        *firsts, text = list_paragraphs("\n".join(_block_lines(node)))
        yield from (Paragraph(first, split_sentences(first)) for first in firsts)
        spans = split_sentences(text)
    if text.strip():
        yield Paragraph(text, spans)
    yield from _images(node, images)


def _images(node: SyntaxTreeNode, all_images: bool) -> Iterator[Paragraph]:
    """Yield an attachment for every image in a block."""
    for image in node.walk():
        if image.type == "image":
            caption = _inline(image) or str(image.attrs.get("title", "")).strip()
            source = str(image.attrs.get("src", ""))
            path = None if not source or (source.startswith("data:") and not all_images) else source
            yield Paragraph(caption, split_sentences(caption), attachment=Attachment("image", path, caption or None))
        elif all_images and image.type in ("html_block", "html_inline"):
            yield from _tagged_images(image.content)


def _tagged_images(source: str) -> Iterator[Paragraph]:
    """Yield an attachment for every ``<img>`` in a piece of HTML."""
    tags: list[Mapping[str, str | None]] = []

    class Tags(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            if tag == "img":
                tags.append(dict(attrs))

    Tags().feed(_INVISIBLE_HTML.sub("", source))
    for attributes in tags:
        if address := (attributes.get("src") or "").strip():
            caption = " ".join((attributes.get("alt") or attributes.get("title") or "").split())
            attachment = Attachment("image", well_formed(address), caption or None)
            yield Paragraph(caption, split_sentences(caption), attachment=attachment)


def _is_formula(node: SyntaxTreeNode) -> bool:
    return node.type == "formula" or (node.type == "fence" and node.info.strip() in _MATHS_FENCES[:1])


def _read_html(source: str) -> list[Paragraph] | None:
    """The paragraphs of a block of HTML with a table, formula or raised characters; None: it is read line by line."""
    if _READ_AS_HTML.search(source) is None:
        return None
    try:
        return fragment_paragraphs("the HTML", source)
    except DataError:
        return None


def _block_lines(node: SyntaxTreeNode) -> list[str]:
    """The lines of a block as a reader sees them; list items keep their markers, inner lists their indent."""
    if node.type in ("bullet_list", "ordered_list"):
        number = int(node.attrs.get("start", 1))
        items = [[line for child in item.children for line in _block_lines(child)] for item in node.children]
        markers = [f"{number + i}. " if node.type == "ordered_list" else "- " for i in range(len(items))]
        return [line for marker, item in zip(markers, items, strict=True) for line in _item(marker, item)]
    if node.type == "table":
        return _rows(node)
    if _is_formula(node):
        return [plain_scripts(write_tex(node.content))]
    if node.type in ("fence", "code_block"):
        return node.content.strip("\n").split("\n")
    if node.type == "html_block" and (paragraphs := _read_html(node.content)) is not None:
        return [line for paragraph in paragraphs for line in paragraph.text.split("\n")]
    if node.type == "html_block":
        visible = _without(_BREAKING_TAG, "\n", _INVISIBLE_HTML.sub("", node.content))
        return [line.strip() for line in html.unescape(_without(_TAG, "", visible)).split("\n") if line.strip()]
    if node.type in ("paragraph", "heading"):
        return [line for line in _inline(node.children[0]).split("\n") if line.strip()]
    return [line for child in node.children for line in _block_lines(child)]


def _item(marker: str, lines: Sequence[str]) -> list[str]:
    """A list item's lines with its marker in front; an item without text (an image's, say) has none."""
    return [(" " * len(marker) if i else marker) + line for i, line in enumerate(lines)]


def _rows(table: SyntaxTreeNode) -> list[str]:
    """A table's rows as ``column: value; …``, empty cells left out; a table without rows as its column names."""
    rows = [
        [" ".join(_inline(cell.children[0]).split()) if cell.children else "" for cell in row.children]
        for part in table.children
        for row in part.children
    ]
    names, *body = rows
    body = list(filter(any, body))
    if not any(names) and body:  # a header that is left empty stands over the table's own
        return write_rows(body, header_rows(as_grid(body)) - 1)
    return write_rows([names, *body], 0)


def _inline(node: SyntaxTreeNode) -> str:
    """Readable text of inline markup: no asterisks, links by their text, images and deleted text left out."""
    return _SPACES.sub(" ", plain_scripts("".join(_pieces(node)))).strip()


def _pieces(node: SyntaxTreeNode) -> Iterator[str]:
    children = node.children
    closings: dict[str, int] = {}  # tag → where it is closed last
    for i, child in enumerate(children):
        if child.type == "html_inline" and child.content.startswith("</"):
            closings[child.content[2:-1].strip().lower()] = i
    i, in_link = 0, node.type == "link" and "#" in str(node.attrs.get("href", ""))
    while i < len(children):
        child = children[i]
        i += 1
        if child.type in ("text", "code_inline", "script"):
            yield child.content
        elif child.type == "softbreak":
            yield " "
        elif child.type == "hardbreak":
            yield "\n"
        elif child.type == "formula":
            yield write_tex(child.content)
        elif child.type == "note_mark":
            yield f"{MARK}{child.content}{END}"
        elif child.type == "html_inline":
            tag = _INLINE_TAG.match(child.content)
            name = tag[2].lower() if tag else ""
            is_closing = tag is not None and tag[1] == "/"
            if name in ("del", "s", "strike", "math") and not is_closing and i <= closings.get(name, 0):
                end = i
                while children[end].type != "html_inline" or children[end].content[:-1].lower().rstrip() != f"</{name}":
                    end += 1
                if name == "math":
                    yield mathml_text("".join(_source(part) for part in children[i - 1 : end + 1]))
                i = end + 1
            elif name in ("sup", "sub"):
                follows = children[i] if i < len(children) else None
                is_mark = in_link or (follows is not None and follows.type == "link" and "#" in str(follows.attrs))
                yield END if is_closing else LOWER if name == "sub" else MARK if is_mark else RAISE
            elif name == "a":
                in_link = not is_closing and "#" in child.content
            else:
                yield "\n" if _BREAKING_TAG.match(child.content) else ""
        elif child.type == "link":
            text, before = "".join(_pieces(child)), children[i - 2].content if i > 1 else ""
            is_mark = "#" in str(child.attrs.get("href", "")) and is_note_link(before, text)
            yield f"{MARK}{text}{END}" if is_mark else text
        elif child.type not in ("image", "s"):
            yield from _pieces(child)


def _source(node: SyntaxTreeNode) -> str:
    """The HTML of a piece of inline text."""
    return node.content if node.type == "html_inline" else html.escape("".join(_pieces(node)) or node.content)


def plain_scripts(text: str) -> str:
    """Write raised and lowered characters, those of Unicode too, by the one rule."""
    text = write_scripts(text)
    return text if text.isascii() else plain_maths(text)


def _without(tags: re.Pattern[str], instead: str, text: str) -> str:
    """Replace tags up to the last ``>``: after it, every ``<`` would be followed to the text's end."""
    end = text.rfind(">") + 1
    return tags.sub(instead, text[:end]) + text[end:]
