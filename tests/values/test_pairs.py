"""One reader: what is one answer to a vote, by pairs of recorded runs and reports, and over all recorded values."""

from __future__ import annotations

import csv
import os
from collections import defaultdict
from pathlib import Path

import pytest
from values.pairs import DIFFERENT, EQUAL

from kohaku_ray.evaluation.answers import exact_value
from kohaku_ray.evaluation.wattbot import kaggle_value, wattbot_value
from kohaku_ray.values.normalise import group_values, normalise
from kohaku_ray.values.read import is_abstention, parse_number

DATA = Path(os.environ.get("KOHAKU_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
PAIRS = [
    (source, unit, first, other, is_same)
    for table, is_same in ((EQUAL, True), (DIFFERENT, False))
    for source, unit, first, others in table
    for other in others
]

PUBLISHED_ALONE = {
    ("[80,90]", "80"): "kaggle: a number in a true range is right",
    ("[80,90]", "85"): "kaggle: a number in a true range is right",
    ("[0.02,0.1]", "0.02"): "kaggle: a number in a true range is right",
}
"""What a published scorer takes for equal and a vote does not group, with its reason."""


def test_a_vote_groups_what_is_one_answer():
    def is_grouped(first, other, unit):
        return [group_values(pair, unit) == [0, 0] for pair in ([first, other], [other, first])]

    assert [pair for pair in PAIRS if is_grouped(pair[2], pair[3], pair[1]) != [pair[4]] * 2] == []


def test_the_metric_that_reads_values_as_a_vote_does_agrees_with_it():
    wrong = [pair for pair in PAIRS if exact_value(pair[2], pair[3], pair[1]) != pair[4] and "is_blank" not in pair]
    assert wrong == []


def test_a_vote_groups_what_the_published_scorers_take_for_equal():
    scored = [pair for pair in PAIRS if wattbot_value(*pair[2:4]) or kaggle_value(*pair[2:4])]
    assert [pair for pair in scored if not pair[4] and pair[2:4] not in PUBLISHED_ALONE] == []
    assert len(scored) > 20


def recorded_values() -> dict[str, tuple[str, set[str]]]:
    """By question: its unit, and every value that recorded runs and the gold answers spell."""
    folder = DATA / "wattbot"
    if not (folder / "predictions").is_dir():
        pytest.skip(f"there are no recorded runs in {folder}/predictions")
    units: dict[str, str] = {}
    values: defaultdict[str, set[str]] = defaultdict(set)
    for path in (folder / "train_QA.csv", *sorted(folder.glob("predictions/*.csv"))):
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            for row in csv.DictReader(file):
                units.setdefault(row["id"], row.get("answer_unit") or "")
                values[row["id"]].add((row.get("answer_value") or "").strip())
    return {key: (units[key], spelled) for key, spelled in values.items()}


def test_votes_and_metrics_agree_on_every_value_of_recorded_runs():
    n_pairs = 0
    for unit, spelled in recorded_values().values():
        for first in spelled:
            for other in spelled:
                if is_abstention(first) or is_abstention(other):
                    continue
                n_pairs += 1
                is_one = group_values([first, other], unit) == [0, 0]
                kinds = {normalise(text, unit).kind for text in (first, other)}
                assert exact_value(first, other, unit) == is_one, (first, other, unit)
                if wattbot_value(first, other):
                    assert is_one, (first, other, unit)
                if kinds != {"pair", "number"} and kaggle_value(first, other) and not near_zero(first, other):
                    assert is_one, (first, other, unit)
    assert n_pairs > 1000


def near_zero(*texts: str) -> bool:
    """Whether numbers are so small that kaggle's absolute tolerance of 0.001 takes them for one."""
    numbers = [number for text in texts if (number := parse_number(text)) is not None]
    return len(numbers) == 2 and abs(numbers[0] - numbers[1]) <= 1e-3
