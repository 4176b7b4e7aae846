"""Make titled sections of six levels of headings, for formats that mark their headings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kohaku_ray.documents.model import Paragraph, Section
from kohaku_ray.documents.text import PATH


@dataclass
class Draft:
    """A section being read: the headings that lead to it, and its paragraphs."""

    headings: tuple[str, ...]
    paragraphs: list[Paragraph] = field(default_factory=list)


def heading_path(above: Sequence[str], level: int, heading: str) -> tuple[str, ...]:
    """The headings that lead to a new one; a level left out (h1, h3) is an empty string."""
    return (*above[: level - 1], *[""] * (level - 1 - len(above)), heading)


def finish(drafts: Sequence[Draft], title: str) -> tuple[Section, ...]:
    """Make sections of drafts; leave out an empty one whose title the document's or the next section's repeats."""
    following = [*drafts[1:], Draft(())]
    return tuple(
        Section(_section_title(draft.headings, title), tuple(draft.paragraphs))
        for draft, after in zip(drafts, following, strict=True)
        if draft.paragraphs or not _is_named_later(draft.headings, after.headings, title)
    )


def _section_title(headings: Sequence[str], title: str) -> str:
    return PATH.join(heading for i, heading in enumerate(headings) if heading and (i, heading) != (0, title)) or title


def _is_named_later(headings: Sequence[str], after: Sequence[str], title: str) -> bool:
    return _section_title(headings, title) == title or tuple(after[: len(headings)]) == tuple(headings)
