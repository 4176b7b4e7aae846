"""Read reStructuredText: docutils writes it as HTML, which is read as any other.

Roles and directives that docutils does not know, as Sphinx's, keep their text.
"""

from __future__ import annotations

import re
from functools import cache
from html import unescape
from typing import Any

from kohaku_ray.documents.markup.html import read_fragment
from kohaku_ray.documents.model import Document
from kohaku_ray.documents.text.content import decode_text, default_doc_id
from kohaku_ray.documents.text.plain import finish
from kohaku_ray.records import pluralize

_DIRECTIVE = re.compile(r"^[^\S\n]*\.\. ([\w:+.-]+)::", re.MULTILINE)
_ROLE = re.compile(r":([a-zA-Z][\w:+.-]*):`|`:([a-zA-Z][\w:+.-]*):")
_UNNAMED_IMAGE = re.compile(r'<img alt="([^"]*)"(?=[^>]* src="\1")')  # its path in place of an alternative text
_NOTE_LABEL = re.compile(r'(<span class="label">.*?</span></span>)\s*<p>')  # the mark of a note, and its text
_TARGET = re.compile(r"\s*<[^<>]*>$")
_INCLUDED = frozenset(("include", "literalinclude", "raw"))  # what is in another file, or another format
_WITHOUT_TEXT = _INCLUDED | {"toctree", "index", "highlight", "currentmodule", "module"}  # names and files alone
_SETTINGS = {
    "_disable_config": True,
    "embed_stylesheet": False,
    "file_insertion_enabled": False,
    "footnote_references": "brackets",
    "halt_level": 5,
    "line_length_limit": 2**31,
    "math_output": "LaTeX",
    "raw_enabled": False,
    "report_level": 5,
    "syntax_highlight": "none",
    "toc_backlinks": False,
}


def parse_restructured(name: str, data: bytes) -> Document:
    """Parse reStructuredText: title and sections, lists, tables and formulas, as in HTML.

    Tables of contents, comments, and files that a directive includes are left out.
    """
    from docutils.core import publish_parts

    text, odd = decode_text(name, data)
    directives = _DIRECTIVE.findall(text)
    _register_unknown(set(directives), {one or other for one, other in _ROLE.findall(text)})
    parts = publish_parts(text, source_path=name, writer="html5", settings_overrides=_SETTINGS)
    source = _NOTE_LABEL.sub(r"<p>\1 ", _UNNAMED_IMAGE.sub("<img", parts["html_body"]))
    drafts = read_fragment(name, source)
    title = " ".join(unescape(re.sub("<[^>]*>", "", parts["title"])).split())
    title = title or next((draft.headings[0] for draft in drafts if draft.headings), "") or default_doc_id(name)
    n_included = sum(directive in _INCLUDED for directive in directives)
    dropped = (pluralize(n_included, "included file"),) if n_included else ()
    return Document(default_doc_id(name), title, finish(drafts, title), odd=odd, dropped=dropped)


def _register_unknown(directive_names: set[str], role_names: set[str]) -> None:
    """Have docutils read directives and roles that it does not know: what they say, not what they do."""
    from docutils.parsers.rst import directives, roles
    from docutils.parsers.rst.languages import en

    directive, role = _readers()
    for name in directive_names:
        if name.lower() not in en.directives:
            directives.register_directive(name.lower(), directive)
    for name in role_names:
        if name.lower() not in en.roles:
            roles.register_local_role(name, role)


@cache
def _readers() -> tuple[Any, Any]:
    from docutils import nodes
    from docutils.parsers.rst import Directive, directives
    from docutils.utils import unescape as without_escapes

    class Options(dict[str, Any]):
        """Options of any name."""

        def __missing__(self, key: str) -> Any:
            return directives.unchanged

    class Unknown(Directive):  # type: ignore[misc]
        optional_arguments = 1
        final_argument_whitespace = has_content = True
        option_spec = Options(name=directives.unchanged)

        def run(self) -> list[Any]:
            if self.name in _WITHOUT_TEXT:
                return []
            parsed = nodes.container()
            if self.arguments:
                children, _ = self.state.inline_text(self.arguments[0], self.lineno)
                parsed += nodes.paragraph("", "", *children)
            self.state.nested_parse(self.content, self.content_offset, parsed)
            return list(parsed.children)

    def read_role(_: str, __: str, text: str, *___: Any, **____: Any) -> tuple[list[Any], list[Any]]:
        shown = _TARGET.sub("", without_escapes(text)) or text
        shown = shown.rpartition(".")[2] if shown.startswith("~") else shown.lstrip("!")
        return [nodes.Text(shown)], []

    return Unknown, read_role
