"""Calls by a provider's batch API: what becomes of lines and files, and that nothing is paid twice, in one process."""

from __future__ import annotations

import asyncio
import dataclasses
import gzip
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest
from kit.fake_batches import DOUBLED, DROPPED, EXPIRED, FakeBatches, fault
from kit.fake_openai import Action, FakeOpenAI, completion, error_body
from kit.rows import check_rows

from kohaku_ray.checks.deployments import target_of
from kohaku_ray.errors import (
    ConfigError,
    ContextOverflowError,
    DataError,
    ModelError,
    RefusedAccessError,
    TransientModelError,
)
from kohaku_ray.models import batch_api
from kohaku_ray.models import batches as run_batches
from kohaku_ray.models import openai as openai_module
from kohaku_ray.models.batch_api import NAME
from kohaku_ray.models.batches import FILE_TRIES, UNSEEN_TRIES, BatchBackend, BatchRecords
from kohaku_ray.models.openai import BatchConfig, OpenAIConfig
from kohaku_ray.models.request import ChatRequest, request_key
from kohaku_ray.records import Reply
from kohaku_ray.store.segments import Entry, SegmentStore

FAST = {"gather_s": 0.05, "poll_s": 0.02}


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch):
    monkeypatch.setattr(run_batches, "YOUNG_S", 0.02)


def request(number: int, text: str = "") -> ChatRequest:
    fields = {"temperature": 0.7, "top_p": 1.0, "max_tokens": 64, "seed": number}
    return ChatRequest("fake", (("user", text or f"[ref_id=a] Question {number}?"),), **fields)


def requests(n: int) -> list[ChatRequest]:
    return [request(number) for number in range(n)]


def deployment(server: FakeOpenAI, batch: object = None, **settings) -> OpenAIConfig:
    given = {"api_key_env": None, "max_tries": 2, "backoff_s": 0.01, **settings}
    return OpenAIConfig(base_url=server.base_url, model="fake", batch={**FAST, **(batch or {})}, **given)


def backend_of(server: FakeOpenAI, home, batch: object = None, **settings) -> BatchBackend:
    config = deployment(server, batch, **settings)
    return BatchBackend(config, config.make_backend(), BatchRecords(str(home)))


def ask(server: FakeOpenAI, home, asked: list[ChatRequest], batch: object = None, **settings) -> list:
    """Ask at once; a failure comes back as its exception."""

    async def run():
        backend = backend_of(server, home, batch, **settings)
        try:
            async with asyncio.timeout(30):
                replies = await asyncio.gather(*map(backend.chat, asked), return_exceptions=True)
                while not backend.is_idle:  # what it writes behind the last reply
                    await asyncio.sleep(0.005)
                return replies
        finally:
            await backend.close()

    return asyncio.run(run())


def leave(server: FakeOpenAI, home, asked: list[ChatRequest], until, batch: object = None) -> None:
    """Ask, and end the process, as it were, when ``until()`` holds."""

    async def run():
        backend = backend_of(server, home, batch)
        tasks = [asyncio.create_task(backend.chat(each)) for each in asked]
        async with asyncio.timeout(30):
            while not until():
                await asyncio.sleep(0.005)
        for task in tasks:
            task.cancel()
        await backend.close()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(run())


@contextmanager
def provider(**play):
    with FakeOpenAI(batches=FakeBatches(**play)) as server:
        yield server, server.batches


def records(home) -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted(home.glob("batches/*.json"))]


def test_calls_become_a_file_and_its_replies_are_those_of_single_calls(tmp_path):
    asked = requests(30)
    with provider(delay_s=0.1) as (server, batches):
        replies = ask(server, tmp_path, [*asked, *asked[:5]])

        async def singly():
            client = deployment(server).make_backend()
            return [await client.chat(each) for each in [*asked, *asked[:5]]]

        assert replies == asyncio.run(singly())
    assert [sorted(file) for file in batches.files] == [sorted(map(request_key, asked))]
    [batch] = batches.batches
    assert {line["method"] for line in batch.lines} == {"POST"}
    assert {line["url"] for line in batch.lines} == {"/v1/chat/completions"}
    assert batch.lines[3]["body"] == server.log[3].body
    assert [record["name"] for record in records(tmp_path)] == [batch.metadata[NAME]]


def test_files_keep_the_bounds_and_a_call_beyond_them_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(run_batches, "MOST_LINES", 10)
    with provider(most_lines=10, most_bytes=4000) as (server, batches):
        assert all(isinstance(reply, Reply) for reply in ask(server, tmp_path, requests(25)))
        assert [len(file) for file in batches.files] == [10, 10, 5]
        large = [request(number, "x" * 1500) for number in range(4)]
        huge = request(9, "x" * 5000)
        monkeypatch.setattr(run_batches, "MOST_BYTES", 4000)
        *replies, error = ask(server, tmp_path, [*large, huge])
    assert all(isinstance(reply, Reply) for reply in replies)
    assert [len(file) for file in batches.files[3:]] == [2, 2]
    assert isinstance(error, ModelError)
    assert "a batch's file at most 4,000" in str(error)


