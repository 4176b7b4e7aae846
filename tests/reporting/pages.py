"""A written page, read back for tests."""

import re
from html.parser import HTMLParser
from pathlib import Path

from kohaku_ray.reporting.report import write_report

PAGE_TAGS = set(
    """html head meta title style body header main section footer nav div span p h1 h2 h3 dl dt dd ul ol li table thead
    tbody tr th td a b bdi code mark blockquote details summary figure figcaption input label abbr sup br
    svg defs g path use text clippath rect image tspan""".split()  # noqa: SIM905
)


class Tags(HTMLParser):
    """Every tag with its attributes, and the text without the style sheet; cells and blocks stand apart."""

    APART = frozenset({"td", "th", "p", "li", "div", "dt", "dd", "h1", "h2", "h3", "span", "blockquote"})

    def __init__(self, html):
        super().__init__()
        self.tags, self.text, self.spaced = [], "", ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.spaced += " " if tag in self.APART else ""

    def handle_endtag(self, tag):
        self.spaced += " " if tag in self.APART else ""

    def handle_data(self, data):
        if self.cdata_elem != "style":
            self.text += data
            self.spaced += data


def page_of(run, truth=None, **more):
    return Path(write_report(str(run), truth and str(truth), **more)).read_text(encoding="utf-8")


def plain(html):
    """The page's text, its white space collapsed."""
    return " ".join(Tags(html).spaced.split())


def check_harmless(html):
    """No foreign tag, no handler, no address that loads or runs."""
    tags = Tags(html).tags
    assert {tag for tag, _ in tags} <= PAGE_TAGS
    for tag, attributes in tags:
        assert not [name for name in attributes if name.startswith("on") or name in {"srcdoc", "action", "background"}]
        for name in ("href", "src", "xlink:href"):
            address = attributes.get(name)
            if address is None:
                continue
            assert (
                address.startswith("#")
                or (tag == "a" and re.match(r"https?://", address))
                or address.startswith("data:")
            )
            if tag == "a" and not address.startswith("#"):
                assert attributes["rel"] == "noopener noreferrer"


def question(page, key):
    start = page.index(f'<div class="body" id="q-{key}"')
    end = page.find('<details class="q card', start)
    return plain(page[page.rindex("<summary>", 0, start) : end if end > 0 else page.index("<footer")])
