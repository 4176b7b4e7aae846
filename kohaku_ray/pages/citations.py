"""Cited documents as a page shows them: title and address."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kohaku_ray.pages.text import web_link


@dataclass(frozen=True, slots=True)
class Citation:
    """A cited document.

    Attributes:
        doc_id: Its id.
        title: Its title, where known.
        link: Its address, when that is a plain http or https one.
        address: Its address as text, when it is not.
    """

    doc_id: str
    title: str
    link: str
    address: str


@dataclass(frozen=True, slots=True)
class Documents:
    """Titles and addresses of documents.

    Attributes:
        titles: By document id.
        urls: By document id.
    """

    titles: Mapping[str, str]
    urls: Mapping[str, str]

    def cite(self, doc_ids: Sequence[str]) -> tuple[Citation, ...]:
        """Look up titles and addresses of cited documents."""
        return tuple(self._citation(doc_id) for doc_id in doc_ids)

    def _citation(self, doc_id: str) -> Citation:
        url = self.urls.get(doc_id, "")
        link = web_link(url)
        return Citation(doc_id, self.titles.get(doc_id, ""), link, "" if link else url)
