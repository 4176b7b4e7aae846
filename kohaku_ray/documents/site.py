"""What the pages of a site repeat: blocks that stand on most HTML files of a directory."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from kohaku_ray.documents.figures import map_named
from kohaku_ray.documents.model import Document
from kohaku_ray.documents.parse import parse_file, read_in_time
from kohaku_ray.errors import DataError

MAX_PAGES = 12  # most pages of a directory that are compared
MIN_PAGES = 3  # fewest pages that repeat a block
MIN_SHARE = 0.5  # least share of the pages compared
_SUFFIXES = (".html", ".htm")


def without_repeated(document: Document, file: str, timeout_s: float) -> Document:
    """Drop the blocks that most pages of a local HTML file's directory repeat, but for the first page.

    A page that would have no block left stays whole.
    """
    if "://" in file or not file.lower().endswith(_SUFFIXES):
        return document
    folder = os.path.dirname(os.path.abspath(file))
    repeated = _repeated(folder, os.stat(folder).st_mtime_ns, timeout_s)
    gone = {text for text, first in repeated.items() if first != os.path.basename(file)}
    found = [paragraph.text for section in document.sections for paragraph in section.paragraphs]
    n_gone = sum(text in gone for text in found)
    if not n_gone or n_gone == len(found):
        return document
    kept = map_named(document, lambda paragraph: None if paragraph.text in gone else paragraph)
    sections = (new for old, new in zip(document.sections, kept.sections, strict=True) if new.paragraphs or old == new)
    odd = f"{n_gone:,} block{'s' * (n_gone > 1)} that other pages of its directory repeat, not indexed"
    return replace(kept, sections=tuple(sections), odd=(*document.odd, odd))


@lru_cache(maxsize=64)
def _repeated(folder: str, changed_ns: int, timeout_s: float) -> Mapping[str, str]:
    """Blocks that most pages of a directory repeat, each with the first of them; ``changed_ns`` renews the cache."""
    names = sorted(name for name in os.listdir(folder) if name.lower().endswith(_SUFFIXES) and name[0] != ".")
    first: dict[str, str] = {}
    counts: Counter[str] = Counter()
    compared = names[:: -(-len(names) // MAX_PAGES) or 1]
    for name in compared if len(compared) >= MIN_PAGES else ():
        path = os.path.join(folder, name)
        try:
            page = parse_file(path, read_in_time(path, timeout_s), timeout_s)
        except DataError:
            continue
        texts = {paragraph.text for section in page.sections for paragraph in section.paragraphs if paragraph.text}
        counts.update(texts)
        first = dict.fromkeys(texts, name) | first
    return {text: first[text] for text, n in counts.items() if n >= max(MIN_PAGES, MIN_SHARE * len(compared))}
