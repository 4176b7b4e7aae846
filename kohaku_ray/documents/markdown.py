"""Markdown: sections from headings, the text as a reader sees it."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from html.parser import HTMLParser

import yaml
from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode

from kohaku_ray.documents.content import decode_text, default_doc_id, flat_metadata, well_formed
from kohaku_ray.documents.model import Attachment, Document, Paragraph, Section
from kohaku_ray.documents.sentences import split_lines, split_sentences, whole_text
from kohaku_ray.documents.text import Draft, finish, heading_path, list_paragraphs, written_rows
from kohaku_ray.errors import DataError

MAX_KEYS = 2000  # most keys of a mapping in the front matter, merged keys included
_FRONT_MATTER = re.compile(r"---[^\S\n]*\n(.*?)^(?:---|\.\.\.)[^\S\n]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_INVISIBLE_HTML = re.compile(r"<!--.*?(?:-->|\Z)|<(script|style)\b.*?(?:</\1\s*>|\Z)", re.DOTALL | re.IGNORECASE)
_SPACES = re.compile(r"[^\S\n]+")
_BREAKING_TAG = re.compile(r"<(?:br|/p|/div|/tr|/li|/h[1-6])\b[^>]*>", re.IGNORECASE)
_TAG = re.compile(r"</?[A-Za-z][^>]*>")


def parse_markdown(name: str, data: bytes, images: bool = False) -> Document:
    """Parse a Markdown file (CommonMark with tables).

    The title is the front matter's, else the first level-one heading, else the file's stem. Every heading begins a
    section, titled with the headings above it and its own: ``Results › Energy``. The heading that is the document's
    title is not repeated there; text under it, or before any heading, is in a section titled like the document. A list,
    a table and a block of code are one paragraph each; a table's row reads ``column: value; …``. An image is an
    attachment captioned with its alternative text. ``id`` or ``document_id`` of the front matter is the ``doc_id``, the
    rest the metadata. With ``images``, data URIs and ``<img>`` in HTML are kept, to be read later.
    """
    metadata, body = _front_matter(name, decode_text(name, data))
    tree = SyntaxTreeNode(_reader().parse(body))
    headings = [_inline(node.children[0]) for node in tree.children if node.type == "heading" and node.tag == "h1"]
    doc_id = metadata.pop("document_id", "") or metadata.pop("id", "") or default_doc_id(name)
    title = metadata.pop("title", "") or next(filter(None, headings), "") or doc_id
    return Document(doc_id, title, _sections(tree.children, title, images), metadata)


@cache
def _reader() -> MarkdownIt:
    # the library's default nesting limit: CommonMark's 20 drops deeper text
    return MarkdownIt("commonmark", {"maxNesting": 100}).enable(["table", "strikethrough"])


def _front_matter(name: str, text: str) -> tuple[dict[str, str], str]:
    """Metadata from the YAML between ``---`` lines at the top, and the text below it."""
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


def _sections(nodes: Sequence[SyntaxTreeNode], title: str, images: bool) -> tuple[Section, ...]:
    drafts = [Draft(())]
    for node in nodes:
        if node.type == "heading":
            drafts.append(Draft(heading_path(drafts[-1].headings, int(node.tag[1]), _inline(node.children[0]))))
            drafts[-1].paragraphs.extend(_images(node, images))
        else:
            drafts[-1].paragraphs.extend(_paragraphs(node, images))
    return finish(drafts, title)


def _paragraphs(node: SyntaxTreeNode, images: bool) -> Iterator[Paragraph]:
    """Yield the paragraphs of one block, its images after its text."""
    if node.type == "blockquote":
        for child in node.children:
            yield from _paragraphs(child, images)
        return
    if node.type in ("fence", "code_block"):
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
    found: list[Mapping[str, str | None]] = []

    class Tags(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            if tag == "img":
                found.append(dict(attrs))

    Tags().feed(_INVISIBLE_HTML.sub("", source))
    for attributes in found:
        if address := (attributes.get("src") or "").strip():
            caption = " ".join((attributes.get("alt") or attributes.get("title") or "").split())
            attachment = Attachment("image", well_formed(address), caption or None)
            yield Paragraph(caption, split_sentences(caption), attachment=attachment)


def _block_lines(node: SyntaxTreeNode) -> list[str]:
    """The lines of a block as a reader sees them; list items keep their markers, inner lists their indent."""
    if node.type in ("bullet_list", "ordered_list"):
        number = int(node.attrs.get("start", 1))
        items = [[line for child in item.children for line in _block_lines(child)] for item in node.children]
        markers = [f"{number + i}. " if node.type == "ordered_list" else "- " for i in range(len(items))]
        return [line for marker, item in zip(markers, items, strict=True) for line in _item(marker, item)]
    if node.type == "table":
        return _rows(node)
    if node.type in ("fence", "code_block"):
        return node.content.strip("\n").split("\n")
    if node.type == "html_block":
        return [line.strip() for line in _html_text(node.content).split("\n") if line.strip()]
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
    return written_rows([names, *filter(any, body)], has_header=True)


def _inline(node: SyntaxTreeNode) -> str:
    """Readable text of inline markup: no asterisks, links by their text, images left out."""
    return _SPACES.sub(" ", "".join(_pieces(node))).strip()


def _pieces(node: SyntaxTreeNode) -> Iterator[str]:
    for child in node.children:
        if child.type in ("text", "code_inline"):
            yield child.content
        elif child.type == "softbreak":
            yield " "
        elif child.type == "hardbreak":
            yield "\n"
        elif child.type == "html_inline":
            yield "\n" if _BREAKING_TAG.match(child.content) else ""
        elif child.type != "image":
            yield from _pieces(child)


def _html_text(source: str) -> str:
    """The visible text of an HTML block."""
    visible = _without(_BREAKING_TAG, "\n", _INVISIBLE_HTML.sub("", source))
    return html.unescape(_without(_TAG, "", visible))


def _without(tags: re.Pattern[str], instead: str, text: str) -> str:
    """Replace tags up to the last ``>``: after it, every ``<`` would be followed to the text's end."""
    end = text.rfind(">") + 1
    return tags.sub(instead, text[:end]) + text[end:]
