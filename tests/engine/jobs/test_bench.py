"""The throughput benchmark: its prompts, what it refuses, and one run on the real engine with a tiny random model."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
from kit import tiny_llama
from kit.installed import needs
from kit.runs_here import index_here, run_here
from ray.serve.schema import ApplicationStatus

import kohaku_ray.sample
from kohaku_ray.collection.sources import questions_of
from kohaku_ray.config import Config, load_config
from kohaku_ray.engine.jobs import bench as benching
from kohaku_ray.engine.jobs.bench import Grid, Texts, run_bench
from kohaku_ray.errors import ConfigError, ModelError
from kohaku_ray.index.identity import token_counter
from kohaku_ray.models.request import ChatRequest
from kohaku_ray.models.vllm import VllmConfig
from kohaku_ray.pages.throughput import Measurement, records
from kohaku_ray.records import Reply

WINDOW = 1024
SHORT_ANSWERS = (
    *("roles.answer.max_tokens=256", "roles.plan.max_tokens=64"),
    *("kohaku.max_retries=0", "kohaku.max_context_tokens=1500"),
)
SAMPLE = Path(kohaku_ray.sample.__file__).parent


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> str:
    """Path of a random model."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(SAMPLE.rglob("*.md"))]
    return tiny_llama.build(tmp_path_factory.mktemp("tiny"), texts)


@pytest.fixture
def config(tiny):
    def make(*overrides: str, **settings) -> Config:
        deployment = {"kind": "vllm", "model": tiny, "cpus": 1, "window_tokens": WINDOW, "start_timeout_s": 600}
        deployment |= settings
        return load_config(
            "demo", [f"deployments.tiny={json.dumps(deployment)}", "roles.answer.model=tiny", *overrides]
        )

    return make


@pytest.mark.parametrize("n_tokens", [1, 50, 700])
def test_prompts_have_the_tokens_asked_repeat_for_their_number_alone_and_share_no_beginning(tiny, n_tokens):
    texts, again = (Texts(VllmConfig(model=tiny), n_tokens) for _ in range(2))
    prompts = [texts.messages(cell, number) for cell in (1, 2) for number in range(30)]
    assert prompts == [again.messages(cell, number) for cell in (1, 2) for number in range(30)]
    counts = token_counter(tiny)([user for _, (_, user) in prompts])
    assert all(abs(count - n_tokens) <= 3 for count in counts), counts
    assert len({system.split()[0] for (_, system), _ in prompts}) == 60
    assert n_tokens == 1 or len({user[:40] for _, (_, user) in prompts}) == 60


