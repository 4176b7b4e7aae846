"""Plain vLLM, the limit a benchmark compares with: ``LLM.generate`` in a process without Ray.

    python -m kohaku_ray.engine.serving.vllm_offline JOB RESULT

Both are JSON files; ``run_job`` describes them.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def run_job(job: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Generate all replies of a job, one run after another in one engine.

    Args:
        job: ``model``; ``engine``, the deployment's engine kwargs; ``template``, those of its chat template;
            ``temperature``, ``top_p`` and ``max_tokens``; ``warm_up``, messages for a run that is not measured;
            ``runs``, each with ``members``, the messages of its ``prompts``, and their ``seeds``; and ``calls``, the
            run after these, each with ``messages``, ``schema``, ``seeds`` and sampling of its own.

    Returns:
        Per run ``n_questions``, ``n_calls``, ``wall_s``, ``cpu_s`` (this process, without the engine's process),
        ``prompt_tokens`` (once per member, as separate calls count them) and ``completion_tokens``; last, the same of
        the calls, if there are any, with ``cached_tokens``; their questions are not known here.
    """
    from vllm import LLM, SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    llm: Any = LLM(job["model"], **_known_to_plain(job["engine"]))
    tokenizer: Any = llm.get_tokenizer()

    def token_ids(messages: Any) -> list[int]:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **job["template"])
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
        return ids

    def timed(prompts: Sequence[list[int]], sampling: Sequence[SamplingParams]) -> tuple[Any, dict[str, float]]:
        began, cpu = time.perf_counter(), time.process_time()
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], sampling, use_tqdm=False)
        return outputs, {"wall_s": time.perf_counter() - began, "cpu_s": time.process_time() - cpu}

    def generate(run: Mapping[str, Any]) -> dict[str, Any]:
        members: int = run["members"]
        prompts = [token_ids(messages) for messages in run["prompts"]]
        sampling = [
            SamplingParams(
                n=members,
                seed=seed,
                temperature=job["temperature"],
                top_p=job["top_p"],
                max_tokens=job["max_tokens"],
                ignore_eos=True,
            )
            for seed in run["seeds"]
        ]
        outputs, times = timed(prompts, sampling)
        return {
            "n_questions": len(prompts),
            "n_calls": len(prompts) * members,
            "prompt_tokens": members * sum(map(len, prompts)),
            "completion_tokens": sum(len(reply.token_ids) for output in outputs for reply in output.outputs),
            **times,
        }

    def make(calls: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Generate a reply per seed, each a request of its own, as the members of a question ask."""
        prompts: list[list[int]] = []
        sampling: list[SamplingParams] = []
        for call in calls:
            given = {name: call[name] for name in ("temperature", "top_p", "max_tokens")}
            prompts += [token_ids(call["messages"])] * len(call["seeds"])
            for seed in call["seeds"]:
                grammar = StructuredOutputsParams(json=call["schema"])
                sampling.append(SamplingParams(seed=seed, structured_outputs=grammar, **given))
        outputs, times = timed(prompts, sampling)
        return {
            "n_calls": len(prompts),
            "prompt_tokens": sum(map(len, prompts)),
            "cached_tokens": sum(output.num_cached_tokens or 0 for output in outputs),
            "completion_tokens": sum(len(reply.token_ids) for output in outputs for reply in output.outputs),
            **times,
        }

    generate({"members": 1, "prompts": [job["warm_up"]], "seeds": [0]})
    results = [generate(run) for run in job["runs"]]
    if calls := job["calls"]:
        make([{**calls[0], "messages": job["warm_up"], "seeds": [0]}])  # which loads what grammars need
        results.append(make(calls))
    return results


def _known_to_plain(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Drop arguments that only a server's front end takes, such as ``enable_prompt_tokens_details``."""
    from vllm.engine.arg_utils import EngineArgs

    known = {field.name for field in dataclasses.fields(EngineArgs)}
    return {key: value for key, value in kwargs.items() if key in known}


@contextmanager
def _ended_with_parent() -> Iterator[None]:
    """End this process and the engine's when its parent has ended, so that no device stays taken.

    A separate process watches: when Ray ends a task, it ends this process too, but not its child, the engine.
    """
    parent, own = os.getppid(), os.getpid()
    script = f"while kill -0 {parent} && kill -0 {own}; do sleep 1; done; kill -s KILL -- -{own}"
    watcher = subprocess.Popen(["/bin/sh", "-c", script], stderr=subprocess.DEVNULL, start_new_session=True)  # noqa: S603
    try:
        yield
    finally:
        watcher.kill()


if __name__ == "__main__":
    job_file, result_file = map(Path, sys.argv[1:])
    with _ended_with_parent():
        result_file.write_text(json.dumps(run_job(json.loads(job_file.read_text()))))
