"""The template environment of all pages: every text on a page is made safe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from kohaku_ray.reporting.text import visible


def page_environment() -> jinja2.Environment:
    """Open the templates: every text is escaped, and invisible characters in it are shown."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["count"] = lambda n: f"{n:,}"
    return environment


def _finalize(value: Any) -> Any:
    """Make a text safe before it is put on the page; jinja escapes the result."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value