def test_lines_that_expire_or_get_lost_are_asked_again_and_doubled_ones_count_once(tmp_path):
    def line(batch, line):
        number = line["body"]["seed"]
        if number % 4 == 0:
            return DOUBLED
        return {1: EXPIRED, 2: DROPPED}.get(number % 4) if batch.index == 0 else None

    with provider(line=line) as (server, batches):
        assert all(isinstance(reply, Reply) for reply in ask(server, tmp_path, requests(40)))
    assert [len(file) for file in batches.files] == [40, 20]
    assert batches.paid == dict.fromkeys(map(request_key, requests(40)), 1)


def test_a_line_that_never_comes_fails_after_some_files_and_is_asked_by_the_next_start(tmp_path):
    with provider(line=lambda batch, line: EXPIRED if line["body"]["seed"] == 1 else None) as (server, batches):
        replies = ask(server, tmp_path, requests(3))
        assert [type(reply) for reply in replies] == [Reply, TransientModelError, Reply]
        assert "3 batches" in str(replies[1])
        assert "batch_expired" in str(replies[1])
        assert [len(file) for file in batches.files] == [3, *[1] * (FILE_TRIES - 1)]
        batches.line = lambda batch, line: None
        assert isinstance(ask(server, tmp_path, [request(1)])[0], Reply)


@check_rows(
    ("what", "play", "kind"),
    [
        (
            "what a server refuses is left out in the next file, as by single calls",
            lambda batch, line: (
                Action(400, error_body("Unsupported parameter: 'seed' is not supported with this model."))
                if "seed" in line["body"]
                else None
            ),
            Reply,
        ),
        (
            "a prompt that leaves less room gets what is left (vllm#42474)",
            lambda batch, line: (
                Action(400, error_body("maximum context length is 100 tokens: 60 in the messages, 64 in max_tokens"))
                if line["body"]["max_tokens"] == 64
                else None
            ),
            Reply,
        ),
        (
            "a prompt that is too long",
            lambda batch, line: Action(400, error_body("too long", "context_length_exceeded")),
            ContextOverflowError,
        ),
        ("no key", lambda batch, line: Action(401, error_body("no key")), RefusedAccessError),
        (
            "a failed reply is asked again with another seed",
            lambda batch, line: (
                Action(body=completion("", finish_reason="error")) if line["body"]["seed"] == 0 else None
            ),
            Reply,
        ),
        (
            "a line's own rate limit",
            lambda batch, line: Action(429, error_body("slow down")) if batch.index == 0 else None,
            Reply,
        ),
        (
            "a body that is written as a text (Llama Stack 0.7.3)",
            lambda batch, line: Action(body=json.dumps(completion("{}"))),
            Reply,
        ),
        (
            "a filtered reply",
            lambda batch, line: Action(body=completion("", finish_reason="content_filter")),
            ModelError,
        ),
    ],
)
def test_a_line_ends_as_a_single_call_would(tmp_path, what, play, kind):
    with provider(line=play) as (server, _):
        [reply] = ask(server, tmp_path / what, [request(0)])
    assert type(reply) is kind, (what, reply)


def test_a_file_refused_for_one_line_names_it_and_the_others_go(tmp_path):
    def refuse(batch):
        return [fault("invalid_request", n, "no") for n, line in enumerate(batch.lines, 1) if line["body"]["seed"] == 3]

    with provider(refuse=refuse) as (server, batches):
        replies = ask(server, tmp_path, requests(6))
    assert [type(reply) for reply in replies] == [*[Reply] * 3, ModelError, Reply, Reply]
    assert "line 4 of a batch's file is refused: invalid_request: no" in str(replies[3])
    assert [len(file) for file in batches.files] == [6, 5]


def test_a_file_refused_as_a_whole_fails_its_calls_with_the_reason(tmp_path):
    with provider(refuse=lambda batch: [fault("model_not_found", None, "no such model")]) as (server, batches):
        replies = ask(server, tmp_path, requests(3))
    assert {type(reply) for reply in replies} == {ModelError}
    assert "model_not_found: no such model" in str(replies[0])
    assert len(batches.files) == 1


def test_a_file_beyond_the_tokens_of_the_account_goes_in_halves_one_after_the_other(tmp_path):
    def refuse(batch):  # openai-python#2084
        under_way = sum(len(other.lines) for other in batches.batches if not other.errors and other.ends > time.time())
        return [fault("token_limit_exceeded")] if under_way + len(batch.lines) > 5 else []

    with provider(refuse=refuse, delay_s=0.1) as (server, batches):
        replies = ask(server, tmp_path, requests(16))
    assert all(isinstance(reply, Reply) for reply in replies)
    assert [len(batch.lines) for batch in batches.batches if not batch.errors] == [4, 4, 4, 4]
    assert max(batches.paid.values()) == 1


