"""Limits of an HTML page, so that parsing takes time in proportion to its length."""

from __future__ import annotations

import re

from kohaku_ray.errors import DataError


def words(text: str) -> frozenset[str]:
    """Split a text into the set of its words."""
    return frozenset(text.split())


MAX_DEPTH = 2000
"""Most tags open at a time: the HTML standard's algorithm takes time quadratic in them."""

MAX_REOPENED = 1_000_000
"""Most elements made by reopening formatting tags: each block reopens all that were left open."""

MAX_ATTRIBUTES = 5000
"""Most attributes of one tag: the standard has each compared with all before it."""

_TAG = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9-]*)")
_ATTRIBUTE = re.compile(r"""[\s/]*[^\s/>][^\s/>=]*(?:\s*=\s*(?:"[^"]*"|'[^']*'|[^\s>"'][^\s>]*)?)?""")
_FORMATTING = words("a b big code em font i nobr s small strike strong tt u")
_OPTIONAL_END = words(
    """p li dd dt tr td th thead tbody tfoot option optgroup colgroup caption rp rt html head body
    area base br col embed hr img input link meta source track wbr param path"""
)


def check_depth(name: str, source: str) -> None:
    """Reject a page whose tags are nested, or left open, beyond what the parser reads in bounded time."""
    if source.count("<") <= MAX_DEPTH // 2:
        return
    depth = n_open = n_reopened = 0
    for closing, name_of_tag in _TAG.findall(source):
        tag = name_of_tag.lower()
        if tag in _FORMATTING:
            n_open = max(0, n_open - 1) if closing else n_open + 1
        elif not closing:
            n_reopened += n_open
            if n_reopened > MAX_REOPENED:
                raise DataError(
                    f"{name} leaves tags like <b> and <font> open: they are reopened more than {MAX_REOPENED:,} times "
                    f"(<{tag}> is the last): close them (HTML Tidy does so)."
                )
        if tag in _OPTIONAL_END:
            continue
        depth = max(0, depth - 1) if closing else depth + 1
        if depth > MAX_DEPTH:
            raise DataError(
                f"{name} is nested too deep: more than {MAX_DEPTH:,} tags are open at a time (<{name_of_tag}> is "
                "the last): close them (HTML Tidy does so)."
            )


def check_attributes(name: str, source: str) -> None:
    """Reject a page with a tag of more than `MAX_ATTRIBUTES`."""
    end = at = 0
    for tag in _TAG.finditer(source):
        if tag.start() < at:
            continue  # part of the tag before
        if end <= tag.end():
            end = source.find(">", tag.end()) + 1 or len(source)
        if end - tag.end() <= 2 * MAX_ATTRIBUTES:
            continue
        n, at = 0, tag.end()
        while (attribute := _ATTRIBUTE.match(source, at)) is not None:
            n, at = n + 1, attribute.end()
            if n > MAX_ATTRIBUTES:
                raise DataError(
                    f"{name}: a tag <{tag[2]}> has more than {MAX_ATTRIBUTES:,} attributes: remove the unused ones."
                )
