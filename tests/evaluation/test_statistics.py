from __future__ import annotations

import itertools
import math
from itertools import product

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kit.installed import OnDemand, loaded_after
from kit.properties import scaled
from kit.rows import check_rows

from kohaku_ray.errors import DataError
from kohaku_ray.evaluation import paired
from kohaku_ray.evaluation.metrics import QuestionScore, find_metric
from kohaku_ray.evaluation.paired import (
    Permutation,
    bounded_interval,
    mcnemar,
    paired_bootstrap,
    paired_differences,
    paired_effect,
    paired_permutation,
    permute_against_best,
    score_interval,
)
from kohaku_ray.evaluation.statistics import average_ranks, correlate, mean_sd, ranks, stars, welch

stats = OnDemand("scipy.stats")

# scores of questions as WattBot gives them: few distinct values, many ties
SCORE = st.sampled_from([0.0, 0.1, 0.175, 0.25, 0.75, 0.85, 0.9, 0.925, 1.0])
DIFFERENCE = st.integers(-20, 20).map(lambda i: i / 20)


def fields(result):
    return [getattr(result, name) for name in result.__dataclass_fields__]


def assert_defined_or_reasoned(result):
    """No NaN and no infinity, and a None only beside a reason."""
    numbers = [each for each in fields(result) if isinstance(each, float)]
    assert all(math.isfinite(number) for number in numbers)
    if any(each is None for each in fields(result)):
        assert result.reason


class TestMeanSd:
    def test_by_hand(self):
        assert mean_sd([1.0, 2.0, 3.0, 4.0]) == (2.5, pytest.approx(math.sqrt(5 / 3)))

    def test_one_value_has_no_deviation_and_rounding_is_none(self):
        assert mean_sd([0.7]) == (0.7, None)
        assert mean_sd([0.1 + 0.2, 0.3])[1] == 0.0

    def test_no_values(self):
        with pytest.raises(DataError, match="no values"):
            mean_sd([])


class TestWelch:
    def test_by_hand(self):
        # means 3 and 6, variances 1 and 4, 3 seeds each: error √(5/3), dof (5/3)² / ((1/3)²/2 + (4/3)²/2) = 50/17
        test = welch([2, 3, 4], [4, 6, 8])
        assert test.p == pytest.approx(2 * stats.t.cdf(-3 / math.sqrt(5 / 3), 50 / 17))
        # pooled deviation √2.5, and J(4) = Γ(2) / (√2 Γ(1.5))
        assert test.g == pytest.approx(-3 / math.sqrt(2.5) / (math.sqrt(2) * math.gamma(1.5)))
        assert test.reason == ""

    @pytest.mark.filterwarnings("ignore:Precision loss:RuntimeWarning")  # scipy's, of a side that does not vary
    @given(st.lists(SCORE, min_size=2, max_size=8), st.lists(SCORE, min_size=2, max_size=8))
    def test_equals_scipy(self, a, b):
        test = welch(a, b)
        assert_defined_or_reasoned(test)
        if len(set(a)) == len(set(b)) == 1:
            assert test.p is None
            return
        assert test.p == pytest.approx(stats.ttest_ind(a, b, equal_var=False).pvalue, rel=1e-6, abs=1e-9)

    @pytest.mark.parametrize(
        ("a", "b", "reason"),
        [
            ([0.7], [0.5, 0.6], "1 and 2 seeds"),
            ([0.7, 0.7, 0.7], [0.1 + 0.2, 0.3], "no variance over seeds on either side"),
            ([], [0.5, 0.6], "nothing to compare: 0 and 2 values"),
        ],
    )
    def test_what_is_not_defined_says_why(self, a, b, reason):
        test = welch(a, b)
        assert reason in test.reason
        assert (test.p, test.g) == (None, None)


class TestPairedDifferences:
    def test_rounding_becomes_zero(self):
        assert paired_differences([0.1 + 0.2, 1.0], [0.3, 0.25]).tolist() == [0.0, 0.75]

    def test_other_lengths(self):
        with pytest.raises(DataError, match="2 scores cannot be paired with 3: give both over the same questions"):
            paired_differences([1, 2], [1, 2, 3])


