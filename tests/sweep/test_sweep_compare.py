from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from kit.installed import OnDemand

from kohaku_ray.errors import DataError
from kohaku_ray.evaluation.paired import paired_bootstrap, paired_permutation, permute_against_best
from kohaku_ray.evaluation.statistics import stars
from kohaku_ray.evaluation.wattbot import WATTBOT
from kohaku_ray.sweep.compare import Axis, SweepCell, SweepTable, compare_column, select_best
from kohaku_ray.sweep.statistics import compute_stats

stats = OnDemand("scipy.stats")

RNG = np.random.default_rng(0)
QUESTIONS = tuple(f"q{i}" for i in range(41))


def cell(name, value, questions=QUESTIONS, **labels):
    value = np.asarray(value, dtype=float)
    parts = {"value": value, "ref": np.ones_like(value), "abstain": np.ones_like(value)}
    seeds, asked = tuple(range(len(value))), tuple(questions)[: value.shape[1]]
    total = WATTBOT.shares(parts, [False] * len(asked))
    return SweepCell(name, labels or {"model": name}, "finished", "", seeds, asked, parts, total)


def drawn(name, share, n_seeds=3, questions=QUESTIONS):
    return cell(name, RNG.random((n_seeds, len(questions))) < share, questions)


def failed(name, **labels):
    return SweepCell(name, labels or {"model": name}, "failed", "no model")


def test_every_scored_cell_meets_the_best():
    cells = [drawn("a", 0.5), drawn("b", 0.9), failed("c"), drawn("d", 0.7)]
    comparisons = compare_column(cells)
    assert [each.cell_id for each in comparisons] == ["a", "b", "d"]
    assert [each.is_best for each in comparisons] == [False, True, False]
    assert [each.is_second for each in comparisons] == [False, False, True]
    a = comparisons[0]
    assert (a.n_questions, a.n_seeds, a.n_common) == (41, 3, 41)
    assert a.mean == pytest.approx(cells[0].scores.mean())
    assert a.sd == pytest.approx(np.std(cells[0].scores, ddof=1))


def test_figures_are_those_of_the_tests_on_seeds_and_questions():
    cells = [drawn("a", 0.5), drawn("b", 0.9), drawn("c", 0.75)]
    comparisons = compare_column(cells)
    for mine, each in ((cells[0], comparisons[0]), (cells[2], comparisons[2])):
        peer = stats.ttest_ind(mine.scores, cells[1].scores, equal_var=False)
        assert each.welch.p == pytest.approx(peer.pvalue)
        difference = mine.by_question - cells[1].by_question
        difference[np.abs(difference) < 1e-12] = 0.0
        assert each.interval.mean == pytest.approx(difference.mean())
        peer_interval = paired_bootstrap(difference)
        assert (each.interval.low, each.interval.high) == pytest.approx((peer_interval.low, peer_interval.high))
        assert each.permutation.p == pytest.approx(paired_permutation(difference).p)
        assert each.d_z == pytest.approx(difference.mean() / difference.std(ddof=1))
    peer_p = permute_against_best(np.array([each.by_question for each in cells]), 1)
    assert [each.corrected_p for each in comparisons] == [peer_p[0], None, peer_p[2]]
    assert [each.stars for each in comparisons] == [stars(peer_p[0]), "", stars(peer_p[2])]