@needs("vllm")
@pytest.mark.parametrize(
    ("overrides", "settings", "grid", "message"),
    [
        (["roles.answer.model=extractive"], {}, Grid(), "is extractive, of kind extractive, but the benchmark starts"),
        ([], {"application": "theirs"}, Grid(), "name a deployment of that kind whose application is null"),
        ([], {"model": "/no/model"}, Grid(), "deployments.tiny: model is /no/model and there is no such directory"),
        ([], {}, Grid(context_tokens=1000), f"and 128 are generated, but deployments.tiny.window_tokens is {WINDOW}"),
        (
            ["roles.answer.temperature=0"],
            {},
            Grid(context_tokens=100),
            "roles.answer.temperature is 0 but --members has 9: greedy members give equal answers",
        ),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_starts(
    config, tmp_path, overrides, settings, grid, message
):
    with pytest.raises(ConfigError) as error:
        run_bench(config(*overrides, **settings), grid, str(tmp_path / "out"))
    assert message in str(error.value)
    assert not (tmp_path / "out").exists()


class Application:
    """Answers in Serve's place; notes the questions in flight, and fails where it is told to."""

    def __init__(self, failures: dict[str, BaseException], n_tokens: int | None = None) -> None:
        self.failures, self.n_tokens = failures, n_tokens
        self.in_flight = Counter()
        self.most_in_flight = 0
        self.calls: dict[str, list[ChatRequest]] = {}

    def options(self, session_id: str):
        return self

    @property
    def ask(self):
        return self

    async def remote(self, requests):
        outcomes = await asyncio.gather(*map(self.answer, requests), return_exceptions=True)
        for failed in [outcome for outcome in outcomes if isinstance(outcome, BaseException)]:
            raise failed
        return outcomes

    async def answer(self, request) -> tuple[Reply, float]:
        cell = request.session_id.rsplit("-", 1)[0]
        self.calls.setdefault(cell, []).append(request)
        self.in_flight[request.session_id] += 1
        self.most_in_flight = max(self.most_in_flight, len(+self.in_flight) if cell != "bench-0" else 0)
        await asyncio.sleep(0.001)
        self.in_flight[request.session_id] -= 1
        if cell in self.failures:
            raise self.failures[cell]
        return Reply("", 100, 50, self.n_tokens or request.max_tokens), 0.001


class FakeCluster:
    """A Ray cluster of one node with four CPUs, on which every application of Serve is up."""

    def __init__(self, application: Application, plain) -> None:
        self._application, self._plain = application, plain

    def replace_ray(self, patch: pytest.MonkeyPatch) -> None:
        resources = {"CPU": 4.0}
        everything = SimpleNamespace(get=lambda name: SimpleNamespace(status=ApplicationStatus.RUNNING))
        for name, result in (
            ("is_initialized", True),
            ("get_runtime_context", SimpleNamespace(runtime_env={})),
            ("cluster_resources", resources),
            ("nodes", [{"Alive": True, "NodeID": "n", "Resources": resources}]),
            ("cancel", None),
            ("serve.start", None),
            ("serve.status", SimpleNamespace(applications=everything)),
            ("serve.get_app_handle", self._application),
        ):
            patch.setattr(f"ray.{name}", lambda *_, result=result, **__: result)
        patch.setattr("ray.get", lambda ref: ref)
        patch.setattr("ray.remote", self._remote)

    def _remote(self, kind):
        """The benchmark's one task runs plain vLLM; its one actor knows which application is up."""
        method = SimpleNamespace(remote=lambda *_: "ready")
        actor = SimpleNamespace(beat=method, claim=method, release=method)
        started = (lambda *_: actor) if isinstance(kind, type) else self._plain
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=started))


@pytest.fixture
def bench(config, tmp_path, monkeypatch):
    """Run a benchmark of two cells over an application, on a cluster that has room for it."""
    if find_spec("vllm") is None:
        pytest.skip("vllm is not installed")

    def no_engine(*_):
        raise ModelError("plain vLLM ended with code 1: no memory")

    def run(application: Application, plain=no_engine, overrides=(), **changes):
        FakeCluster(application, plain).replace_ray(monkeypatch)
        grid = {"replicas": (2,), "members": (1, 3), "concurrency": (2,), "questions": 5, "context_tokens": 50}
        return run_bench(config(*overrides), Grid(**grid | changes), str(tmp_path))

    return run


@pytest.fixture
def index_path(tmp_path, tiny_encoder) -> str:
    """An index of the sample."""
    path = str(tmp_path / "index")
    index_here(load_config("demo", [f"index.path={path}", f"index.encoder.model={tiny_encoder}"]))
    return path


def written(path: Path) -> list[tuple[str, str]]:
    return [(row["kind"], row["status"]) for row in json.loads((path / "throughput.json").read_text())["rows"]]


def test_questions_and_those_in_flight_grow_with_the_replicas(bench):
    application = Application({})
    first, second = (cell.measured for cell in bench(application).cells)
    assert (first.n_questions, first.n_calls, second.n_calls) == (10, 10, 30)
    assert (second.prompt_tokens, second.cached_tokens, second.completion_tokens) == (3000, 1500, 30 * 128)
    assert application.most_in_flight == 4
    assert first.cpu_s is None, "replicas that are not seen here are not counted as nothing"


