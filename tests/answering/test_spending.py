"""A job's spending: what counts, when it ends, and what is said."""

from __future__ import annotations

import time

import pytest

from kohaku_ray.answering import spending as room
from kohaku_ray.answering.spending import Paid, Spending
from kohaku_ray.config import load_config
from kohaku_ray.config.sections import BudgetConfig
from kohaku_ray.errors import ConfigError
from kohaku_ray.models.backend import PriceConfig
from kohaku_ray.runs.facts import run_record
from kohaku_ray.store.directory import RunDirectory

PRICES = {"big": PriceConfig(prompt=10, cached=1, completion=100), "small": PriceConfig()}


class FakeLedger:
    def __init__(self) -> None:
        self.sums: dict[str, Paid] = {}
        self.reasons: list[str] = []

    def paid(self) -> dict[str, Paid]:
        return self.sums

    def stop(self, reason: str) -> None:
        self.reasons.append(reason)


def test_tokens_and_dollars_are_those_of_all_deployments_and_earlier_starts():
    ledger = FakeLedger()
    ledger.sums = {"big": Paid(1_000_000, 500_000, 10_000), "small": Paid(70, 0, 7)}
    spending = Spending(BudgetConfig(dollars=9), ledger, PRICES, {"tokens": 23, "dollars": 2.0})
    spending.look()
    assert spending.describe() == ", 8.5 of 9.0 dollars"
    assert not spending.stopped
    ledger.sums = {**ledger.sums, "big": Paid(1_000_000, 500_000, 15_000)}
    spending.look()
    assert spending.stopped == "budget.dollars is 9.0 and 9.0 were spent: set a larger one and repeat the command"
    assert ledger.reasons == [spending.stopped]
    spending.look()  # a shard that was started again has forgotten: it is told again
    assert ledger.reasons == [spending.stopped] * 2
    assert spending.describe() == ", 9.0 of 9.0 dollars"


def test_a_budget_below_what_was_spent_stops_before_the_first_call():
    ledger = FakeLedger()
    with Spending(BudgetConfig(tokens=1000), ledger, PRICES, {"tokens": 1200}).watch():
        assert ledger.reasons == [
            "budget.tokens is 1,000 and 1,200 were spent: set a larger one and repeat the command"
        ]


def test_ten_starts_that_paid_a_tenth_each_are_the_whole_budget():
    ledger = FakeLedger()
    ledger.sums = {"big": Paid(10_000)}  # 0.1 dollars
    paid, stopped = dict[str, float](), []
    for _ in range(10):
        spending = Spending(BudgetConfig(dollars=1), ledger, PRICES, paid)
        spending.look()
        paid = {"tokens": 0.0, "dollars": paid.get("dollars", 0.0) + 0.1}
        stopped.append(bool(spending.stopped))
    assert stopped == [False] * 9 + [True]


def test_a_running_job_is_looked_at_again_and_again(monkeypatch):
    monkeypatch.setattr(room, "LOOK_EVERY_S", 0.01)
    ledger = FakeLedger()
    with Spending(BudgetConfig(tokens=10), ledger, PRICES, {}).watch():
        ledger.sums = {"small": Paid(10, 0, 1)}
        deadline = time.monotonic() + 10
        while not ledger.reasons:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_without_a_budget_nothing_is_looked_at():
    spending = Spending(BudgetConfig(), None, {}, {"tokens": 10**9})
    with spending.watch():
        assert (spending.stopped, spending.describe()) == ("", "")


def test_what_a_run_paid_is_kept_over_its_starts_and_not_for_another_run(tmp_path):
    config = load_config("demo", [f"run={tmp_path}/run"])
    directory = RunDirectory(config.run)
    assert directory.paid("one") == {}
    (tmp_path / "run").mkdir()
    directory.begin(
        run_record(config), "one", {"tokens": 12, "dollars": 0.5}
    )  # a start that is killed keeps what came before
    assert directory.paid("one") == directory.paid() == {"tokens": 12, "dollars": 0.5}
    assert directory.paid("two") == {}
    (tmp_path / "run" / "run.json").write_text("[")
    assert directory.paid("one") == {}


@pytest.mark.parametrize("value", ["0", "-1", "five", ".nan"])
def test_a_budget_is_more_than_nothing(value):
    with pytest.raises(ConfigError, match=r"budget.dollars"):
        load_config("demo", [f"budget.dollars={value}"])
    assert load_config("demo", ["budget.dollars=5", "budget.tokens=2_000_000"]).budget.tokens == 2_000_000
