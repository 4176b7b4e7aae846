"""The readme that a package index shows: README.md, with links that lead somewhere outside the repository."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)]*)\)")


def write_outside(readme: str, source: str | None) -> str:
    """Point relative links below ``source``, the address of the repository's files.

    Without one a link's text is kept, with the command that prints the page, and a picture is left out.
    """

    def rewritten(link: re.Match[str]) -> str:
        mark, text, place = link.groups()
        if source is not None:
            return f"{mark}[{text}]({source.rstrip('/')}/{place})"
        page = re.fullmatch(r"docs/(\w+)\.md(#.*)?", place)
        return "" if mark else f"{text} (`kohaku-ray docs {page[1]}`)" if page else text

    return re.sub(r"\n{3,}", "\n\n", _LINK.sub(rewritten, readme))


class ReadmeHook(MetadataHookInterface):
    """Fills ``project.readme``."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Rewrite README.md; ``project.urls.Source`` is the address of its files, where there is one."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        source = metadata.get("urls", {}).get("Source")
        metadata["readme"] = {"content-type": "text/markdown", "text": write_outside(text, source)}
