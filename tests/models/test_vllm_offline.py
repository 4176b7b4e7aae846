"""How plain vLLM is fed beside replicas: with as many questions in flight; each run is kept as soon as it has ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kohaku_ray.engine.jobs.bench_answers import _run_plain
from kohaku_ray.errors import ModelError

ENGINE = '''
"""A vLLM whose every step ends the call that it has longest."""
import json, os, types

class SamplingParams:
    def __init__(self, **given):
        self.given = given

priorities = {}

class LLM:
    def reset_prefix_cache(self):
        pass

    def __init__(self, model, **engine):
        self.llm_engine, self.model = Engine(), model

    def get_tokenizer(self):
        return types.SimpleNamespace(
            apply_chat_template=lambda messages, **_: messages[-1]["content"],
            encode=lambda text, **_: list(range(len(text))),
        )

class Engine:
    def __init__(self):
        self.held, self.most, self.seen = [], 0, 0

    def add_request(self, name, prompt, how, priority):
        self.held.append((name, prompt, how))
        self.held.sort(key=lambda call: priorities.setdefault(call[0], priority))
        if len(prompt["prompt_token_ids"]) > 2:
            self.most = max(self.most, len({one.partition("-")[0] for one, _, _ in self.held}))

    def step(self):
        name, prompt, how = self.held.pop(0)
        print("ended", name.partition("-")[0])
        if how.given["max_tokens"] == 666:
            raise MemoryError("no memory")
        print("in flight", self.most)
        tokens = types.SimpleNamespace(token_ids=[1] * how.given["max_tokens"])
        return [types.SimpleNamespace(finished=False), types.SimpleNamespace(
            finished=True, request_id=name, prompt_token_ids=prompt["prompt_token_ids"], num_cached_tokens=1,
            outputs=[tokens])]
'''


def vllm(tmp_path: Path) -> dict[str, str]:
    """An environment whose vLLM is the one above."""
    parts = {
        "vllm/__init__.py": ENGINE,
        "vllm/sampling_params.py": "class RequestOutputKind:\n    FINAL_ONLY = 2\nclass StructuredOutputsParams:\n"
        "    def __init__(self, json): pass\n",
        "vllm/engine/__init__.py": "",
        "vllm/engine/arg_utils.py": "import dataclasses\n@dataclasses.dataclass\nclass EngineArgs:\n  seed: int = 0\n",
    }
    for name, text in parts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    paths = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    return {"PYTHONPATH": paths}


def call(text: str, n: int) -> dict:
    given = {"schema": None, "seed": 0, "temperature": 0.7, "top_p": 1.0, "max_tokens": n}
    return {"messages": [{"role": "user", "content": text}], **given}


def job(*runs: tuple[int, list[list[dict]]]) -> dict:
    warm_up = [{"role": "user", "content": "hi"}]
    of_runs = [{"in_flight": n, "questions": questions} for n, questions in runs]
    return {"model": "m", "engine": {"seed": 1, "x": 2}, "template": {}, "warm_up": warm_up, "runs": of_runs}


def test_no_more_questions_are_with_the_engine_than_replicas_had_in_flight(tmp_path):
    questions = [[call("question", 4)] * 3 for _ in range(10)]
    (tmp_path / "job").write_text(json.dumps(job((2, questions))))
    command = [sys.executable, "-m", "kohaku_ray.models.vllm_offline"]
    done = subprocess.run(
        [*command, str(tmp_path / "job"), str(tmp_path / "results")],
        env={**os.environ, **vllm(tmp_path)}, capture_output=True, text=True, start_new_session=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    [result] = [json.loads(line) for line in (tmp_path / "results").read_text().splitlines()]
    assert (result["n_calls"], result["completion_tokens"], result["prompt_tokens"]) == (30, 120, 240)
    assert done.stdout.splitlines()[-1] == "in flight 2"


@pytest.mark.parametrize(
    ("older_first", "order"),
    [(True, "0 0 0 1 1 1 2 2 2"), (False, "0 0 1 1 0 1 2 2 2")],
)
def test_a_later_wave_of_an_older_question_goes_first_if_asked(tmp_path, older_first, order):
    run = {"in_flight": 2, "waves": [2, 1, 1], "going_on": [1.0, 0.0], "older_first": older_first}
    given = {**job(), "runs": [{**run, "questions": [[call("question", 4)] * 4 for _ in range(3)]}]}
    (tmp_path / "job").write_text(json.dumps(given))
    command = [sys.executable, "-m", "kohaku_ray.models.vllm_offline", str(tmp_path / "job"), str(tmp_path / "results")]
    done = subprocess.run(command, env={**os.environ, **vllm(tmp_path)}, capture_output=True, text=True, check=True)
    _, *ended = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("ended")]
    assert " ".join(ended) == order, "the first is the warm-up's"
    [result] = [json.loads(line) for line in (tmp_path / "results").read_text().splitlines()]
    assert result["n_calls"] == 9, "two waves settle each"


def test_a_run_that_is_measured_is_kept_when_a_later_one_fails(tmp_path):
    results = _run_plain(job((2, [[call("question", 4)]]), (2, [[call("question", 666)]])), vllm(tmp_path))
    assert next(results)["n_calls"] == 1
    with pytest.raises(ModelError, match=r"plain vLLM ended with code 1: .*MemoryError: no memory"):
        next(results)
