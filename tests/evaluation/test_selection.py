"""What a selection can tell, against simulations and recorded runs that know nothing of the formulas."""

import numpy as np
import pytest
from kit.installed import OnDemand

from kohaku_ray.evaluation.metrics import find_metric
from kohaku_ray.evaluation.selection import (
    ceiling,
    corrected_score,
    detectable_difference,
    pair_deviations,
    questions_needed,
    select,
)
from kohaku_ray.evaluation.submissions import read_submission
from kohaku_ray.evaluation.truth import read_truth, scored_rows

stats = OnDemand("scipy.stats")


def latent(rng, n_cells, n_questions):
    """Right or wrong by a cell's skill, a question's difficulty and what cells of one family have in common."""
    skill, difficulty = rng.normal(0.5, 0.3, (n_cells, 1)), rng.normal(0.0, 1.5, n_questions)
    family = rng.normal(0.0, 0.8, (6, n_questions))[np.arange(n_cells) % 6]
    return (rng.random((n_cells, n_questions)) < 1.0 / (1.0 + np.exp(difficulty - skill - family))) * 1.0


def told(here, elsewhere):
    """Optimism of the winner's score and of the corrected one on the other questions, and whether those are covered."""
    expected, low, high = corrected_score(here)
    best = np.round(here.mean(axis=1), 12).argmax()
    truth = elsewhere[best].mean()
    return here[best].mean() - truth, expected - truth, low <= truth <= high


@pytest.mark.parametrize("n", [8, 41])
def test_the_detectable_difference_is_found_by_a_paired_test_four_times_in_five(n):
    rng = np.random.default_rng(n)
    shown = detectable_difference(0.4, n)
    p = stats.ttest_1samp(rng.normal(shown, 0.4, (20_000, n)), 0.0, axis=1).pvalue
    assert np.mean(p < 0.05) == pytest.approx(0.8, abs=0.012)


def test_questions_needed_are_enough_and_a_tenth_fewer_are_not():
    n = questions_needed(0.4)
    assert detectable_difference(0.4, n) == pytest.approx(0.02, rel=0.002)
    assert detectable_difference(0.4, n * 9 // 10) > 0.0205


def test_deviations_of_pairs_are_those_of_the_differences():
    x = np.random.default_rng(0).random((5, 30))
    x[4] = x[3] + 0.1
    deviations = pair_deviations(x)
    for i in range(5):
        for j in range(5):
            assert deviations[i, j] == pytest.approx(np.std(x[i] - x[j], ddof=1), abs=1e-7)
    assert deviations[3, 4] == 0.0


def test_a_latent_model_of_difficulty_covers_the_corrected_score():
    rng = np.random.default_rng(1)
    made = [latent(rng, 40, 82) for _ in range(200)]
    apparent, corrected, is_covered = np.mean([told(x[:, :41], x[:, 41:]) for x in made], axis=0)
    assert apparent > 0.04
    assert abs(corrected) < 0.02  # three standard errors of 200 draws
    assert 0.89 <= is_covered <= 1.0


def test_a_winner_far_ahead_is_not_corrected_and_is_told_from_all():
    x = np.zeros((4, 30))
    x[2], x[0, :9], x[1, 9:18] = 1.0, 1.0, 1.0
    selection = select(dict(zip("abcd", x, strict=True)))
    assert (selection.best, selection.score, selection.expected) == ("c", 1.0, 1.0)
    assert selection.contenders == ["c"]


def test_ties_share_their_ranks_and_the_first_is_the_best():
    row = np.arange(12) % 2 * 1.0
    selection = select({"a": row, "b": row, "c": row * 0.0})
    assert (selection.best, selection.expected) == ("a", pytest.approx(0.5, abs=0.05))
    assert selection.contenders == ["a", "b"]
    assert (selection.ranks, selection.n_tied) == ({"a": 1.0, "b": 1.0, "c": 3.0}, {"a": 1, "b": 1, "c": 0})
    same = select({"a": row, "b": row})
    assert (same.detectable, same.detectable_best, same.n_needed) == (None, None, None)


@pytest.mark.parametrize("n", [1, 2])
def test_one_or_two_questions_tell_nothing(n):
    selection = select({"a": np.ones(n), "b": np.zeros(n)})
    assert (selection.detectable, selection.expected, selection.low) == (None, None, None)


def test_the_ceiling_is_clopper_and_pearsons():
    right = np.ones((41, 3), dtype=bool)
    right[:4] = False
    right[4, 1:] = False
    result = ceiling(right)
    assert (result.n_never, result.share) == (4, 4 / 41)
    low, high = stats.beta.ppf(0.025, 4, 38), stats.beta.ppf(0.975, 5, 37)
    assert (result.low, result.high) == pytest.approx((low, high))
    assert (ceiling(np.ones((5, 1))).low, ceiling(np.ones((5, 1))).n_never) == (0.0, 0)


@pytest.fixture(scope="module")
def recorded(data_path):
    """What every question adds to the scores of the recorded runs."""
    metric = find_metric("wattbot")
    truth = scored_rows(read_truth(data_path / "wattbot/train_QA.csv", [metric]), [metric])
    files = sorted((data_path / "wattbot/predictions").glob("*.csv"))
    return np.array([metric.shares_of(metric.score(truth, read_submission(file))) for file in files])


@pytest.mark.data
@pytest.mark.slow
def test_recorded_runs_cover_the_corrected_score_over_4000_splits(recorded):
    rng, figures = np.random.default_rng(0), []
    for _ in range(4_000):
        order = rng.permutation(recorded.shape[1])
        figures.append(told(recorded[:, order[:20]], recorded[:, order[20:]]))
    apparent, corrected, is_covered = np.mean(figures, axis=0)
    assert apparent == pytest.approx(0.077, abs=0.01)
    assert abs(corrected) <= 0.005
    assert 0.93 <= is_covered <= 0.97


@pytest.mark.data
def test_recorded_runs_say_what_41_questions_show(recorded):
    selection = select(dict(enumerate(recorded)))
    assert selection.score == pytest.approx(0.749085, abs=1e-5)
    assert (round(selection.detectable, 2), round(selection.detectable_best, 2)) == (0.16, 0.13)
    assert selection.n_needed > 1_000
    assert selection.expected < selection.score
    assert selection.low < selection.expected < selection.high <= 1.0
    assert 1 < len(selection.contenders) < len(recorded)


def test_clusters_of_one_question_change_nothing_and_larger_ones_widen_what_is_said():
    rng = np.random.default_rng(6)
    alike = np.repeat(rng.normal(0.5, 0.3, (4, 20)), 5, axis=1) + rng.normal(0, 0.05, (4, 100))
    scores = dict(zip("abcd", alike + np.array([[0.1], [0], [0], [0]]), strict=True))
    alone, single = select(scores), select(scores, clusters=list(map(str, range(100))))
    for name in ("detectable", "detectable_best", "expected", "low", "high"):
        assert getattr(single, name) == pytest.approx(getattr(alone, name)), name
    assert single.n_clusters == 100
    together = select(scores, clusters=[str(number // 5) for number in range(100)])
    assert together.detectable > 2 * alone.detectable
    assert together.n_needed > 4 * alone.n_needed
    assert together.high - together.low > 1.8 * (alone.high - alone.low)
    assert len(together.contenders) > len(alone.contenders)