def test_files_grow_again_when_another_user_of_the_account_has_ended_his(tmp_path):
    n_refused = 7  # 16, 8, 4, 2, 1 lines, and 1 again and again

    with provider(refuse=lambda batch: [fault("token_limit_exceeded")] * (batch.index < n_refused)) as (
        server,
        batches,
    ):
        replies = ask(server, tmp_path, requests(16))
    assert all(isinstance(reply, Reply) for reply in replies)
    assert [len(batch.lines) for batch in batches.batches] == [16, 8, 4, 2, 1, 1, 1, 1, 2, 4, 8, 1]


def test_a_batch_that_does_not_end_is_cancelled_and_the_rest_fails_or_is_asked_singly(tmp_path):
    with provider(delay_s=3600) as (server, batches):
        replies = ask(server, tmp_path / "failing", requests(3), {"deadline_s": 0.2})
        assert {type(reply) for reply in replies} == {TransientModelError}
        assert "single_after_deadline" in str(replies[0])
        assert batches.batches[0].cancelled
        assert server.n_requests == 0
        settings = {"deadline_s": 0.2, "single_after_deadline": True}
        assert all(isinstance(reply, Reply) for reply in ask(server, tmp_path / "singly", requests(3), settings))
        assert server.n_requests == 3


@pytest.mark.parametrize("is_refused", [False, True])
def test_what_a_cancelled_batch_has_done_is_paid_once_however_long_it_takes(tmp_path, monkeypatch, is_refused):
    """One of OpenAI's was cancelling for 25 minutes, and had 142 replies then (litellm#37205)."""
    monkeypatch.setattr(run_batches, "CANCEL_S", 0.3)
    monkeypatch.setattr(run_batches, "YOUNG_S", 0.02)
    refuse = {"cancel": lambda _: Action(503, "busy")} if is_refused else {}
    settings = {"deadline_s": 0.2, "single_after_deadline": is_refused}
    with provider(delay_s=3600, cancelling_s=1.0, n_done_at_cancel=2, **refuse) as (server, batches):
        failures = ask(server, tmp_path, requests(3), settings)
        assert {type(failure) for failure in failures} == {TransientModelError}
        status = "in_progress" if is_refused else "cancelling"
        assert f"is {status} 0 minutes after it was cancelled" in str(failures[0])
        assert "repeat the command" in str(failures[0])
        assert records(tmp_path)
        if is_refused:
            batches.cancel = lambda _: None
        else:
            batches.batches[0].ends, batches.delay_s, settings = 0.0, 0.1, {}
        monkeypatch.setattr(run_batches, "CANCEL_S", 60)
        replies = ask(server, tmp_path, requests(3), settings)
        assert all(isinstance(reply, Reply) for reply in replies), replies
    assert sum(batches.paid.values()) + server.n_requests == 3
    assert sorted(map(len, batches.files)) == ([3] if is_refused else [1, 3])


def test_a_batch_that_was_given_up_is_read_by_the_next_call_of_the_same_process(tmp_path, monkeypatch):
    """The process outlives a job on a cluster, where a repeated command finds it."""
    monkeypatch.setattr(run_batches, "CANCEL_S", 0.3)

    async def run(server, batches):
        backend = backend_of(server, tmp_path, {"deadline_s": 0.2})
        async with asyncio.timeout(30):
            failures = await asyncio.gather(*map(backend.chat, requests(3)), return_exceptions=True)
            assert {type(failure) for failure in failures} == {TransientModelError}
            batches.batches[0].ends = 0.0
            replies = await asyncio.gather(*map(backend.chat, requests(3)))
        await backend.close()
        return replies

    with provider(delay_s=3600, cancelling_s=3600, n_done_at_cancel=3) as (server, batches):
        assert all(isinstance(reply, Reply) for reply in asyncio.run(run(server, batches)))
    assert [len(file) for file in batches.files] == [3]


async def test_a_later_job_of_the_same_process_lengthens_the_deadline_of_a_batch_under_way(tmp_path):
    with provider(delay_s=0.6) as (server, batches):
        backend = backend_of(server, tmp_path, {"deadline_s": 0.4})
        waiting = [asyncio.create_task(backend.chat(each)) for each in requests(3)]
        while not batches.batches:
            await asyncio.sleep(0.005)
        longer = deployment(server, {"deadline_s": 30})
        backend.use(longer, longer.make_backend())
        replies = await asyncio.wait_for(asyncio.gather(*waiting), 30)
        await backend.close()
    assert all(isinstance(reply, Reply) for reply in replies)
    assert not batches.batches[0].cancelled
    assert max(batches.paid.values()) == 1


def test_one_process_has_all_batches_of_a_server_whatever_the_settings():
    with provider() as (server, _):
        other = deployment(server, {"deadline_s": 1.0}, price={"prompt": 1.0}, max_ongoing=3, api_key_env="OTHER_KEY")
        assert target_of("a", deployment(server)) == target_of("b", other)