class TestBootstrap:
    @pytest.mark.parametrize(
        "d",
        [
            np.random.default_rng(3).exponential(size=41) - 0.8,
            np.array([0.0] * 26 + [0.75] * 4 + [-0.25] * 2),  # sums in 64ths: resampled means that tie do so exactly
        ],
        ids=["skewed", "tied"],
    )
    def test_equals_scipy_draw_for_draw(self, d):
        """At the level that stands in for t: scipy's own is of the normal distribution, too narrow for few."""
        interval = paired_bootstrap(d, 2_000)
        level = 2.0 * stats.norm.cdf(np.sqrt(d.size / (d.size - 1)) * stats.t.ppf(0.975, d.size - 1)) - 1.0
        rng = np.random.default_rng(0)
        peer = stats.bootstrap(
            (d,), np.mean, n_resamples=2_000, method="BCa", confidence_level=level, random_state=rng
        ).confidence_interval
        assert (interval.low, interval.high) == pytest.approx((peer.low, peer.high), rel=1e-12)
        assert interval.mean == pytest.approx(d.mean())

    def test_few_clusters_are_missed_as_seldom_as_stated(self):
        """12 documents that a system does well on or badly: 8.75 % by the normal distribution's levels, 6.25 by t's."""
        rng = np.random.default_rng(5)
        documents = np.repeat(np.arange(12), 3)
        names = [str(document) for document in documents]
        missed = 0
        for _ in range(400):
            d = rng.normal(0.0, 1.5, 12)[documents] + rng.normal(0.0, 1.0, documents.size)
            interval = paired_bootstrap(d, 999, names)
            missed += not interval.low <= 0.0 <= interval.high
        assert missed / 400 <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / 400)

    def test_blocks_of_draws_change_nothing(self, monkeypatch):
        d = np.random.default_rng(4).normal(size=17)
        whole = paired_bootstrap(d, 1_001)
        monkeypatch.setattr(paired, "_BATCH", 17 * 100)
        assert paired_bootstrap(d, 1_001) == whole

    @given(st.lists(DIFFERENCE, min_size=0, max_size=25))
    @settings(max_examples=scaled(50))
    def test_it_is_defined_ordered_and_repeatable(self, d):
        interval = paired_bootstrap(d, 199)
        assert_defined_or_reasoned(interval)
        assert paired_bootstrap(d, 199) == interval
        if interval.low is not None:
            slack = 1e-12
            assert min(d) - slack <= interval.low <= interval.mean + slack
            assert interval.mean - slack <= interval.high <= max(d) + slack

    def test_degenerate_cases(self):
        assert paired_bootstrap([]).reason == "0 questions: an interval needs two"
        assert (paired_bootstrap([0.5]).mean, paired_bootstrap([0.5]).low) == (0.5, None)
        same = paired_bootstrap([0.25] * 5)
        assert (same.mean, same.low, same.high) == (0.25, 0.25, 0.25)
        assert "no width" in same.reason


class TestPermutation:
    @given(st.lists(st.integers(-20, 20), max_size=11))
    @example([0] * 11)
    def test_exact_equals_brute_force(self, d):
        permutation = paired_permutation([i / 20 for i in d])
        if not d:
            assert (permutation.p, permutation.reason) == (None, "no questions to compare on")
            return
        sums = [
            sum(s * i for s, i in zip(signs, d, strict=True)) for signs in itertools.product([-1, 1], repeat=len(d))
        ]
        assert permutation.p == sum(abs(s) >= abs(sum(d)) for s in sums) / len(sums)
        assert (permutation.is_exact, permutation.n_nonzero) == (True, sum(i != 0 for i in d))

    @pytest.mark.parametrize("n", [31, 32])
    def test_halves_of_many_meet_as_a_walk_would(self, n):
        # n equal differences of which m are negative: the sum is a binomial walk
        d = np.array([0.15] * (n - 11) + [-0.15] * 11)
        permutation = paired_permutation(d)
        assert permutation.is_exact
        assert permutation.p == pytest.approx(stats.binomtest(11, n, 0.5).pvalue, rel=1e-9)

    def test_drawn_p_is_near_the_exact_one_and_never_zero(self, monkeypatch):
        d = np.random.default_rng(8).normal(0.3, 1.0, 25)
        exact = paired_permutation(d)
        monkeypatch.setattr(paired, "EXACT_DIFFERENCES", 0)
        drawn = paired_permutation(d)
        assert (exact.is_exact, drawn.is_exact) == (True, False)
        assert drawn.p == pytest.approx(exact.p, abs=4 * math.sqrt(exact.p * (1 - exact.p) / 9_999))
        assert paired_permutation(np.ones(60), 99) == Permutation(1 / 100, False, 60)
        assert paired_permutation(np.zeros(60)) == Permutation(1.0, True, 0)


