"""Asks two waves of calls by batches and records their replies, in a process that a test may kill.

    python -m kit.batched_job URL LEDGER N      # prints the replies as JSON when it has all of them

The second wave's calls have the first one's replies in their prompts, as answers have plans.
"""

from __future__ import annotations

import asyncio
import json
import sys

from kohaku_ray.models.batches import BatchBackend, BatchRecords
from kohaku_ray.models.openai import OpenAIConfig
from kohaku_ray.models.request import ChatRequest, request_key
from kohaku_ray.store.segments import Entry, SegmentStore


async def run(url: str, ledger: str, n: int) -> list[str]:
    batch = {"gather_s": 0.1, "poll_s": 0.1}
    deployment = OpenAIConfig(base_url=url, model="fake", api_key_env=None, backoff_s=0.01, batch=batch)
    backend = BatchBackend(deployment, deployment.make_backend(), BatchRecords(ledger))
    store = SegmentStore(ledger)
    recorded = dict(store.load(lambda _: True).entries)

    async def ask(text: str) -> str:
        request = ChatRequest("fake", (("user", text),), 0.7, 1.0, 64, seed=1)
        key = request_key(request)
        if key not in recorded:
            recorded[key] = Entry(await backend.chat(request), "fake", 1.0)
            await asyncio.to_thread(store.write, [(key, recorded[key])])
        return recorded[key].reply.text

    plans = await asyncio.gather(*(ask(f"Plan question {number}.") for number in range(n)))
    return await asyncio.gather(*(ask(f"[ref_id=a] Answer ref_id {plan}") for plan in plans))


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run(sys.argv[1], sys.argv[2], int(sys.argv[3])))))