def test_a_batch_that_is_cancelling_for_ever_is_asked_singly_where_that_is_allowed(tmp_path, monkeypatch):
    monkeypatch.setattr(run_batches, "CANCEL_S", 0.3)
    settings = {"deadline_s": 0.2, "single_after_deadline": True}
    with provider(delay_s=3600, cancelling_s=3600) as (server, _):
        assert all(isinstance(reply, Reply) for reply in ask(server, tmp_path, requests(3), settings))
        assert server.n_requests == 3


@check_rows(
    ("what", "play"),
    [
        ("a file's upload fails for longer", {"upload": lambda index: Action(503, "busy") if index < 5 else None}),
        ("the answer to its creation is lost", {"create": lambda index: Action(reset=True) if index == 0 else None}),
        ("its creation fails", {"create": lambda index: Action(503, "busy") if index == 0 else None}),
        (
            "the file is not seen at once (curator#116)",
            {"create": lambda i: Action(400, error_body("Cannot find file file_0.")) if i == 0 else None},
        ),
        ("a look fails", {"look": lambda index: Action(502, "bad gateway") if index < 4 else None}),
        ("a look is no batch", {"look": lambda index: Action(body=["batch", 7, "{"][index]) if index < 3 else None}),
        ("its file breaks off", {"content": lambda i: Action(body=b'{"custom_id"', cut=True) if i < 3 else None}),
    ],
)
def test_a_server_that_fails_for_a_moment_is_paid_once(tmp_path, what, play):
    with provider(delay_s=0.1, **play) as (server, batches):
        replies = ask(server, tmp_path / what, requests(5))
    assert all(isinstance(reply, Reply) for reply in replies), (what, replies)
    assert batches.paid == dict.fromkeys(map(request_key, requests(5)), 1), what
    assert len(batches.batches) == 1, what


def test_a_batch_is_found_again_and_what_nobody_asks_is_recorded(tmp_path):
    asked = requests(20)
    with provider(delay_s=0.5) as (server, batches):
        leave(server, tmp_path, asked, lambda: records(tmp_path) and records(tmp_path)[0]["batch_id"])
        # Another machine, and other settings of how calls are gathered.
        replies = ask(server, tmp_path, asked[:8], {"gather_s": 0.01})
        assert all(isinstance(reply, Reply) for reply in replies)
        assert [len(file) for file in batches.files] == [20]
        recorded = SegmentStore(str(tmp_path)).load(lambda _: True).entries
        assert set(recorded) == {request_key(each) for each in asked[8:]}
        assert {entry.model for entry in recorded.values()} == {deployment(server).model_identity}
        assert replies + [recorded[request_key(each)].reply for each in asked[8:]] == ask(
            server, tmp_path / "other", asked
        )
    assert max(Counter(key for file in batches.files[:1] for key in file).values()) == 1


@check_rows("is_created", [True, False])
def test_a_kill_between_creation_and_record_pays_nothing_twice(tmp_path, is_created):
    home = tmp_path / str(is_created)
    with provider(delay_s=0.3) as (server, batches):
        leave(server, home, requests(4), lambda: records(home) and records(home)[0]["batch_id"])
        [path] = home.glob("batches/*.json")
        path.write_text(json.dumps({**records(home)[0], "batch_id": None}))
        [batch] = batches.batches
        others = [dataclasses.replace(batch, index=1000 + n, metadata={}) for n in range(150)]  # the list has pages
        batches.batches = [batch, *others] if is_created else others
        replies = ask(server, home, requests(4))
        assert all(isinstance(reply, Reply) for reply in replies)
        assert sum(bool(batch.metadata) for batch in batches.batches) == 1


def test_replies_that_the_ledger_has_not_written_are_read_again_and_others_are_forgotten(tmp_path):
    with provider() as (server, batches):
        first = ask(server, tmp_path, requests(6))
        assert ask(server, tmp_path, requests(6)) == first
        assert len(batches.batches) == 1
        entries = [
            (request_key(each), Entry(reply, "fake", 1.0)) for each, reply in zip(requests(6), first, strict=True)
        ]
        SegmentStore(str(tmp_path)).write(entries[:5])
        assert ask(server, tmp_path, [request(5)]) == first[5:]
        assert len(batches.batches) == 1
        SegmentStore(str(tmp_path)).write(entries[5:])
        ask(server, tmp_path, [request(7)])
        assert [record["keys"] for record in records(tmp_path)] == [[request_key(request(7))]]


async def test_a_reply_counts_until_it_is_written_and_a_recorded_one_is_asked_again(tmp_path, monkeypatch):
    """A shard may die before it has written a reply; `--retry errors` asks one again that is written."""
    monkeypatch.setattr(run_batches, "_LOOKED_S", 0.0)
    with provider() as (server, batches):
        backend = backend_of(server, tmp_path)
        first = await backend.chat(request(1))
        assert await backend.chat(request(1)) == first
        assert len(batches.batches) == 1
        SegmentStore(str(tmp_path)).write([(request_key(request(1)), Entry(first, "fake", 1.0))])
        assert await backend.chat(request(1)) == first
        assert len(batches.batches) == 2
        await backend.close()