class TestEffect:
    @check_rows(
        ("d", "effect"),
        [([1, 2, 3], 2), ([-1, -2, -3], -2), ([0, 0], 0), ([0.5, 0.5], None), ([0.5], None), ([], None)],
    )
    def test_is_the_mean_over_the_deviation(self, d, effect):
        assert paired_effect(d) == effect


class TestMcNemar:
    @given(st.integers(0, 60), st.integers(0, 60))
    @example(0, 0)
    def test_is_the_binomial_tail(self, lost, won):
        n = lost + won
        tail = sum(math.comb(n, i) for i in range(min(lost, won) + 1)) / 2**n
        assert mcnemar(lost, won) == pytest.approx(min(1.0, 2 * tail))


class TestAgainstBest:
    def test_equals_brute_force_over_all_patterns_and_pairs(self):
        x = np.random.default_rng(0).integers(0, 4, (4, 9)) / 4
        best = int(x.mean(axis=1).argmax())
        pairs = np.array([x[i] - x[j] for i, j in itertools.combinations(range(4), 2)])
        signs = np.array([*itertools.product([-1, 1], repeat=9)])
        largest = (np.abs(pairs @ signs.T) / np.sqrt((pairs**2).sum(axis=1))[:, None]).max(axis=0)
        difference = x - x[best]
        size = np.sqrt((difference**2).sum(axis=1))
        t = np.abs(difference.sum(axis=1)) / np.where(size, size, 1)
        expected = [
            max(np.mean(largest >= of_row - 1e-9), paired_permutation(d).p)
            for of_row, d in zip(t, difference, strict=True)
        ]
        assert permute_against_best(x, best) == pytest.approx(expected)

    def test_of_two_it_is_the_paired_test_and_of_equal_rows_1(self):
        x = np.random.default_rng(1).random((2, 40))
        assert permute_against_best(x, 0) == [1.0, paired_permutation(x[1] - x[0]).p]
        assert permute_against_best(x[[0, 0, 1]], 0)[1] == 1.0

    def test_cells_that_are_equal_in_truth_are_told_apart_in_no_more_than_5_percent(self):
        """Holm with the best taken for fixed: 16 % of sweeps of 12 cells; stars of Welch's p: 44 % (truth6.md, 1.3)."""
        rng, n_told = np.random.default_rng(3), 0
        for _ in range(100):
            x = (rng.random((12, 3, 82)) < rng.beta(0.8, 0.5, 82)).mean(axis=1)
            p = permute_against_best(x, int(x.mean(axis=1).argmax()), n_resamples=199)
            n_told += min(p) < 0.05
        assert n_told <= 5

    def test_one_that_is_far_below_is_told_apart_from_all_twelve(self):
        x = (np.random.default_rng(4).random((12, 82)) < 0.9) * 1.0
        x[5] = 0.0
        p = permute_against_best(x, int(x.mean(axis=1).argmax()))
        assert (p[5], min(p[:5] + p[6:]) > 0.01) == (1 / 10_000, True)

    def test_a_question_that_one_lacks_and_clusters(self):
        x = np.random.default_rng(5).random((3, 20))
        x[1] -= 0.3
        x[2, :15] = np.nan
        whole, some = permute_against_best(x[:2], 0)[1], permute_against_best(x, 0)
        assert some[0] == 1.0
        assert whole <= some[1] < 0.2
        assert paired_permutation(x[2, 15:] - x[0, 15:]).p <= some[2] < 1.0
        x[2, :] = np.nan
        assert permute_against_best(x, 0)[2] is None
        names = [str(i // 5) for i in range(20)]
        assert permute_against_best(x[:2], 0, names)[1] == paired_permutation(x[1] - x[0], clusters=names).p


class TestRanks:
    def test_by_hand(self):
        assert ranks([0.7, 0.9, 0.7, 0.1]).tolist() == [2.5, 1.0, 2.5, 4.0]
        assert average_ranks([[0.3, 0.2, 0.1], [0.1, 0.2, 0.1 + 0.2]]).tolist() == [2.0, 2.0, 2.0]
        assert average_ranks([[0.9, 0.8], [0.5, 0.5]]).tolist() == [1.25, 1.75]

    def test_rounding_ties(self):
        assert ranks([0.1 + 0.2, 0.3]).tolist() == [1.5, 1.5]


class TestCorrelate:
    def test_by_hand(self):
        # deviations −1, 0, 1 and −1, 1, 0: Pearson 1/2, which is Spearman's too; two pairs agree, one does not
        correlation = correlate([1, 2, 3], [1, 3, 2])
        assert fields(correlation) == [3, pytest.approx(0.5), pytest.approx(0.5), pytest.approx(1 / 3), ""]

    def test_not_defined(self):
        assert correlate([1, 2], [2, 1]).reason == "a correlation needs three, and there are 2"
        assert correlate([1, 2, 3], [0.1 + 0.2, 0.3, 0.3]).reason == "all scores are the same on one side"
        with pytest.raises(DataError, match="3 scores cannot be paired with 2"):
            correlate([1, 2, 3], [1, 2])


def test_stars_begin_at_5_percent():
    levels = [1.0, 0.05, 0.049, 0.01, 0.0099, 0.001, 0.00099, 0.0]
    assert [stars(p) for p in levels] == ["", "", "*", "*", "**", "**", "***", "***"]
    assert stars(None) == ""


@check_rows(
    "bad, function",
    product(
        [float("nan"), float("inf")],
        [mean_sd, paired_bootstrap, paired_permutation, paired_effect, ranks]
        + [lambda x, pair=pair: pair(x, [1.0, 2.0]) for pair in (welch, paired_differences, correlate)],
    ),
)
def test_what_is_not_finite_is_refused(function, bad):
    with pytest.raises(DataError, match=rf"the value at 1 is {bad}: every value must be a finite number"):
        function([1.0, bad])


def test_a_scores_interval_stays_within_what_the_metric_can_give():
    kaggle = find_metric("kaggle")
    right = [
        QuestionScore(f"q{n}", {"value": 1.0, "ref": float(n != 3), "abstain": 1.0}, 1.0, unanswerable=n == 0)
        for n in range(4)
    ]
    free, kept = paired_bootstrap(kaggle.shares_of(right)), score_interval(kaggle, right)
    assert free.high > 1, "the part of the unanswerable questions, as a mean of shares, passes its end"
    assert kept.high == 1.0
    assert (kept.low, kept.mean) == (free.low, free.mean)
    assert score_interval(kaggle, right[:1]).low is None


@check_rows(
    ("n", "score", "clusters"),
    [(25, 1.0, None), (25, 0.0, None), (41, 0.25, None), (24, 1.0, [str(i // 3) for i in range(24)])],
)
def test_a_score_of_all_or_none_has_the_interval_of_clopper_and_pearson(n, score, clusters):
    """lm-eval#4070: 25 of 25 right had the interval 1.0000 to 1.0000 (cases.md, T16)."""
    interval = bounded_interval(find_metric("exact"), np.full(n, score), clusters)
    n_units = len(set(clusters)) if clusters else n
    share = stats.binomtest(n_units, n_units).proportion_ci(0.95, "exact").low
    assert (interval.mean, interval.low) == (score, pytest.approx(share * score))
    assert interval.high == pytest.approx(1 - share * (1 - score))
    assert f"all {n_units} {'clusters' if clusters else 'questions'} score {score:.3f}" in interval.reason


def test_importing_loads_no_scipy():
    assert not loaded_after("import kohaku_ray.evaluation.compare, kohaku_ray.sweep.compare", "scipy")