def test_plain_vllm_gets_the_calls_of_one_replica_and_as_many_questions_in_flight(bench):
    jobs = []

    def engine(job, *_):
        jobs.append(job)
        for run in job["runs"]:
            calls = [call for question in run["questions"] for call in question]
            sums = {
                "prompt_tokens": 1,
                "cached_tokens": 0,
                "completion_tokens": sum(call["max_tokens"] for call in calls),
            }
            yield {"n_calls": len(calls), "wall_s": 1.0, "cpu_s": 1.0, **sums}

    application = Application({})
    result = bench(application, plain=engine, replicas=(1,), concurrency=(3,), questions=30)
    [job] = jobs
    assert [run["in_flight"] for run in job["runs"]] == [application.most_in_flight] * 2 == [3, 3]
    for cell, plain, run, name in zip(result.cells, result.plain, job["runs"], ("bench-1", "bench-2"), strict=True):
        ours, theirs = cell.measured, plain.measured
        assert (ours.n_questions, ours.n_calls) == (theirs.n_questions, theirs.n_calls) == (30, 30 * cell.members)
        asked = Counter((call.messages[-1][1], call.seed, call.max_tokens) for call in application.calls[name])
        given = [call for question in run["questions"] for call in question]
        assert Counter((call["messages"][-1]["content"], call["seed"], call["max_tokens"]) for call in given) == asked
        assert {(call["temperature"], call["top_p"]) for call in given} == {
            (call.temperature, call.top_p) for call in application.calls[name]
        }


def test_plain_vllm_gets_an_answer_runs_calls_with_as_many_questions_in_flight(
    bench, monkeypatch, tmp_path, index_path, tiny_encoder
):
    overrides = [f"index.path={index_path}", f"index.encoder.model={tiny_encoder}"]
    small = ["questions.limit=8", "ensemble.members=2", "kohaku.max_retries=0"]
    small += ["cluster.blocks_in_flight=3", "cluster.block_size=2"]
    ran = load_config("demo", [*overrides, *small, f"run={tmp_path}/run", f"ledger.path={tmp_path}/ledger"])
    run_here(ran)
    measured = Measurement(8, 24, 2.0, 100, 50, n_answers=16, n_usable=16)
    monkeypatch.setattr(benching, "answer_on", lambda *_: (ran, measured, ()))  # a run on Ray actors
    jobs = []

    def engine(job, *_):
        jobs.append(job)
        return iter(())

    bench(Application({}), plain=engine, overrides=overrides, replicas=(1,), answer_questions=8)
    run = jobs[0]["runs"][-1]
    assert run["in_flight"] == 6, "three blocks of two questions"
    assert [len(calls) for calls in run["questions"]] == [3] * 8, "a plan, and an answer of each member"
    texts = [{call["messages"][-1]["content"] for call in calls} for calls in run["questions"]]
    assert [len(prompts) for prompts in texts] == [2] * 8, "members share a prompt"
    for question, prompts in zip(questions_of(ran), texts, strict=True):
        assert all(question.text in prompt for prompt in prompts)


def test_a_cell_that_fails_keeps_the_others(bench, tmp_path):
    result = bench(Application({"bench-1": ModelError("the engine broke")}))
    assert [cell.reason for cell in result.cells] == ["ModelError: the engine broke", ""]
    assert [plain.reason for plain in result.plain] == ["plain vLLM ended with code 1: no memory"] * 2
    assert result.n_failed == 3
    assert written(tmp_path)[2:] == [("serve", "failed"), ("serve", "measured")]