async def test_progress_says_batches_lines_and_age(tmp_path):
    with provider(delay_s=0.5) as (server, _):
        backend = backend_of(server, tmp_path, {"gather_s": 0.3})
        calls = [asyncio.create_task(backend.chat(each)) for each in requests(3)]
        await asyncio.sleep(0.1)
        said = [str(backend.progress())]
        while not (records(tmp_path) and records(tmp_path)[0]["batch_id"]):
            await asyncio.sleep(0.01)
        said.append(str(backend.progress()))
        await asyncio.gather(*calls)
        while not backend.is_idle:
            await asyncio.sleep(0.01)
        await backend.close()
    said.append(str(backend.progress()))
    assert said == ["3 calls gathered", "1 batch, 0 of 3 lines done, 0 min since", ""]


def test_what_a_server_does_not_know_at_once_is_looked_for_again_and_paid_once(tmp_path, subtests):
    gone = Action(404, error_body("no such object"))
    plays = {
        "a new batch (anthropic-sdk-python#1432)": {"look": lambda index: gone if index < 2 else None},
        "an ended batch's file, named late (litellm#37715)": {"n_nameless": 2},
        "its file, there late": {"content": lambda index: gone if index < 2 else None},
    }
    for what, play in plays.items():
        with subtests.test(what), provider(delay_s=0.1, **play) as (server, batches):
            replies = ask(server, tmp_path / what[:12], requests(3))
            assert all(isinstance(reply, Reply) for reply in replies), replies
            assert [len(file) for file in batches.files] == [3]


def test_a_batch_that_another_account_sent_is_kept_and_the_way_out_said(tmp_path):
    with provider(delay_s=0.3) as (server, batches):
        leave(server, tmp_path, requests(3), lambda: records(tmp_path) and records(tmp_path)[0]["batch_id"])
        mine, batches.batches = batches.batches, []
        failures = ask(server, tmp_path, requests(3))
        assert {type(failure) for failure in failures} == {TransientModelError}
        assert "the server has no batch batch_0" in str(failures[0])
        assert f"delete batches/{records(tmp_path)[0]['name']}.json" in str(failures[0])
        assert batches.batches == []
        assert batches.n_looks > UNSEEN_TRIES
        batches.batches = mine
        assert all(isinstance(reply, Reply) for reply in ask(server, tmp_path, requests(3)))
        assert [len(file) for file in batches.files] == [3]


@pytest.mark.parametrize("status", [401, 403])
def test_a_batch_that_may_be_there_is_not_sent_again_while_its_list_is_refused(tmp_path, status):
    """A key that is changed while the answer to a batch's creation was lost."""
    with provider(delay_s=0.1, create=lambda index: Action(reset=True) if index == 0 else None) as (server, batches):
        batches.listed = lambda index: Action(status, error_body("no"))
        assert not any(isinstance(reply, Reply) for reply in ask(server, tmp_path, requests(3)))
        assert len(records(tmp_path)) == 1
        batches.listed = lambda index: None
        assert all(isinstance(reply, Reply) for reply in ask(server, tmp_path, requests(3)))
        assert [len(file) for file in batches.files] == [3]


def test_a_creation_that_is_not_answered_is_looked_for_before_it_is_made_again(tmp_path, monkeypatch):
    """A gateway's time-out, and a list that shows new batches late."""
    monkeypatch.setattr(run_batches, "YOUNG_S", 0.1)
    lost = Action(504, error_body("upstream timed out"), reset=False)
    with provider() as (server, batches):
        create = batches._create

        def create_and_lose(body):
            made = create(body)
            return lost if len(batches.batches) == 1 else made

        batches._create, batches.lag_s = create_and_lose, 0.5
        assert all(isinstance(reply, Reply) for reply in ask(server, tmp_path, requests(3)))
        assert [len(file) for file in batches.files] == [3]
        assert [headers["idempotency-key"] for headers in batches.headers] == [batches.batches[0].metadata[NAME]]


def test_a_record_is_created_twice_at_most_and_kept(tmp_path):
    with provider(lag_s=3600) as (server, batches):
        create = batches._create
        batches._create = lambda body: (create(body), Action(504, error_body("upstream timed out")))[1]
        [*_, error] = ask(server, tmp_path, requests(3))
        assert isinstance(error, TransientModelError)
        assert "2 creations of a batch were not answered" in str(error)
        assert "upstream timed out" in str(error)
        [record] = records(tmp_path)
        assert record["name"] in str(error)
        assert [batch.metadata[NAME] for batch in batches.batches] == [record["name"]] * 2
        assert {headers["idempotency-key"] for headers in batches.headers} == {record["name"]}
        assert batches.n_lists >= 2 * UNSEEN_TRIES
        batches.lag_s = 0.0
        assert all(isinstance(reply, Reply) for reply in ask(server, tmp_path, requests(3)))
        assert len(batches.batches) == 2


