"""How much of the hand-made fixtures the rules read."""

from __future__ import annotations

from pathlib import Path

import pytest

from kohaku_ray.errors import DataError
from kohaku_ray.systems.narrative.reasoning.findings import RULES
from kohaku_ray.systems.narrative.reasoning.fixtures import ASPECTS, Tally, measure, read_fixtures, table

PATH = Path(__file__).parent / "fixtures.yaml"


def test_precision_and_recall_over_the_fixtures(capsys: pytest.CaptureFixture[str]) -> None:
    fixtures = read_fixtures(PATH)
    tallies = measure(fixtures)
    with capsys.disabled():
        print(f"\n{len(fixtures)} fixtures\n{table(tallies)}")
    assert len(fixtures) >= 60
    for name, tally in tallies.items():
        assert tally.precision >= 0.98, (name, tally.cases)
        assert tally.recall >= 0.85, (name, tally.cases)
        assert tally.right >= 3, name
    assert sum(not fixture.expected["findings"] for fixture in fixtures) >= 30


def test_every_fixture_has_a_name_of_its_own() -> None:
    ids = [fixture.fixture_id for fixture in read_fixtures(PATH)]
    assert len(set(ids)) == len(ids)


def test_a_tally_counts_what_is_right_wrong_and_missed() -> None:
    tally = Tally()
    assert (tally.precision, tally.recall) == (1.0, 1.0)
    tally.count(frozenset("ab"), frozenset("bcd"), "x")
    assert (tally.right, tally.wrong, tally.missed) == (1, 1, 2)
    assert (tally.precision, tally.recall) == (1 / 2, 1 / 3)
    assert tally.cases == ["x: a is wrong", "x: c is missed", "x: d is missed"]
    assert "precision 0.50  recall 0.33  (1 right, 1 wrong, 2 missed)" in table({"all": tally})


def test_a_wrong_expectation_costs(tmp_path: Path) -> None:
    path = tmp_path / "fixtures.yaml"
    path.write_text(
        "books: {b: '“Yes,” said Faria. Faria rose.'}\nfixtures:\n"
        "- {id: a, book: b, character: Faria, story: He was born in 1790., excerpts: [Faria was born in 1768.],"
        " people: [Faria], years: [1790], findings: [[died_twice, 0]]}\n",
        encoding="utf-8",
    )
    tallies = measure(read_fixtures(path))
    assert [(tallies[aspect].right, tallies[aspect].wrong, tallies[aspect].missed) for aspect in ASPECTS] == [
        (1, 0, 0),
        (0, 0, 0),
        (1, 1, 0),
        (0, 1, 1),
    ]
    assert tallies["findings.born_twice"].wrong == tallies["findings.died_twice"].missed == 1
    assert set(tallies) == {*ASPECTS, *(f"findings.{rule}" for rule in RULES)}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{id: a, book: c, character: F, story: S, excerpts: []}", "fixture a is of book 'c', known are b"),
        ("{id: a, book: b, character: F, story: S}", "fixture a lacks 'excerpts'"),
        (
            "{id: a, book: b, character: F, story: S, excerpts: [], findings: [[born, 0]]}",
            "fixture a expects rule 'born', known are",
        ),
    ],
)
def test_a_bad_fixture_is_refused(tmp_path: Path, row: str, message: str) -> None:
    path = tmp_path / "fixtures.yaml"
    path.write_text(f"books: {{b: Text}}\nfixtures:\n- {row}\n", encoding="utf-8")
    with pytest.raises(DataError, match=message):
        read_fixtures(path)
