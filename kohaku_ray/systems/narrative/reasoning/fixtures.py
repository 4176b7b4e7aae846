"""Hand-made cases of what the rules should read, and how much of it they do read."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from kohaku_ray.errors import DataError
from kohaku_ray.systems.narrative.reasoning.entities import BookNames, read_names
from kohaku_ray.systems.narrative.reasoning.findings import RULES, Excerpt, find_contradictions
from kohaku_ray.systems.narrative.reasoning.years import find_years

ASPECTS = ("people", "places", "years", "findings")


@dataclass(frozen=True, slots=True)
class Fixture:
    """A story, excerpts of its book, and what should be read from them.

    Attributes:
        fixture_id: For messages.
        names: Of the small book.
        character: Whom the story is about.
        story: Its text.
        excerpts: Named by their place: ``0``, ``1``.
        expected: What each of `ASPECTS` should hold; of findings, rule and excerpt.
    """

    fixture_id: str
    names: BookNames
    character: str
    story: str
    excerpts: tuple[Excerpt, ...]
    expected: Mapping[str, frozenset[Hashable]]


@dataclass(slots=True)
class Tally:
    """How often what was read was right, what was expected was read.

    Attributes:
        right: Read and expected.
        wrong: Read, not expected.
        missed: Expected, not read.
        cases: What was wrong or missed, with its fixture.
    """

    right: int = 0
    wrong: int = 0
    missed: int = 0
    cases: list[str] = field(default_factory=list)

    @property
    def precision(self) -> float:
        """Share of what was read that is right; 1 when nothing was read."""
        return self.right / (self.right + self.wrong) if self.right + self.wrong else 1.0

    @property
    def recall(self) -> float:
        """Share of what was expected that was read; 1 when nothing was expected."""
        return self.right / (self.right + self.missed) if self.right + self.missed else 1.0

    def count(self, found: frozenset[Hashable], expected: frozenset[Hashable], where: str) -> None:
        """Add one case."""
        self.right += len(found & expected)
        self.wrong += len(found - expected)
        self.missed += len(expected - found)
        self.cases += [f"{where}: {item} is wrong" for item in sorted(map(str, found - expected))]
        self.cases += [f"{where}: {item} is missed" for item in sorted(map(str, expected - found))]


def read_fixtures(path: str | Path) -> list[Fixture]:
    """Read fixtures from YAML: ``books`` (name to text) and ``fixtures``.

    Raises:
        DataError: A fixture lacks a key, or names an unknown book or rule.
    """
    content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    names = {book: read_names([text], min_count=1) for book, text in content["books"].items()}
    return [_fixture(row, names, path) for row in content["fixtures"]]


def measure(fixtures: Iterable[Fixture]) -> dict[str, Tally]:
    """Compare what is read of fixtures with what is expected, by aspect; findings also by rule (``findings.RULE``)."""
    tallies = {aspect: Tally() for aspect in ASPECTS} | {f"findings.{rule}": Tally() for rule in sorted(RULES)}
    for fixture in fixtures:
        found = _read(fixture)
        for aspect in ASPECTS:
            tallies[aspect].count(found[aspect], fixture.expected[aspect], fixture.fixture_id)
        for rule in RULES:
            pair = (_of_rule(found["findings"], rule), _of_rule(fixture.expected["findings"], rule))
            tallies[f"findings.{rule}"].count(*pair, fixture.fixture_id)
    return tallies


def table(tallies: Mapping[str, Tally]) -> str:
    """Precision and recall as lines of text."""
    return "\n".join(
        f"{name:<34} precision {tally.precision:.2f}  recall {tally.recall:.2f}  "
        f"({tally.right} right, {tally.wrong} wrong, {tally.missed} missed)"
        for name, tally in tallies.items()
    )


def _fixture(row: Mapping[str, Any], names: Mapping[str, BookNames], path: str | Path) -> Fixture:
    try:
        if row["book"] not in names:
            raise DataError(f"{path}: fixture {row['id']} is of book {row['book']!r}, known are {', '.join(names)}.")
        findings = frozenset((rule, int(excerpt)) for rule, excerpt in row.get("findings", ()))
        if unknown := {rule for rule, _ in findings} - set(RULES):
            raise DataError(f"{path}: fixture {row['id']} expects rule {min(unknown)!r}, known are {', '.join(RULES)}.")
        expected: dict[str, frozenset[Hashable]] = {
            aspect: frozenset(row.get(aspect, ())) for aspect in ("people", "places", "years")
        }
        excerpts = tuple(_excerpt(i, excerpt) for i, excerpt in enumerate(row["excerpts"]))
        names_of = names[row["book"]]
        return Fixture(
            row["id"], names_of, row["character"], row["story"], excerpts, {**expected, "findings": findings}
        )
    except KeyError as error:
        raise DataError(f"{path}: fixture {row.get('id', '?')} lacks {error}: add it.") from None


def _excerpt(i: int, excerpt: str | Mapping[str, Any]) -> Excerpt:
    if isinstance(excerpt, str):
        return Excerpt(str(i), f"Chapter {i + 1}", excerpt)
    return Excerpt(str(i), f"Chapter {i + 1}", excerpt["text"], excerpt.get("anchor"))


def _read(fixture: Fixture) -> dict[str, frozenset[Hashable]]:
    entities = list(fixture.names.entities(fixture.story, fuzzy=True))
    years = list(find_years(fixture.story))
    for excerpt in fixture.excerpts:
        entities += fixture.names.entities(excerpt.text)
        years += find_years(excerpt.text, excerpt.anchor)
    findings = find_contradictions(fixture.story, fixture.character, fixture.excerpts, fixture.names, RULES)
    return {
        "people": frozenset(entity.name for entity in entities if entity.kind == "person"),
        "places": frozenset(entity.name for entity in entities if entity.kind == "place"),
        "years": frozenset(mention.year for mention in years),
        "findings": frozenset((finding.rule, int(finding.node_id)) for finding in findings),
    }


def _of_rule(findings: frozenset[Any], rule: str) -> frozenset[Hashable]:
    return frozenset(pair for pair in findings if pair[0] == rule)
