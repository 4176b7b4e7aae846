"""Read Markdown: markdown-it writes it as HTML, which is read as any other."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from typing import Any

import yaml
from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.rules_block.table import escapedSplit, getLine, table
from markdown_it.token import Token

from kohaku_ray.documents.markup.formulas import mark_formulas
from kohaku_ray.documents.markup.html import fragment_title, read_fragment
from kohaku_ray.documents.model import Document
from kohaku_ray.documents.text.content import decode_text, default_doc_id, flat_metadata
from kohaku_ray.documents.text.plain import finish
from kohaku_ray.documents.text.sentences import words_of
from kohaku_ray.errors import DataError

MAX_KEYS = 2000  # most keys of a mapping in the front matter, merged keys included
MAX_NESTING = 100  # most blocks within each other; CommonMark's 20 are too few for lists of real files
_TOML = re.compile(r"\+\+\+[^\S\n]*\n(.*?)^\+\+\+[^\S\n]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_FRONT_MATTER = re.compile(r"---[^\S\n]*\n(.*?)^(?:---|\.\.\.)[^\S\n]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_NOTE = re.compile(r"^(\[\^[^\]\s^]{1,40}\]):[^\S\n]*", re.MULTILINE)
_TAG = re.compile(r"</?([A-Za-z][A-Za-z0-9-]*)")
_INLINE = words_of(
    """a abbr b br cite code del dfn em font i img ins kbd mark math picture q s samp small source span strike strong
    sub sup tt u var"""
)


def parse_markdown(name: str, data: bytes, images: bool = False) -> Document:
    """Parse a Markdown file (CommonMark with tables and formulas).

    The title is the front matter's, else the first level-one heading, else the file's stem; ``id`` or ``document_id``
    of the front matter is the ``doc_id``, the rest the metadata. All else is as in HTML, see `parse_html`.
    """
    text, odd = decode_text(name, data)
    metadata, body = _front_matter(name, text)
    source = _writer().render(mark_formulas(_NOTE.sub(r"\n\1 ", body)), {"name": name})  # a note is no link's address
    drafts = read_fragment(name, source, images)
    doc_id = metadata.pop("document_id", "") or metadata.pop("id", "") or default_doc_id(name)
    title = metadata.pop("title", "") or fragment_title(drafts) or doc_id
    return Document(doc_id, title, finish(drafts, title), metadata, odd=odd)


@cache
def _writer() -> MarkdownIt:
    writer = MarkdownIt("commonmark", {"maxNesting": MAX_NESTING}).enable(["table", "strikethrough"])
    writer.block.ruler.before("table", "nested_too_deep", _nested_too_deep)
    writer.block.ruler.at("table", _table, {"alt": ["paragraph", "reference"]})
    writer.add_render_rule("fence", _fence)
    writer.add_render_rule("html_inline", _html_inline)
    return writer


def _nested_too_deep(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    if state.level >= MAX_NESTING - 4:  # a list and its item, a paragraph and its text: the library drops what is below
        raise DataError(f"{state.env['name']} has more than {MAX_NESTING} blocks within each other: flatten it.")
    return False


def _table(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Read a table with the cells of rows that are longer than its header, which the library drops."""
    n_before = len(state.tokens)
    if not table(state, start, end, silent):
        return False
    tokens, n_cells, row = state.tokens[n_before:], 0, [start, start]
    del state.tokens[n_before:]
    for token in tokens:
        if token.type == "tr_close" and row[0] > start:
            cells = escapedSplit(getLine(state, row[0]).strip())
            for cell in cells[cells[0] == "" : -1 if cells[-1] == "" else None][n_cells:]:
                state.tokens.append(Token("td_open", "td", 1))
                state.tokens.append(Token("inline", "", 0, content=cell.strip(), map=row, children=[]))
                state.tokens.append(Token("td_close", "td", -1))
        n_cells = 0 if token.type == "tr_open" else n_cells + (token.type in ("th_close", "td_close"))
        row = token.map or row if token.type == "tr_open" else row
        state.tokens.append(token)
    return True


def _fence(self: Any, tokens: Sequence[Token], i: int, options: Any, env: Any) -> str:
    source, is_formula = escape(tokens[i].content), tokens[i].info.strip() == "math"
    return f"<p><math>{source}</math></p>" if is_formula else f"<pre><code>{source}</code></pre>\n"


def _html_inline(self: Any, tokens: Sequence[Token], i: int, options: Any, env: Any) -> str:
    """Write a tag within a line, one that is no text's as text: ``List<object>`` would else hide all that follows."""
    source = tokens[i].content
    tag = _TAG.match(source)
    return source if tag is None or tag[1].lower() in _INLINE else escape(source)


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
