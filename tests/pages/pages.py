"""A written page, read back for tests."""

import base64
import hashlib
import re
import zlib
from html.parser import HTMLParser
from pathlib import Path

from kohaku_ray.pages.report import write_report

PAGE_TAGS = set(
    """html head meta title style body header main section footer nav div span p h1 h2 h3 dl dt dd ul ol li table thead
    tbody tr th td a b bdi code mark blockquote details summary figure figcaption input label abbr sup br
    noscript form select option output button kbd script
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
        if self.cdata_elem not in {"style", "script"}:
            self.text += data
            self.spaced += data


def page_of(run, truth=None, **more):
    """The page with everything opened."""
    return opened(Path(write_report(str(run), truth and str(truth), **more)).read_text(encoding="utf-8"))


def opened(html):
    """Put every packed part where the page's script puts it."""
    parts = re.findall(r'<script type="text/plain" id="chunk-(\d+)">([A-Za-z0-9+/=]*)</script>\n', html)
    chunks = {number: zlib.decompress(base64.b64decode(text)).decode().split("\0") for number, text in parts}
    html = re.sub(r'<script type="text/plain" id="chunk-\d+">[A-Za-z0-9+/=]*</script>\n', "", html)
    return re.sub(
        r'( id="[^"]*") data-chunk="(\d+)" data-part="(\d+)">', lambda m: f"{m[1]}>{chunks[m[2]][int(m[3])]}", html
    )


def plain(html):
    """The page's text, its white space collapsed."""
    return " ".join(Tags(html).spaced.split())


def check_harmless(html):
    """No foreign tag, no handler, no address that loads or runs, and no script but the one that the policy names."""
    tags = Tags(html).tags
    scripts = re.findall(r"<script[^>]*>(.*?)</script>", html, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    policies = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)
    assert len(policies) == 1
    assert re.findall(r"script-src (\S+)", policies[0].replace("&#39;", "'")) == [
        f"'sha256-{digest}'" for digest in digests
    ]
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


def without_drawings(html):
    """The page without style sheet and script, and with what its plots say in their place."""
    html = re.sub(r"<(style|script)>.*?</\1>", "", html, flags=re.DOTALL)
    html = re.sub(r"sha256-[\w+/=]+", "sha256-", html)
    html = re.sub(r"<!-- sha256 \w+ -->", "<!-- sha256 -->", html)
    return re.sub(r'<svg role="img" aria-label="([^"]*)".*?</svg>', r"[\1]", html, flags=re.DOTALL)
