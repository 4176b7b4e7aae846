"""Statistics of a sweep's tables, costs and errors, as plain records."""

from itertools import pairwise

import pytest
from kit.installed import loaded_after
from kit.sweeps import REASON, small_sweep, sweep_of_four_runs

from kohaku_ray.evaluation.statistics import average_ranks
from kohaku_ray.evaluation.wattbot import ERROR_CLASSES
from kohaku_ray.sweep.costs import cost_points, list_cell_runs, pareto_frontier
from kohaku_ray.sweep.error_counts import count_errors, error_rates, list_classes
from kohaku_ray.sweep.statistics import compute_sweep_stats


@pytest.fixture(scope="module")
def sweep():
    return small_sweep()


@pytest.fixture(scope="module")
def stats(sweep):
    return {table_stats.table.name: table_stats for table_stats in compute_sweep_stats(sweep)}


def test_statistics_need_no_page():
    modules = ("statistics", "costs", "error_counts", "collect", "race")
    code = "; ".join(f"import kohaku_ray.sweep.{name}" for name in modules)
    assert not loaded_after(code, "kohaku_ray.pages")


def test_cells_of_one_reason_share_it(stats):
    assert stats["nothing"].reasons == (f"skipped: {REASON}",)


def test_average_ranks_are_over_the_columns_of_a_table_with_several(stats):
    stat = stats["dedup"]
    means = [[stat.comparisons[row, column].mean for row in stat.grid.rows] for column in stat.grid.columns]
    assert [*stat.average.values()] == average_ranks(means).tolist()
    assert not stats["queries"].average


def test_labels_of_an_only_axis_are_rows_compared_with_one_another(stats):
    stat = stats["queries"]
    assert stat.grid.rows == (("2",), ("4",), ("6",))
    assert [made.is_best for made in stat.comparisons.values()] == [False, False, True]


def test_the_frontier_is_what_nothing_as_cheap_beats(sweep):
    points = cost_points(list_cell_runs(sweep), lambda run: run.tokens)
    steps = pareto_frontier(points)
    assert len(points) == 9 + 3 + 18
    assert all(a.cost < b.cost and a.score < b.score for a, b in pairwise(steps))
    for step in steps:
        assert not [point for point in points if point.cost <= step.cost and point.score > step.score]
    for point in points:
        assert [step for step in steps if step.cost <= point.cost and step.score >= point.score]


def test_errors_are_counted_by_each_fact_and_add_up(sweep):
    (whole,) = count_errors(sweep)
    assert whole.n == sum(len(run.predictions) for run in sweep.runs)
    assert whole.counts.total() == sum(
        given.error is not None for run in sweep.runs for given in run.predictions.values()
    )
    for fact in ("model", "k"):
        parts = count_errors(sweep, fact)
        assert sum(part.n for part in parts) == whole.n
        for name in ERROR_CLASSES:
            assert sum(part.counts[name] for part in parts) == whole.counts[name]
    assert [part.label for part in count_errors(sweep, "k")] == ["4", "8", "16"]


def test_errors_are_shared_out_by_class_the_most_frequent_first(sweep):
    (whole,) = count_errors(sweep)
    classes = list_classes(sweep)
    assert {item.name: item.n for item in classes} == {name: n for name, n in whole.counts.items() if n}
    assert [item.n for item in classes] == sorted((item.n for item in classes), reverse=True)
    assert sum(item.share for item in classes) == pytest.approx(1)


def test_error_rates_are_what_the_runs_lack_to_a_full_score():
    small = sweep_of_four_runs()
    rates = error_rates(small, "model")
    assert [rate.labels for rate in rates] == [("b",), ("a",)], "c has none"
    scores = (0.375 + 0.1125 + 0.1, 0.75 + 0.1)
    assert [rate.score for rate in rates] == pytest.approx([1 - sum(scores) / 2, 0.75]), "a run counts once"
    assert rates[0].parts == pytest.approx({"value": 0.25, "ref": 0.625, "abstain": 0.0})
    assert [rate.labels for rate in error_rates(small, "k")] == [("4",), ("16",)], "numbers ascend"
    both = error_rates(small, "model", "k")
    assert [rate.labels for rate in both] == [("b", "4"), ("b", "16"), ("a", "16")]
    [every] = error_rates(small)
    assert every.labels == ()
    assert every.score == pytest.approx(1 - (sum(scores) + 0.25) / 3)
