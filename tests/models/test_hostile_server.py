"""Whatever a server sends, a question gets what was written for it or an error, within its time, and never the key."""

from __future__ import annotations

import asyncio
import resource
import time

import pytest
from kit.fake_openai import client_of
from kit.hostile_server import KEY, MODES, POISON, HostileServer, own_value
from kit.rows import check_rows

from kohaku_ray.errors import ModelError
from kohaku_ray.models.parse import parse_answer
from kohaku_ray.models.request import ChatRequest
from kohaku_ray.records import Prediction
from kohaku_ray.values.normalise import group_values

TRIES, TIMEOUT_S = 2, 0.5
"""Of the modes that hang; the others have time enough on any machine."""


def request(mode: str) -> ChatRequest:
    messages = (("system", "Cite ref_id."), ("user", f"[ref_id=a] text\nQuestion: mode {mode}?"))
    return ChatRequest("fake", messages, temperature=0.7, top_p=0.9, max_tokens=64, seed=1, schema=None)


Result = Prediction | ModelError


async def ask_all(server: HostileServer, hangs: bool, timeout_s: float) -> dict[str, tuple[Result, Result, float]]:
    """Ask a question per mode, several at a time on one client, and after each another one of a server that is well."""
    backend = client_of(server.base_url, "fake", KEY, timeout_s=timeout_s, max_tries=TRIES, backoff_s=0.001)
    turns = asyncio.Semaphore(16)

    async def ask(mode: str) -> Result:
        try:
            reply = await backend.chat(request(mode))
        except ModelError as error:
            return error
        assert KEY not in repr(reply)
        assert min(reply.prompt_tokens, reply.completion_tokens) > 0 or not reply.text, "no call is free"
        return parse_answer(reply, ["a"])

    async def ask_both(mode: str) -> tuple[Result, Result, float]:
        async with turns:
            begun_s = time.monotonic()
            result = await ask(mode)
            elapsed_s = time.monotonic() - begun_s
            return result, await ask("ok"), elapsed_s

    modes = [name for name, mode in MODES.items() if mode.hangs == hangs]
    results = await asyncio.gather(*map(ask_both, modes))
    await backend.close()
    return dict(zip(modes, results, strict=True))


@pytest.fixture(scope="module")
def results():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with HostileServer() as server:
        results = asyncio.run(ask_all(server, hangs=False, timeout_s=30.0))
    with HostileServer() as hanging:
        results |= asyncio.run(ask_all(hanging, hangs=True, timeout_s=TIMEOUT_S))
    assert server.poison_asked == 0, "no redirect is followed"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 * 1024, "no body is kept beyond its bound"
    return results


def is_own(result: Result, mode: str) -> bool:
    labels = group_values([getattr(result, "answer_value", ""), own_value(mode)])
    return labels[0] == labels[1]


@check_rows("mode", MODES)
def test_a_question_gets_what_was_written_for_it_or_an_error(mode, results):
    result, next_result, elapsed_s = results[mode]
    _, outcome, hangs = MODES[mode]
    assert KEY not in f"{result!r} {result}"
    if isinstance(result, ModelError):
        assert outcome in ("error", "any"), result
    else:
        assert outcome != "error", result
        assert outcome == "any" or is_own(result, mode), result
        assert POISON not in (result.answer_value, *result.ref_ids)
    assert is_own(next_result, "ok"), next_result
    assert not hangs or elapsed_s < TRIES * TIMEOUT_S + 5.0, "it ends within its time, on a busy machine too"
