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
    mcnemar,
    paired_bootstrap,
    paired_differences,
    paired_effect,
    paired_permutation,
    score_interval,
)
from kohaku_ray.evaluation.statistics import average_ranks, correlate, holm, mean_sd, ranks, stars, welch

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
        interval = paired_bootstrap(d, 2_000)
        peer = stats.bootstrap(
            (d,), np.mean, n_resamples=2_000, method="BCa", random_state=np.random.default_rng(0)
        ).confidence_interval
        assert (interval.low, interval.high) == pytest.approx((peer.low, peer.high), rel=1e-12)
        assert interval.mean == pytest.approx(d.mean())

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


class TestHolm:
    def test_by_hand(self):
        # sorted 0.01 × 4, 0.02 × 3, 0.025 × 2 → held up at 0.06, 0.5 × 1
        assert holm([0.025, 0.01, 0.5, 0.02]) == pytest.approx([0.06, 0.04, 0.5, 0.06])

    def test_none_stays_and_is_not_counted(self):
        assert holm([None, 0.02, None, 0.04]) == [None, 0.04, None, 0.04]
        assert holm([]) == []

    @given(st.lists(st.floats(0.0, 1.0), max_size=8))
    def test_rejects_what_the_step_down_rule_rejects(self, p):
        rejected = set()
        for step, index in enumerate(sorted(range(len(p)), key=p.__getitem__)):
            if p[index] * (len(p) - step) > 0.05:
                break
            rejected.add(index)
        assert {index for index, q in enumerate(holm(p)) if q <= 0.05} == rejected


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


def test_stars_of_the_paper():
    levels = [1.0, 0.1, 0.099, 0.05, 0.049, 0.01, 0.0099, 0.001, 0.00099, 0.0]
    marks = ["", "", "+", "+", "*", "*", "**", "**", "***", "***"]
    assert [stars(p) for p in levels] == marks, "the paper's captions: ** p < 0.01, *** p < 0.001"
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
        QuestionScore(f"q{n}", {"value": 1.0, "ref": 1.0, "abstain": 1.0}, 1.0, unanswerable=n == 0) for n in range(4)
    ]
    free, kept = paired_bootstrap(kaggle.shares_of(right)), score_interval(kaggle, right)
    assert free.high > 1, "the part of the unanswerable questions, as a mean of shares, passes its end"
    assert kept.high == 1.0
    assert (kept.low, kept.mean) == (free.low, free.mean)
    assert score_interval(kaggle, right[:1]).low is None


def test_importing_loads_no_scipy():
    assert not loaded_after("import kohaku_ray.evaluation.compare, kohaku_ray.sweep.compare", "scipy")
