"""The part of a ranking that each member of an ensemble is shown."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohaku_ray.retrieval.fusion import Ranked
from kohaku_ray.retrieval.parts import HEAD, part_of


def ranking(n_dense, n_lexical=0):
    n = n_dense + n_lexical
    score = np.concatenate([np.linspace(1.0, 0.1, n_dense), np.linspace(9.0, 5.0, n_lexical)])
    frequency = np.repeat([1, 0], [n_dense, n_lexical]).astype(np.int64)
    return Ranked(np.arange(100, 100 + n), score, frequency, score.copy(), score.copy(), n_dense)


sizes = st.tuples(st.integers(0, 40), st.integers(0, 8), st.integers(1, 9))


@given(sizes)
def test_split_shares_the_head_and_divides_the_rest_without_loss_or_repeat(size):
    n_dense, n_lexical, n = size
    ranked = ranking(n_dense, n_lexical)
    head = ranked.rows[: min(HEAD, n_dense)].tolist()
    parts = [part_of(ranked, "split", number, n).rows.tolist() for number in range(n)]
    assert all(part[: len(head)] == head for part in parts)
    rest = [row for part in parts for row in part[len(head) :]]
    assert sorted(rest) == sorted(set(ranked.rows.tolist()) - set(head))
    assert max(map(len, parts)) - min(map(len, parts)) <= 2


@given(sizes)
def test_rotated_shows_all_matches_in_an_order_of_its_own(size):
    n_dense, n_lexical, n = size
    ranked = ranking(n_dense, n_lexical)
    parts = [part_of(ranked, "rotated", number, n) for number in range(n)]
    for part in parts:
        assert sorted(part.rows) == sorted(ranked.rows)
        assert set(part.rows[:n].tolist()) == set(ranked.rows[:n].tolist()) or n_dense < n
        assert (part.score == ranked.score).all(), "the score of its place: windows follow the order too"
        assert dict(zip(part.rows, part.total, strict=True)) == dict(zip(ranked.rows, ranked.total, strict=True))
    assert len({tuple(part.rows) for part in parts}) == n or n_dense < n
    assert (parts[0].rows == ranked.rows).all()


@pytest.mark.parametrize("how", ["same", "rotated", "split"])
def test_matches_of_bm25_stay_behind_those_of_vectors(how):
    ranked = ranking(12, 6)
    for number in range(4):
        part = part_of(ranked, how, number, 4)
        assert part.n_dense == (part.rows < 112).sum() > 0
        assert (part.rows[: part.n_dense] < 112).all()
        assert (part.frequency[part.n_dense :] == 0).all()
        assert len(part) > part.n_dense


@pytest.mark.parametrize("how", ["same", "rotated", "split"])
def test_one_member_sees_everything(how):
    assert part_of(ranking(9, 2), how, 0, 1).rows.tolist() == ranking(9, 2).rows.tolist()