def test_an_interrupt_leaves_what_was_measured(bench, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        bench(Application({"bench-2": KeyboardInterrupt()}))
    assert written(tmp_path) == [("serve", "measured")]


def test_answer_runs_that_cannot_be_made_keep_the_cells_and_say_why(bench, tmp_path, index_path):
    overrides = [f"index.path={index_path}", f"questions.path={tmp_path}/none.csv"]
    result = bench(Application({}), overrides=overrides, answer_questions=4)
    assert all(cell.measured for cell in result.cells)
    [reason] = [run.reason for run in result.runs]
    assert reason.startswith(f"DataError: {tmp_path}/none.csv")
    assert written(tmp_path)[2:] == [*[("serve", "measured")] * 2, ("answers", "failed")]


def test_replies_of_another_length_are_no_measurement(bench):
    reason = bench(Application({}, n_tokens=100)).cells[0].reason
    assert "10 calls generated 1000 tokens but were to generate 1280" in reason


@pytest.mark.ray
@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_replicas_stand_beside_plain_vllm_and_the_page_beside_both(cluster, config, sample_here, tmp_path):
    pytest.importorskip("vllm")
    sizes = {"questions": 6, "context_tokens": 300, "output_tokens": 16, "answer_questions": 20}
    grid = Grid(replicas=(1, 64), members=(1, 3), concurrency=(4,), **sizes)
    ours = config(*SHORT_ANSWERS, f"index.path={sample_here}", window_tokens=4096)
    bench = run_bench(ours, grid, str(tmp_path))

    single, three = (cell.measured for cell in bench.cells if cell.replicas == 1)
    plain_one, plain_three = (plain.measured for plain in bench.plain)
    assert None not in (single, three, plain_one, plain_three), [bench.plain, bench.cells]
    for measured, n in ((single, 1), (three, 3), (plain_one, 1), (plain_three, 3)):
        assert (measured.n_questions, measured.n_calls) == (6, 6 * n)
        assert measured.completion_tokens == 6 * n * 16, "every call generates what it was asked"
        assert 300 * 6 * n < measured.prompt_tokens < 350 * 6 * n
        assert measured.wall_s > 0
        assert measured.cpu_s > 0
    assert (single.prompt_tokens, three.prompt_tokens) == (plain_one.prompt_tokens, plain_three.prompt_tokens)
    assert single.rates["cached_share"] == 0, "no question and no cell shares a prefix with another"
    assert 0.75 * 2 / 3 < three.rates["cached_share"] <= 2 / 3, "whole blocks of 300 tokens, of two members in three"
    assert all(
        0 < row["of_plain"] < 5 for row in records(bench) if row["kind"] == "serve" and row["status"] == "measured"
    )

    run, plain_run = bench.runs[0].measured, bench.plain_run.measured
    assert None not in (run, plain_run), [bench.runs, bench.plain_run]
    assert (run.n_questions, run.n_answers) == (20, 60)
    assert run.n_calls == 20 + 60, "a plan per question, an answer per member"
    assert run.n_usable >= 0.75 * 60, "replies end by their grammar"
    assert (plain_run.n_questions, plain_run.n_calls) == (20, 80)
    assert plain_run.prompt_tokens == run.prompt_tokens, "the same prompts, by the same template"
    assert plain_run.completion_tokens == pytest.approx(run.completion_tokens, rel=0.03), "the same seeds and grammars"
    assert plain_run.cached_tokens / plain_run.prompt_tokens > 2 / 3 * 0.75

    skipped = [entry for entry in (*bench.cells, *bench.runs) if entry.replicas == 64]
    assert [(entry.is_skipped, entry.reason) for entry in skipped] == [
        (True, "the cluster has 6 CPUs but they need 128")
    ] * 3
    assert [path.name for path in tmp_path.glob("answers-*")] == [], "ledger and run are temporary"
    assert bench.n_failed == 0
    rows = json.loads((tmp_path / "throughput.json").read_text())["rows"]
    assert [(row["kind"], row["status"]) for row in rows] == [
        *(("plain", "measured"), ("plain", "measured"), ("serve", "measured"), ("serve", "measured")),
        *(("serve", "skipped"), ("serve", "skipped")),
        *(("plain answers", "measured"), ("answers", "measured"), ("answers", "skipped")),
    ]
    assert 0 < rows[-2]["of_plain"] < 5
    assert (tmp_path / "throughput.html").read_text().count("<svg") == 2
