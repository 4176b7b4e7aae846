"""The flow of a batch job, without a cluster: order, calls in flight, lines held, what stops it."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from kit.batches import a_line, rows

from kohaku_ray.answering.batch import AHEAD, BatchSummary, ask_lines
from kohaku_ray.config import load_config
from kohaku_ray.errors import DataError, ModelError, RefusedAccessError, TransientModelError
from kohaku_ray.models.request import request_key
from kohaku_ray.records import Reply
from kohaku_ray.run.exchange.batch_file import BatchModels, errors_path, writing
from kohaku_ray.run.segments import Entry, LedgerReply

PLACES = 5  # max_ongoing 4 and a quarter of it


class FakeLedger:
    """Replies after a random pause."""

    def __init__(self, fail=lambda text: None) -> None:
        self.fail, self.now, self.most, self.asked = fail, 0, 0, []
        self.draw = random.Random(7)

    async def ask(self, request, application, again=False):
        text = request.messages[-1][1]
        self.asked.append((application, text))
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(self.draw.random() / 500)
        self.now -= 1
        if error := self.fail(text):
            raise error
        return LedgerReply(Entry(Reply(f"re: {text}", 2, 0, 3), request.model, 0.0), "made", request_key(request))


def run(tmp_path: Path, texts: list[str], ledger: FakeLedger, *overrides: str) -> BatchSummary:
    server = '{kind: openai, base_url: "http://127.0.0.1:1/v1", model: fake, api_key_env: null, max_ongoing: 4}'
    config = load_config(None, [f"deployments.big={server}", "deployments.big.price.completion=1000", *overrides])
    lines = [a_line(f"id{n}", text) for n, text in enumerate(texts)]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, lines)))
    out = str(tmp_path / "out.jsonl")
    summary = BatchSummary(out)
    with writing(out) as files:
        models = BatchModels(config)
        asyncio.run(
            ask_lines(
                config, models, str(tmp_path / "in.jsonl"), ledger, {"big": "app"}, files, summary, lambda n, text: None
            )
        )
    return summary


def test_replies_are_in_the_inputs_order_and_calls_are_bounded(tmp_path):
    texts = [f"t{n}" for n in range(300)]
    ledger = FakeLedger()
    summary = run(tmp_path, texts, ledger)
    rows_read = rows(summary.output)
    assert [row["custom_id"] for row in rows_read] == [f"id{n}" for n in range(300)]
    assert [row["response"]["body"]["choices"][0]["message"]["content"] for row in rows_read] == [
        f"re: {t}" for t in texts
    ]
    assert ledger.most == PLACES
    assert summary.calls == {"made": 300}
    assert summary.used["completion_tokens"] == 900
    assert summary.used["dollars"] == pytest.approx(900 * 1000 / 1e6)


def test_while_the_first_line_waits_few_others_are_read(tmp_path):
    class Stuck(FakeLedger):
        async def ask(self, request, application, again=False):
            if request.messages[-1][1] == "t0":
                await asyncio.sleep(0.5)
                self.asked_meanwhile = len(self.asked)
            return await super().ask(request, application, again)

    ledger = Stuck()
    run(tmp_path, [f"t{n}" for n in range(300)], ledger)
    assert PLACES < ledger.asked_meanwhile < AHEAD * PLACES


def test_long_lines_are_few_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr("kohaku_ray.answering.batch.MOST_AHEAD_MIB", 1)
    ledger = FakeLedger()
    run(tmp_path, [f"{n}" + "x" * 2**19 for n in range(8)], ledger)
    assert len(ledger.asked) == 8
    assert ledger.most <= 3


def test_long_lines_are_all_asked_at_once_where_a_providers_batch_gathers_them(tmp_path, monkeypatch):
    monkeypatch.setattr("kohaku_ray.answering.batch.MOST_AHEAD_MIB", 1)

    class Gathering(FakeLedger):
        """Replies to nothing before all lines are asked, as a provider's batch of one file."""

        all_asked = asyncio.Barrier(8)

        async def ask(self, request, application, again=False):
            await asyncio.wait_for(self.all_asked.wait(), 10)
            return await super().ask(request, application, again)

    texts = [f"{n}" + "x" * 2**19 for n in range(8)]
    summary = run(tmp_path, texts, Gathering(), "deployments.big.batch=true")
    assert summary.calls == {"made": 8}


def test_refused_lines_never_stop_the_others_and_a_dead_server_does(tmp_path):
    refused = FakeLedger(lambda text: ModelError("refused"))
    assert run(tmp_path, [f"t{n}" for n in range(200)], refused).n_errors == {"request_failed": 200}
    dead = FakeLedger(lambda text: TransientModelError("no reply"))
    summary = run(tmp_path, [f"t{n}" for n in range(200)], dead)
    assert 20 <= len(dead.asked) < 20 + PLACES
    assert summary.n_errors.total() == 200
    last = rows(errors_path(summary.output))[-1]
    assert (last["custom_id"], last["error"]["code"]) == ("id199", "not_asked")
    kept_on = FakeLedger(lambda text: TransientModelError("no reply"))
    run(tmp_path, [f"t{n}" for n in range(60)], kept_on, "fail_after=null")
    assert len(kept_on.asked) == 60


def test_where_a_server_refuses_every_call_the_other_lines_are_not_asked(tmp_path):
    shut = FakeLedger(lambda text: RefusedAccessError("its credit is used up: top up the account"))
    summary = run(tmp_path, [f"t{n}" for n in range(200)], shut)
    assert len(shut.asked) <= PLACES
    assert summary.n_errors == {"request_failed": len(shut.asked), "not_asked": 200 - len(shut.asked)}
    assert "stopped asking: its credit is used up: top up the account" in summary.text()


def test_a_ledger_that_cannot_be_written_ends_the_job(tmp_path, capfd):
    with pytest.raises(DataError, match="disk"):
        run(tmp_path, [f"t{n}" for n in range(50)], FakeLedger(lambda text: DataError("the disk is full")))
    assert not list(tmp_path.glob("out*"))
    assert "never retrieved" not in capfd.readouterr().err


def test_a_budget_ends_the_asking_and_a_larger_one_goes_on(tmp_path):
    class Known(FakeLedger):
        """Gives what was asked before, as the next start's ledger does."""

        def __init__(self) -> None:
            super().__init__()
            self.replies: dict[str, LedgerReply] = {}

        async def ask(self, request, application, again=False):
            key = request_key(request)
            if key in self.replies:
                return replace(self.replies[key], source="ledger")
            self.replies[key] = await super().ask(request, application)
            return self.replies[key]

    texts, ledger = [f"t{n}" for n in range(60)], Known()
    summary = run(tmp_path, texts, ledger, "budget.tokens=100")  # five per reply
    n_made = summary.calls["made"]
    assert 20 <= n_made <= 20 + PLACES - 1, "the calls in flight end"
    assert summary.n_errors == {"not_asked": 60 - n_made}
    assert summary.stopped.startswith("budget.tokens is 100 and ")
    assert f"stopped asking: {summary.stopped}" in summary.text()
    assert len(rows(summary.output)) == n_made
    # The same budget: what is recorded is given and counts, nothing more is asked.
    again = run(tmp_path, texts, ledger, "budget.tokens=100")
    assert again.calls["made"] <= PLACES
    n_made += again.calls["made"]
    more = run(tmp_path, texts, ledger, "budget.dollars=0.18", "budget.tokens=1_000")  # 0.003 per reply
    assert more.stopped == ""
    assert len(rows(more.output)) == 60
    assert len(ledger.asked) == 60, "no call was made twice"
