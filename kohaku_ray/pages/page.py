"""The template environment of all pages: every text on a page is made safe, and only our own script runs."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from kohaku_ray.pages.text import cut, visible

_TEMPLATES = Path(__file__).parent / "templates"

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


def page_environment(n_chars: int = 200) -> jinja2.Environment:
    """Open the templates: every text is escaped, and invisible characters in it are shown.

    Pages state a content policy that runs the script of ``page.js`` by its digest and no other, loads nothing and sends
    nothing: a text that got past the escaping would still do nothing.

    Args:
        n_chars: Characters that the filter ``cut`` leaves of a text, unless told otherwise.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["count"] = lambda n: f"{n:,}"
    environment.filters["cut"] = lambda text, n=n_chars: cut(text, n)
    script = (_TEMPLATES / "page.js").read_text(encoding="utf-8")
    environment.globals["script"] = Markup(script)  # noqa: S704 - ours
    environment.globals["policy"] = f"{_POLICY}; script-src '{digest_of(script)}'"
    return environment


def digest_of(script: str) -> str:
    """Return a script's digest as a content policy names it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


def _finalize(value: Any) -> Any:
    """Make a text safe before it is put on the page; jinja escapes the result."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value
