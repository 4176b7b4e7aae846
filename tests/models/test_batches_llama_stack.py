"""Calls by the batch API of a real server, Llama Stack's: its replies are those of single calls, and paid once.

It needs Python 3.12 and so an environment of its own, whose ``llama`` is found in PATH:
``uv venv --python 3.12 stack; uv pip install --python stack/bin/python llama-stack==0.7.3 'mcp<2'``.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.fake_openai import Action, FakeOpenAI, error_body, text_of
from kit.model_server import started_server

from kohaku_ray.errors import ModelError
from kohaku_ray.models.batches import BatchBackend, BatchRecords
from kohaku_ray.models.openai import OpenAIConfig
from kohaku_ray.models.request import ChatRequest
from kohaku_ray.records import Reply

PROGRAM = shutil.which("llama")
pytestmark = [
    pytest.mark.skipif(PROGRAM is None, reason="no llama of Llama Stack in PATH"),
    pytest.mark.slow,
    pytest.mark.timeout(300),
]
REFUSED, SLOW = "Refuse this.", "Take your time."


def play(index: int, body: dict) -> Action | None:
    """What the model behind the server does."""
    text = text_of(body["messages"][0])
    if SLOW in text:
        time.sleep(1)
    return Action(400, error_body("refused")) if REFUSED in text else None


@pytest.fixture(scope="module")
def chats() -> Iterator[FakeOpenAI]:
    with FakeOpenAI(play) as server:
        yield server


CONFIG = """
version: 2
distro_name: batches
apis: [inference, files, batches]
providers:
  inference:
  - {provider_id: behind, provider_type: "remote::openai", config: {api_key: none, base_url: CHATS}}
  files:
  - provider_id: files
    provider_type: inline::localfs
    config: {storage_dir: HOME/files, metadata_store: {table_name: files, backend: sql_default}}
  batches:
  - provider_id: batches
    provider_type: inline::reference
    config: {kvstore: {backend: kv_default, namespace: batches}}
storage:
  backends:
    kv_default: {type: kv_sqlite, db_path: HOME/kv.db}
    sql_default: {type: sql_sqlite, db_path: HOME/sql.db}
  stores:
    metadata: {namespace: registry, backend: kv_default}
    prompts: {namespace: prompts, backend: kv_default}
    inference: {table_name: inference, backend: sql_default}
    conversations: {table_name: conversations, backend: sql_default}
registered_resources:
  models:
  - {model_id: fake, provider_id: behind, provider_model_id: fake, model_type: llm}
server: {host: 127.0.0.1}
"""


@pytest.fixture(scope="module")
def base_url(chats, tmp_path_factory) -> Iterator[str]:
    home = tmp_path_factory.mktemp("stack")
    file = home / "run.yaml"
    file.write_text(CONFIG.replace("HOME", str(home)).replace("CHATS", chats.base_url))
    command, environment = [str(PROGRAM), "stack", "run", str(file)], {**os.environ, "HOME": str(home)}
    with started_server(command, home / "log", environment, (), "/v1/health") as url:
        yield url


def requests(first: int, n: int, text: str = "Which hall?") -> list[ChatRequest]:
    given = {"temperature": 0.7, "top_p": 1.0, "max_tokens": 64}
    return [
        ChatRequest("fake", (("user", f"[ref_id=a] {text} {number}"),), **given, seed=number)
        for number in range(first, first + n)
    ]


async def ask(base_url: str, home: Path, asked: list[ChatRequest], leave_s: float | None = None, **batch) -> list:
    """Ask by batches, or leave after so many seconds, as if killed."""
    settings = {"gather_s": 0.1, "poll_s": 0.2, **batch}
    given = {"api_key_env": None, "max_tries": 2, "backoff_s": 0.1}
    config = OpenAIConfig(base_url=base_url, model="behind/fake", batch=settings, **given)
    backend = BatchBackend(config, config.make_backend(), BatchRecords(str(home)))
    calls = [asyncio.create_task(backend.chat(each)) for each in asked]
    try:
        if leave_s is not None:
            await asyncio.sleep(leave_s)
            return []
        async with asyncio.timeout(120):
            replies = await asyncio.gather(*calls, return_exceptions=True)
            while not backend.is_idle:
                await asyncio.sleep(0.01)
            return replies
    finally:
        for call in calls:
            call.cancel()
        await backend.close()
        await asyncio.gather(*calls, return_exceptions=True)


def test_replies_are_those_of_single_calls_and_a_refused_line_fails_alone(base_url, chats, tmp_path):
    asked = requests(0, 40)
    *replies, error = asyncio.run(ask(base_url, tmp_path, [*asked, *requests(50, 1, REFUSED)]))

    async def singly() -> list[Reply]:
        client = OpenAIConfig(base_url=chats.base_url, model="fake", api_key_env=None).make_backend()
        try:
            return [await client.chat(each) for each in asked]
        finally:
            await client.close()

    assert replies == asyncio.run(singly())
    assert isinstance(error, ModelError)
    assert "refused" in str(error)


def test_a_batch_that_was_under_way_is_found_again_and_paid_once(base_url, chats, tmp_path):
    before, asked = chats.n_requests, requests(100, 20, SLOW)
    asyncio.run(ask(base_url, tmp_path, asked, leave_s=1.5))
    assert all(isinstance(reply, Reply) for reply in asyncio.run(ask(base_url, tmp_path, asked)))
    assert chats.n_requests == before + len(asked)


def test_a_batch_that_does_not_end_is_cancelled_and_named(base_url, tmp_path):
    [error, *_] = asyncio.run(ask(base_url, tmp_path, requests(200, 60, SLOW), deadline_s=2.0))
    assert isinstance(error, ModelError)
    assert "deadline_s of 2 s" in str(error)