def test_a_creation_that_a_rate_limit_refuses_is_made_when_it_may_be(tmp_path):
    refused = lambda index: Action(429, error_body("slow down")) if index < 5 else None  # noqa: E731
    with provider(create=refused) as (server, batches):
        assert all(isinstance(reply, Reply) for reply in ask(server, tmp_path, requests(3)))
        assert [len(file) for file in batches.files] == [3]
        assert batches.n_lists == 0


KEY = "sk-attack-0123456789abcdef"


@check_rows(
    ("what", "play"),
    [
        ("a line's error", {"rewrite": lambda raw: failed_lines(raw, {"code": KEY, "message": f"{KEY} over quota"})}),
        ("a line's error that is a text", {"rewrite": lambda raw: failed_lines(raw, f"key {KEY} over quota")}),
        ("a line's error with escapes", {"rewrite": lambda raw: failed_lines(raw, KEY).replace(b"sk-", b"\\u0073k-")}),
        ("a batch's id", {"create": lambda index: Action(body={"id": f"b-{KEY}", "status": "validating"})}),
        ("a file's id", {"look": lambda index: Action(body={"id": "b", "status": "done", "output_file_id": KEY})}),
        ("a file's reason", {"refuse": lambda batch: [fault(KEY, None, f"{KEY} is no key")]}),
        ("a line's reason", {"refuse": lambda batch: [fault(KEY, 1, f"{KEY} is no key"), fault(KEY, 2)]}),
        ("a state", {"called": {"completed": f"is {KEY}"}, "rewrite": lambda raw: KEY.encode()}),
        ("a file", {"rewrite": lambda raw: f"<html>{KEY}".encode()}),
        ("a creation's refusal", {"create": lambda index: Action(400, error_body(f"{KEY} may not"))}),
        ("an upload's refusal", {"upload": lambda index: Action(401, error_body(f"{KEY} is no key"), reason=KEY)}),
    ],
)
def test_a_key_that_the_server_repeats_is_hidden(tmp_path, monkeypatch, what, play):
    monkeypatch.setenv("BATCH_KEY", KEY)
    home = tmp_path / what
    with provider(**play) as (server, batches):
        failures = ask(server, home, requests(2), api_key_env="BATCH_KEY")
        assert all(isinstance(failure, ModelError) for failure in failures), (what, failures)
        assert all("[key]" in str(failure) for failure in failures[:1]), (what, failures)
        assert KEY not in repr(failures), what
        assert KEY not in json.dumps(records(home)), what
        assert {headers["authorization"] for headers in batches.headers} <= {f"Bearer {KEY}"}


def failed_lines(raw: bytes, error: object) -> bytes:
    lines = [{**json.loads(line), "response": None, "error": error} for line in raw.splitlines()]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def changed_lines(raw: bytes, change) -> bytes:
    return b"".join(json.dumps(change(json.loads(line))).encode() + b"\n" for line in raw.splitlines())


@check_rows(
    ("what", "rewrite"),
    [
        ("a BOM", lambda raw: b"\xef\xbb\xbf" + raw),
        ("a status as text", lambda raw: raw.replace(b'"status_code": 200', b'"status_code": "200"')),
        ("a status as a float", lambda raw: raw.replace(b'"status_code": 200', b'"status_code": 200.0')),
        ("a status that is none", lambda raw: raw.replace(b'"status_code": 200', b'"status_code": true')),
        (
            "ids in capitals",
            lambda raw: changed_lines(raw, lambda line: {**line, "custom_id": line["custom_id"].upper()}),
        ),
        ("white space at the ends", lambda raw: b"\n" + raw.replace(b"\n", b" \r\n")),
    ],
)
def test_a_file_that_is_written_otherwise_is_read_and_paid_once(tmp_path, what, rewrite):
    with provider(rewrite=rewrite) as (server, batches):
        replies = ask(server, tmp_path / what, requests(3))
    assert all(isinstance(reply, Reply) for reply in replies), (what, replies)
    assert [len(file) for file in batches.files] == [3], what


@check_rows(
    ("what", "rewrite", "shown"),
    [
        ("a page", lambda raw: b"<html>Signed out</html>", "<html>Signed out</html>"),
        ("nothing", lambda raw: b"", "''"),
        ("UTF-16", lambda raw: raw.decode().encode("utf-16"), "custom_id"),
        ("one array", lambda raw: b"[" + b",".join(raw.splitlines()) + b"]", "[{"),
        ("old line ends", lambda raw: raw.replace(b"\n", b"\r"), '{"id"'),
    ],
)
def test_a_batch_of_which_no_line_can_be_read_is_paid_once_and_kept(tmp_path, what, rewrite, shown):
    home = tmp_path / what
    with provider(rewrite=rewrite) as (server, batches):
        for _ in range(2):
            failures = ask(server, home, requests(3))
            assert {type(failure) for failure in failures} == {ModelError}, what
            assert "no line of its file can be read" in str(failures[0]), what
            assert shown in str(failures[0]).replace("\\x00", ""), (what, failures[0])
            assert f"delete batches/{records(home)[0]['name']}.json" in str(failures[0]), what
            assert len(str(failures[0])) < 900, what
        assert [len(file) for file in batches.files] == [3], what
        batches.rewrite = bytes
        assert all(isinstance(reply, Reply) for reply in ask(server, home, requests(3))), what
        assert [len(file) for file in batches.files] == [3], what


