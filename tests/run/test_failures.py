"""Error texts, grouped."""

from __future__ import annotations

from kohaku_ray.run.failures import MOST_KINDS, describe_errors, group_errors


def test_texts_that_differ_in_ids_alone_are_one_and_a_status_is_kept():
    texts = [f"HTTP 401 Unauthorized (request req-{number:010d})" for number in range(7)]
    assert group_errors([*texts, None, "", "HTTP 500 broken\n  twice"]) == {
        "HTTP 401 Unauthorized (request …)": 7,
        "HTTP 500 broken twice": 1,
    }


def test_the_most_frequent_come_first_and_the_rest_are_counted():
    errors = {f"kind {letter}": number for number, letter in enumerate("abcdefgh", 1)}
    lines = describe_errors(errors)
    assert lines[0] == "8 × kind h"
    assert lines[-1] == f"and {8 - MOST_KINDS} more kinds of errors"
    assert describe_errors({}) == []
