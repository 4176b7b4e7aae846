"""One reader: what is one answer to a vote, by a table of pairs with reasons, and over the values of recorded runs."""

from __future__ import annotations

import csv
import os
from collections import defaultdict
from pathlib import Path

import pytest

from kohaku_ray.evaluation.answers import exact_value
from kohaku_ray.evaluation.wattbot import WATTBOT2026, kaggle_value, wattbot_value
from kohaku_ray.evaluation.submissions import SubmissionRow
from kohaku_ray.values.normalise import group_values, normalise
from kohaku_ray.values.read import is_abstention
from tests.values.pairs import DIFFERENT, EQUAL

DATA = Path(os.environ.get("KOHAKU_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
ROWS = [
    (first, other, unit, is_same, reason)
    for table, is_same in ((EQUAL, True), (DIFFERENT, False))
    for reason, unit, pairs in table
    for first, other in pairs
]


def test_the_table_has_three_hundred_pairs_each_once():
    assert len(ROWS) >= 300
    assert len({row[:3] for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize(("first", "other", "unit", "is_same", "reason"), ROWS)
def test_a_vote_groups_what_is_one_answer(first, other, unit, is_same, reason):
    groups = [0, 0] if is_same else [0, 1]
    assert group_values([first, other], unit) == groups, reason
    assert group_values([other, first], unit) == groups, reason
