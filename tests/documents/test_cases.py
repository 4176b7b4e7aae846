"""Small files of the formats that are text, each with what is read of it.

`cases/FORMAT.txt` holds them as markdown-it's own fixtures are held: a title, a file and what is expected, each ended
by a line with a dot. What is expected is written as Markdown: `# the document's title` where it is not the file's
name, its metadata, `## a section's title`, `[table]` or `[image path: caption]` over what such a paragraph says, `¦`
where a sentence ends within a paragraph, and what was dropped or is odd.
"""

import difflib
import os
from pathlib import Path

import pytest
from markdown_it.utils import read_fixture_file

from kohaku_ray.documents.parse import parse_file

CASES = Path(__file__).with_name("cases")
NAMES = {"html": "site/page.html", "markdown": "docs/notes.md", "restructured": "d/report.rst"}


def write_paragraph(paragraph):
    text = paragraph.text
    for span in reversed(paragraph.sentences[:-1]):
        text = f"{text[: span.end]}¦{text[span.end :]}"
    if paragraph.attachment is None:
        return text
    kind, path, caption = paragraph.attachment.kind, paragraph.attachment.path, paragraph.attachment.caption
    head = f"[{kind}{f' {path}' if path else ''}{f': {caption}' if caption else ''}]"
    return f"{head}\n{text}" if text else head


def write_document(document, name):
    head = [f"# {document.title}"] if document.title != Path(name).stem else []
    head += [f"id: {document.doc_id}"] if document.doc_id != Path(name).stem else []
    parts = ["\n".join([*head, *(f"{key}: {value}" for key, value in document.metadata.items())])]
    for number, section in enumerate(document.sections):
        if number or section.title != document.title:
            parts.append(f"## {section.title}")
        parts += map(write_paragraph, section.paragraphs)
    parts += [f"dropped: {item}" for item in document.dropped] + [f"odd: {item}" for item in document.odd]
    return "\n\n".join(part for part in parts if part) + "\n"


@pytest.mark.parametrize("form", NAMES)
def test_a_file_is_read_as_its_case_says(form):
    """To renew what is expected: GOLDEN=1, and read the difference."""
    file = CASES / f"{form}.txt"
    wrong, renewed = [], file.read_text(encoding="utf-8")
    for line, title, source, expected in read_fixture_file(file):
        read = write_document(parse_file(NAMES[form], source.encode()), NAMES[form])
        if read != expected:
            difference = difflib.unified_diff(expected.split("\n"), read.split("\n"), "expected", "read", lineterm="")
            wrong.append("\n".join([f"{file.name}:{line}: {title}", *difference]))
            case = f"{title}\n.\n{source}.\n"
            renewed = renewed.replace(f"{case}{expected}.\n", f"{case}{read}.\n")
    if os.environ.get("GOLDEN"):
        file.write_text(renewed, encoding="utf-8")
    assert not wrong, "\n\n".join(wrong)


def test_a_long_line_of_restructured_text_is_read():
    """docutils refuses lines of more than 10,000 characters where it is not told otherwise."""
    paragraphs = parse_file("d/report.rst", b"It is 5 MW. " * 5000).sections[0].paragraphs
    assert sum(len(paragraph.text) for paragraph in paragraphs) > 50_000
