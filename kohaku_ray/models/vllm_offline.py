"""Plain vLLM, the limit a benchmark compares with: its engine in a process without Ray, fed as replicas are.

    python -m kohaku_ray.models.vllm_offline JOB RESULTS

The job is a JSON file, and the results a JSON line each, written when its run has ended; ``run_job`` describes both.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import random
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any


def run_job(job: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Generate all replies of a job, one run after another in one engine.

    Args:
        job: ``model``; ``engine``, the deployment's engine kwargs; ``template``, those of its chat template;
            ``warm_up``, messages for a call before each run that is not measured; and ``runs``. A run has
            ``in_flight``, the most questions whose calls are with the engine at once (None: as many as its KV cache
            holds, each with a wave's replies), and ``questions``, lists of
            calls, each with its ``messages``, ``schema``, ``seed``, ``temperature``, ``top_p`` and ``max_tokens``: a
            request of its own, as members ask. A reply without a schema has ``max_tokens``. It may have ``waves``, the
            calls of each wave of a question, with ``going_on``, the share of questions that each but the last does not
            settle; and ``older_first``, whether the engine takes calls in the questions' order.

    Yields:
        Per run ``n_calls``, ``wall_s``, ``cpu_s`` (this process, without the engine's process), and the sums of
        ``prompt_tokens``, ``cached_tokens`` and ``completion_tokens``.
    """
    from vllm import LLM, SamplingParams
    from vllm.engine.arg_utils import EngineArgs
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    # Without the arguments that only a server's front end takes, such as ``enable_prompt_tokens_details``.
    known = {field.name for field in dataclasses.fields(EngineArgs)}
    llm: Any = LLM(job["model"], **{key: value for key, value in job["engine"].items() if key in known})
    tokenizer: Any = llm.get_tokenizer()

    @functools.lru_cache(maxsize=1)  # the calls of a question come one after the other
    def ids_of(messages: str) -> list[int]:
        given = {"tokenize": False, "add_generation_prompt": True, **job["template"]}
        text = tokenizer.apply_chat_template(json.loads(messages), **given)
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
        return ids

    def prompt(messages: Any) -> dict[str, list[int]]:
        return {"prompt_token_ids": ids_of(json.dumps(messages))}

    def sampling(call: Mapping[str, Any]) -> SamplingParams:
        given = {name: call[name] for name in ("seed", "temperature", "top_p", "max_tokens")}
        given["output_kind"] = RequestOutputKind.FINAL_ONLY
        if call["schema"] is None:
            return SamplingParams(ignore_eos=True, **given)
        return SamplingParams(structured_outputs=StructuredOutputsParams(json=call["schema"]), **given)

    def generate(run: Mapping[str, Any]) -> dict[str, Any]:
        waiting = deque(
            (number, [(prompt(call["messages"]), sampling(call)) for call in calls])
            for number, calls in enumerate(run["questions"])
        )
        outputs: list[Any] = []
        later: dict[int, list[list[Any]]] = {}  # waves by a question that is with the engine
        left: dict[int, int] = {}  # calls of its wave
        going_on = run.get("going_on", ())
        in_flight = run["in_flight"]
        if in_flight is None:
            cache, [(ids, _), *_] = llm.llm_engine.vllm_config.cache_config, waiting[0][1]
            tokens = cache.kv_cache_size_tokens or cache.num_gpu_blocks * cache.block_size
            longest = len(ids["prompt_token_ids"]) + max(run["waves"]) * run["questions"][0][0]["max_tokens"]
            in_flight = max(tokens // longest, 1)

        def goes_on(number: int) -> bool:
            """Decide by the question and its wave alone, whatever else the engine does."""
            n_left = len(later[number])
            return n_left > 0 and random.Random(n_left + 100 * number).random() < going_on[-n_left]  # noqa: S311

        def start(number: int, wave: list[Any]) -> None:
            left[number] = len(wave)
            for call_number, (ids, how) in enumerate(wave):
                name = f"{number}-{len(later[number])}-{call_number}"
                llm.llm_engine.add_request(name, ids, how, priority=number if run.get("older_first") else 0)

        began, cpu = time.perf_counter(), time.process_time()
        while waiting or left:
            while waiting and len(left) < in_flight:
                number, calls = waiting.popleft()
                ends = [*accumulate(run.get("waves") or [len(calls)])]
                later[number] = [calls[first:end] for first, end in pairwise([0, *ends])]
                start(number, later[number].pop(0))
            for output in llm.llm_engine.step():
                if output.finished:
                    outputs.append(output)
                    number = int(output.request_id.partition("-")[0])
                    left[number] -= 1
                    if left[number]:
                        continue
                    if goes_on(number):
                        start(number, later[number].pop(0))
                    else:
                        del left[number], later[number]
        return {
            "n_calls": len(outputs),
            "wall_s": time.perf_counter() - began,
            "cpu_s": time.process_time() - cpu,
            "prompt_tokens": sum(len(output.prompt_token_ids) for output in outputs),
            "cached_tokens": sum(output.num_cached_tokens or 0 for output in outputs),
            "completion_tokens": sum(len(reply.token_ids) for output in outputs for reply in output.outputs),
        }

    for run in job["runs"]:
        first = {**run["questions"][0][0], "messages": job["warm_up"]}
        generate({"questions": [[first]], "in_flight": 1})  # which loads what its grammar needs
        llm.reset_prefix_cache()  # which an earlier run has filled with the same contexts
        yield generate(run)


@contextmanager
def _ended_with_parent() -> Iterator[None]:
    """End this process and the engine's when its parent has ended, so that no device stays taken.

    A separate process watches: when Ray ends a task, it ends this process too, but not its child, the engine.
    """
    parent, process = os.getppid(), os.getpid()
    script = f"while kill -0 {parent} && kill -0 {process}; do sleep 1; done; kill -s KILL -- -{process}"
    watcher = subprocess.Popen(["/bin/sh", "-c", script], stderr=subprocess.DEVNULL, start_new_session=True)  # noqa: S603
    try:
        yield
    finally:
        watcher.kill()


if __name__ == "__main__":
    job_file, result_file = map(Path, sys.argv[1:])
    with _ended_with_parent():
        for record in run_job(json.loads(job_file.read_text())):
            with result_file.open("a", encoding="utf-8") as results:
                results.write(json.dumps(record) + "\n")