@pytest.mark.parametrize("status", [0, 503])
def test_a_line_that_was_not_done_is_asked_again(tmp_path, status):
    line = lambda batch, line: Action(status, error_body("down")) if batch.index == 0 else None  # noqa: E731
    with provider(line=line) as (server, batches):
        assert all(isinstance(reply, Reply) for reply in ask(server, tmp_path, requests(3)))
        assert [len(file) for file in batches.files] == [3, 3]


@check_rows(
    ("what", "answer"),
    [
        ("one line without end", lambda raw: Action(body=b'{"custom_id": "' + b"x" * 3_000_000)),
        ("packed", lambda raw: Action(body=gzip.compress(b"x" * 30_000_000), headers={"Content-Encoding": "gzip"})),
        ("packed otherwise", lambda raw: Action(body=b"x", headers={"Content-Encoding": "br"})),
    ],
)
def test_a_file_is_read_up_to_a_bound_and_paid_once(tmp_path, monkeypatch, what, answer):
    monkeypatch.setattr(OpenAIConfig, "MOST_MIB", 0.1)
    with provider(content=lambda index: answer(b"")) as (server, batches):
        failures = ask(server, tmp_path / what, requests(2))
        assert {type(failure) for failure in failures} == {ModelError}, (what, failures)
        expected = "Content-Encoding" if what == "packed otherwise" else "2 lines of 0.1 MiB"
        assert expected in str(failures[0]), (what, failures[0])
        assert len(records(tmp_path / what)) == 1
        assert [len(file) for file in batches.files] == [2], what


def test_a_reply_beyond_the_bound_fails_alone_and_is_paid_once(tmp_path, monkeypatch):
    monkeypatch.setattr(OpenAIConfig, "MOST_MIB", 0.01)
    large = lambda batch, line: Action(body=completion("x" * 50_000)) if line["body"]["seed"] == 1 else None  # noqa: E731
    with provider(line=large) as (server, batches):
        replies = ask(server, tmp_path, requests(30))
        assert [number for number, reply in enumerate(replies) if not isinstance(reply, Reply)] == [1]
        assert "its reply has more than 0.01 MiB" in str(replies[1])
        assert [len(file) for file in batches.files] == [30]


@check_rows(
    ("what", "page"),
    [
        ("the first page again and again", lambda index: [listed_batch("same", time.time())]),
        ("pages without end", lambda index: [listed_batch(f"b{index}", time.time())]),
        ("a text", lambda index: "batches"),
        ("null", lambda index: None),
        ("texts", lambda index: ["batch"] * 3),
    ],
)
def test_a_list_has_an_end(tmp_path, monkeypatch, what, page):
    monkeypatch.setattr(batch_api, "MOST_PAGES", 20)
    pages = lambda index: Action(body={"object": "list", "data": page(index), "has_more": True})  # noqa: E731
    with provider(create=lambda i: Action(503, "busy") if i == 0 else None, listed=pages) as (server, batches):
        replies = ask(server, tmp_path / what, requests(2))
        assert all(isinstance(reply, Reply) for reply in replies), (what, replies)
        assert batches.n_lists <= UNSEEN_TRIES * 20, what
        assert [len(file) for file in batches.files] == [2], what


def listed_batch(batch_id: str, created: float) -> dict[str, object]:
    return {"id": batch_id, "object": "batch", "status": "completed", "created_at": created, "metadata": {}}


@pytest.mark.parametrize("state", ["done", "COMPLETED ", "Success"])
def test_a_batch_in_an_unknown_state_with_its_file_has_ended(tmp_path, state):
    with provider(called={"completed": state}) as (server, batches):
        assert all(isinstance(reply, Reply) for reply in ask(server, tmp_path, requests(3)))
        assert not batches.batches[0].cancelled