def test_questions_of_a_cluster_are_flipped_and_resampled_together():
    cells = [drawn("a", 0.4), drawn("b", 0.8), drawn("c", 0.6)]
    clusters = {key: str(number // 4) for number, key in enumerate(QUESTIONS)}
    alone, together = compare_column(cells)[0], compare_column(cells, clusters)[0]
    difference, names = cells[0].by_question - cells[1].by_question, list(clusters.values())
    assert together.interval == paired_bootstrap(difference, clusters=names) != alone.interval
    assert together.permutation == paired_permutation(difference, clusters=names) != alone.permutation
    scores = np.array([each.by_question for each in cells])
    assert together.corrected_p == permute_against_best(scores, 1, names)[0] != alone.corrected_p
    assert select_best(cells, WATTBOT, clusters).n_clusters == 11


def test_cells_of_an_exact_tie_are_all_the_best_and_rounding_is_a_tie():
    first, second = np.zeros((3, 4)), np.zeros((3, 4))
    first[0, 0] = first[1, 1] = second[2, 3] = second[2, 2] = 1.0
    comparisons = compare_column([cell("low", np.zeros((3, 4))), cell("x", first), cell("y", second)])
    assert [each.is_best for each in comparisons] == [False, True, True]
    assert not any(each.is_second for each in comparisons), "the last place is no second one (users5.md 2.11)"
    assert comparisons[2].interval.mean == pytest.approx(0.0)
    exact, rounded = cell("exact", [[0.3]]), cell("rounded", [[0.1 + 0.2 + 1e-16]])
    assert rounded.scores.mean() > exact.scores.mean()
    assert compare_column([exact, rounded])[0].is_best


def test_other_questions_are_compared_on_those_both_have():
    best = cell("best", np.ones((2, 6)), ["q0", "q1", "q2", "q3", "q4", "q5"])
    # in another order, two of its own; on q1, q3, q5 it is right once
    other = cell("other", [[0, 1, 0, 0, 1], [0, 1, 0, 0, 0]], ["q9", "q5", "q3", "q1", "q8"])
    comparisons = compare_column([other, best])[0]
    assert (comparisons.n_questions, comparisons.n_common) == (5, 3)
    assert comparisons.mean == pytest.approx(0.25 + 0.75 * 0.3)
    assert comparisons.interval.mean == pytest.approx(-0.5)  # 0.75 × 2 of 3
    assert comparisons.permutation.n_nonzero == 2
    assert "no variance" in comparisons.welch.reason


def test_nothing_in_common_is_said_and_not_counted():
    best, other = cell("best", np.ones((3, 2)), ["q0", "q1"]), cell("other", np.zeros((3, 2)), ["q8", "q9"])
    near = cell("near", [[1, 0], [1, 0], [1, 0]], ["q0", "q1"])
    _, apart, close = compare_column([best, other, near])
    assert apart.n_common == 0
    assert apart.welch.reason == apart.interval.reason == apart.permutation.reason == "no question that both have"
    assert (apart.corrected_p, apart.d_z, apart.stars) == (None, None, "")
    assert close.corrected_p == close.permutation.p == 1.0


def test_one_seed_has_no_welch_but_a_paired_test():
    comparisons = compare_column([drawn("a", 0.9, n_seeds=1), drawn("b", 0.3, n_seeds=1)])[1]
    assert comparisons.sd is None
    assert comparisons.welch.p is None
    assert "1 and 1 seeds" in comparisons.welch.reason
    assert comparisons.corrected_p == comparisons.permutation.p < 0.05
    assert comparisons.stars


def test_a_column_alone_or_without_scores():
    assert compare_column([]) == []
    assert compare_column([failed("a")]) == []
    (alone,) = compare_column([drawn("a", 0.5), failed("b")])
    assert (alone.is_best, alone.is_second, alone.n_common) == (True, False, 41)
    assert alone.welch.reason == alone.permutation.reason == "it is the best of its column"


def test_a_score_that_is_no_number_is_named():
    value = np.ones((2, 3))
    value[1, 2] = np.nan
    message = r"cell a \(model=a\): the score of q2 under seed 1 is nan: every score must be a finite number"
    with pytest.raises(DataError, match=message):
        compare_column([cell("a", value)])


def grid(scores, lacking=()):
    """A table of rows × columns; ``lacking`` names cells that failed."""
    cells = []
    for row, line in scores.items():
        for column, n_right in zip("48", line, strict=True):
            labels = {"model": row, "k": column}
            name = row + column
            value = [[1.0] * n_right + [0.0] * (10 - n_right)] * 3
            cells.append(failed(name, **labels) if name in lacking else cell(name, value, **labels))
    return SweepTable("t", "T", (Axis("model", tuple(scores)), Axis("k", ("4", "8"))), tuple(cells))


def test_average_rank_over_columns():
    table = grid({"a": (9, 5), "b": (7, 5), "c": (1, 8)})
    assert compute_stats(table).average == {("a",): 1.75, ("b",): 2.25, ("c",): 2.0}


def test_average_rank_leaves_out_what_is_not_complete():
    scores = {"a": (9, 5), "b": (7, 6), "c": (1, 8)}
    assert compute_stats(grid(scores, {"c8"})).average == {("a",): 1.0, ("b",): 2.0, ("c",): 3.0}
    assert compute_stats(grid(scores, {"c4", "c8"})).average == {("a",): 1.5, ("b",): 1.5}
    assert compute_stats(grid(scores, {"c4", "b8"})).average == {}
    assert compute_stats(grid(scores, {row + k for row in "abc" for k in "48"})).average == {}


def test_cells_with_other_questions_are_left_out_of_the_selection_and_order_does_not_matter():
    a, b = drawn("a", 0.9), drawn("b", 0.4)
    turned = replace(b, question_ids=b.question_ids[::-1], total=b.total[:, ::-1])
    few = drawn("few", 1.0, questions=QUESTIONS[:5])
    selection = select_best([a, turned, few, failed("x"), a], WATTBOT)
    assert (selection.n_cells, selection.n_left_out, selection.n_questions, selection.best) == (2, 1, 41, "a")
    assert replace(selection, n_left_out=0) == select_best([a, b], WATTBOT)
    assert select_best([a, few]) is None
    assert select_best([failed("x")]) is None