def test_a_server_here_goes_by_no_proxy_and_another_address_is_not_asked(tmp_path, monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with provider() as (server, batches), provider() as (other, elsewhere):
        assert all(isinstance(reply, Reply) for reply in ask(server, tmp_path / "here", requests(3)))
        there = Action(307, "", {"Location": other.base_url + "/batches"})
        batches.create = lambda index: there
        [failure, *_] = ask(server, tmp_path / "there", requests(3))
        assert isinstance(failure, ModelError)
        assert "HTTP 307" in str(failure)
        assert not elsewhere.headers


@check_rows(
    ("what", "settings", "sent"),
    [
        ("no key", {}, None),
        ("a header", {"headers": {"Authorization": "Token abcdefgh"}}, "Token abcdefgh"),
        ("a user", {"base_url": "http://me:hunter22@"}, "Basic bWU6aHVudGVyMjI="),
    ],
)
def test_the_sdk_sends_the_authorization_of_chats(tmp_path, monkeypatch, what, settings, sent):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-another-server")
    monkeypatch.setenv("OPENAI_ORG_ID", "org-of-another-server")
    with provider() as (server, batches):
        given = deployment(server, **{key: value for key, value in settings.items() if key != "base_url"})
        if "base_url" in settings:
            given = given.model_copy(update={"base_url": server.base_url.replace("http://", settings["base_url"])})
        given = given.model_copy(update={"base_url": given.base_url + "?api-version=2"})
        backend = BatchBackend(given, given.make_backend(), BatchRecords(str(tmp_path / what)))

        async def run():
            try:
                return await asyncio.wait_for(backend.chat(request(0)), 30)
            finally:
                await backend.close()

        post, paths = batches.post, []
        batches.post = lambda path, *rest: (paths.append(path), post(path.partition("?")[0], *rest))[1]
        assert isinstance(asyncio.run(run()), Reply)
        [headers] = batches.headers
        assert headers.get("authorization") == sent, what
        assert not any("another-server" in value for value in headers.values())
        assert paths == ["/v1/files?api-version=2", "/v1/batches?api-version=2"]


def test_batches_without_their_package_say_how_to_install_it(monkeypatch):
    monkeypatch.setattr(openai_module, "find_spec", lambda name: None)
    given = {"base_url": "http://127.0.0.1:1/v1", "model": "m", "api_key_env": None}
    OpenAIConfig(**given).check(True)
    with pytest.raises(ConfigError, match=r"package openai is missing: pip install 'kohaku-ray\[batches\]'"):
        OpenAIConfig(**given, batch=True).check(True)


def test_a_record_that_cannot_be_read_stops_before_anything_is_paid(tmp_path):
    (tmp_path / "batches").mkdir()
    (tmp_path / "batches" / "torn.json").write_text('{"name": "to')
    with provider() as (server, batches):
        [error] = ask(server, tmp_path, [request(0)])
    assert isinstance(error, DataError)
    assert "torn.json" in str(error)
    assert not batches.uploads


def test_settings(tmp_path):
    given = {"base_url": "http://127.0.0.1:1/v1", "model": "m", "api_key_env": None}
    plain, batched = OpenAIConfig(**given), OpenAIConfig(**given, batch=True, price={"prompt": 2.0, "completion": 4.0})
    assert OpenAIConfig(**given, batch=False) == plain
    assert batched.batch == BatchConfig()
    assert batched.model_identity == plain.model_identity, "a reply by a batch is a reply"
    assert (plain.most_in_flight, batched.most_in_flight) == (64, 50_000)
    assert (batched.paid_price.prompt, batched.paid_price.completion) == (1.0, 2.0)
    with pytest.raises(ConfigError, match="replicas 2"):
        OpenAIConfig(**given, batch=True, replicas=2).check(True)


def kill_at(server: FakeOpenAI, home, moments: list[int], n: int = 12) -> tuple[list[str], int]:
    """Run a job of two waves whose starts are killed when the server has done, not answered, these requests of theirs.

    Returns:
        The job's replies and the number of its starts.
    """
    batches, left = server.batches, list(moments)
    post, get = batches.post, batches.get
    process, n_requests = None, 0

    def counted(handle, *arguments):
        nonlocal n_requests
        action = handle(*arguments)
        n_requests += 1
        if left and n_requests == left[0]:
            left.pop(0)
            process.kill()
            process.wait()
        return action

    batches.post = lambda *arguments: counted(post, *arguments)
    batches.get = lambda *arguments: counted(get, *arguments)
    command = [sys.executable, "-m", "kit.batched_job", server.base_url, str(home), str(n)]
    path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    for n_starts in range(1, len(moments) + 2):
        n_requests = 0
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path})
        output, _ = process.communicate(timeout=120)
        if process.returncode == 0:
            return json.loads(output), n_starts
        assert process.returncode == -signal.SIGKILL
    raise AssertionError("never finished")


def check_kills(home, moments: list[int]) -> int:
    """Check a job that is killed at these moments, or those of them that come before its end; returns the kills."""
    with provider(delay_s=0.3) as (server, _):
        expected, _ = kill_at(server, home / "whole", [])
    with provider(delay_s=0.3) as (server, batches):
        replies, n_starts = kill_at(server, home / "killed", moments)
        assert replies == expected
        keys = [key for file in batches.files for key in file]
        assert len(keys) == len(set(keys)) == 24
        assert batches.paid == dict.fromkeys(keys, 1)
        return n_starts - 1


def test_a_kill_when_a_batch_is_created_and_not_yet_known(tmp_path):
    assert check_kills(tmp_path, [2]) == 1  # the upload is the first request


@pytest.mark.chaos
@pytest.mark.long
def test_twenty_kills_at_any_request_pay_each_line_once(tmp_path):
    chance, n_kills = random.Random(32), 0
    while n_kills < 20:
        n_kills += check_kills(tmp_path / str(n_kills), [chance.randint(1, 4) for _ in range(20)])
