"""Make runs again with settings changed, and compare their answers question by question; without Ray.

    python benchmarks/changed_settings.py SOURCE … --index DIR --set kohaku.check_value=true [--ask URL]

SOURCE is a bundle, a run's directory or a preset. Each run is made as it is (with every `--base`) and once per
`--set`, whose parts are parted by blanks, from the recorded replies. A call that has none fails, or is made: by the
baseline, or with `--ask` by an OpenAI-compatible server, and kept in `--ledger`. Intervals of 95 % and p as in
`kohaku-ray compare`; "won" and "lost" are answers of members whose value becomes right or wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kohaku_ray.answering.bundle import RECORDED, _point_to_bundle
from kohaku_ray.answering.replay import Models, RecordedEncoders, config_of, make_again, models_by_member, open_recorded
from kohaku_ray.config import Config, build_config, load_config
from kohaku_ray.config.load import parse_file
from kohaku_ray.errors import ModelError
from kohaku_ray.evaluation.metrics import Metric, find_metric
from kohaku_ray.evaluation.paired import mcnemar, paired_bootstrap, paired_differences, paired_permutation
from kohaku_ray.evaluation.passages import gold_numbers, numbers_stand_in
from kohaku_ray.evaluation.submissions import Submission, SubmissionRow, read_submission
from kohaku_ray.index.store import Index
from kohaku_ray.models.openai import OpenAIConfig
from kohaku_ray.models.request import PROMPT_CHARS, ChatRequest, request_key
from kohaku_ray.run.collection.sources import resolve
from kohaku_ray.run.exchange.bundle import unpack
from kohaku_ray.run.record.directory import RunDirectory
from kohaku_ray.run.segments import Entry, LedgerReply, SegmentStore
from kohaku_ray.settings import resolve_paths


@dataclass
class Source:
    """A run that can be made again."""

    name: str
    config: Config
    models: Models | None  # None: those of the configuration
    entries: dict[str, Entry]
    recorded: RecordedEncoders
    index: str
    key: str = ""  # of the index in what is recorded


class Calls:
    """A ledger of recorded replies, which asks a model for what it lacks, one call at a time."""

    def __init__(self, entries: dict[str, Entry], server: str | None, ledger: str | None, deadline: float) -> None:
        self.entries, self.server, self.store = dict(entries), server, SegmentStore(ledger) if ledger else None
        if self.store is not None:
            self.entries |= self.store.load(lambda _: True).entries
        self.place, self.deadline, self.made, self.failed = asyncio.Semaphore(1), deadline, list[Entry](), 0
        self.backends: dict[str, Any] = {}
        self.baseline: Any = None

    async def ask(self, request: ChatRequest, application: str, again: bool = False) -> LedgerReply:
        """Return the recorded reply, or make the call."""
        key = request_key(request)
        if key in self.entries:
            return LedgerReply(self.entries[key], "ledger", key)
        if self.baseline is not None and request.model == self.baseline.identity:
            self.entries[key] = Entry(await self.baseline.chat(request), request.model, 0.0)
            return LedgerReply(self.entries[key], "made", key)
        if self.server is None or time.time() > self.deadline:
            self.failed += 1
            raise ModelError("this call has no recorded reply")
        async with self.place:
            name = request.model.removeprefix("openai:").split(" ")[0]
            backend = OpenAIConfig(base_url=self.server, model=name, api_key_env=None, timeout_s=900).make_backend()
            began = time.perf_counter()
            try:
                reply = await backend.chat(request)
            finally:
                await backend.close()
            self.entries[key] = Entry(reply, request.model, time.perf_counter() - began)
            self.made.append(self.entries[key])
            if self.store is not None:
                self.store.write([(key, self.entries[key])])
        return LedgerReply(self.entries[key], "made", key)


def sources_of(path: str, index: str, base: Sequence[str], home: str) -> Iterator[Source]:
    """Read the runs of a bundle, a run's directory or a preset (several with a plus between them)."""
    if path.endswith(".zip"):
        place = tempfile.mkdtemp(dir=home)
        manifest = unpack(path, place)
        entries = SegmentStore(f"{place}/ledger").load(lambda _: True).entries
        recorded = RecordedEncoders.read(f"{place}/{RECORDED}")
        recorded.is_closed = False
        for name, run in manifest.runs.items():
            values = parse_file(Path(place, "runs", name, "config.yaml"))
            config = build_config(_point_to_bundle(values, run, place, index), name)  # type: ignore[arg-type]
            yield Source(name, config, run.models, entries, recorded, index, run.index)
    elif Path(path, "run.json").exists():
        config = config_of(path)
        entries = SegmentStore(config.ledger.path).load(lambda _: True).entries
        yield Source(Path(path).name, config, None, entries, RecordedEncoders(), index)
    else:
        config = resolve_paths(load_config(path.split("+"), [*base, f"index.path={index}"]))
        entries = SegmentStore(config.ledger.path).load(lambda _: True).entries
        yield Source(path, config, None, entries, RecordedEncoders(), index)


def changed(config: Config, sets: Sequence[str]) -> Config:
    """Change settings of the system or the ensemble; those of other sections do not count here."""
    values: dict[str, dict[str, Any]] = {}
    for part in sets:
        key, _, value = part.partition("=")
        section, _, name = key.partition(".")
        values.setdefault(section, {})[name] = plain_value(value)
    settings = type(config.settings).model_validate(config.settings.model_dump() | values.get(config.system, {}))
    ensemble = type(config.ensemble).model_validate(config.ensemble.model_dump() | values.get("ensemble", {}))
    return config.model_copy(update={"settings": settings, "ensemble": ensemble})


def plain_value(text: str) -> Any:
    import yaml

    return yaml.safe_load(text)


@dataclass
class Made:
    """A run made again: scores per question, each member's values, contexts, and what it cost."""

    scores: dict[str, float]
    is_right: dict[str, bool]
    refs: dict[str, float]
    members: dict[tuple[str, int], tuple[str, bool, tuple[str, ...]]]
    held: dict[str, tuple[bool, float]]  # whether some member's context has the gold numbers; share of members
    context_tokens: float
    n_prompts: float  # distinct prompts of the answers per question
    prompt_tokens: int
    n_calls: int
    failed: int


def make(source: Source, config: Config, metric: Metric, truth: Submission, calls: Calls, home: str) -> Made:
    """Make a run again, and judge it."""
    config = config.model_copy(update={"run": tempfile.mkdtemp(dir=home)})
    calls.baseline = config.deployments["extractive"].make_backend()
    models = source.models
    if models is None or len(models) != config.ensemble.members:
        models = (
            models_by_member(config)
            if source.models is None
            else tuple(source.models[member % len(source.models)] for member in range(config.ensemble.members))
        )
    index = open_recorded(config, Index.open(source.index), source.recorded, source.key)
    before = calls.failed
    make_again(config, models, calls, source.recorded, index)
    run = RunDirectory(config.run)
    submission = read_submission(run.file("submission.csv"))
    rows = metric.score(truth, submission)
    answers = run.read_table("answers").to_pylist()
    members = {}
    for row in answers:
        gold = truth.rows.get(row["question_id"])
        if gold is None:
            continue
        named = ("question_id", "answer", "answer_value", "answer_unit", "explanation")
        given = SubmissionRow(
            **{name: row[name] for name in named}, ref_ids=tuple(row["ref_ids"]), refs_raw=str(list(row["ref_ids"]))
        )
        if row["is_blank"]:
            given = SubmissionRow(row["question_id"], answer_value="is_blank", refs_raw="is_blank")
        is_right = metric.score_question(gold, given).is_right
        members[row["question_id"], row["member"]] = (row["answer_value"], is_right, tuple(row["flags"]))
    contexts: dict[str, dict[int, list[str]]] = {}
    for row in run.read_table("trace").to_pylist():
        if row["step"] == "context":
            contexts.setdefault(row["question_id"], {}).setdefault(row["member"], []).append(row["text"] or "")
    held = {}
    for question_id, gold in truth.rows.items():
        if wanted := gold_numbers(gold):
            shown = contexts.get(question_id, {})
            each = [numbers_stand_in(wanted, "\n".join(texts)) for texts in shown.values()] or [False]
            held[question_id] = (any(each), float(np.mean(each)))
    usage = [row for row in run.read_table("usage").to_pylist() if row["role"] == config.declaration.lead]
    prompts = {(row["question_id"], row["key"][:PROMPT_CHARS]) for row in usage}
    n = max(len(submission.rows), 1)
    return Made(
        scores={row.question_id: row.total for row in rows},
        is_right={row.question_id: row.is_right for row in rows},
        refs={row.question_id: list(row.parts.values())[1] for row in rows},
        members=members,
        held=held,
        context_tokens=sum(dict(row["measures"]).get("context_tokens", 0.0) for row in answers) / n,
        n_prompts=len(prompts) / n,
        prompt_tokens=sum(row["prompt_tokens"] or 0 for row in usage),
        n_calls=len(usage),
        failed=calls.failed - before,
    )


def compare(before: Made, after: Made, asked: Sequence[str]) -> str:
    """What changes, how it scores, and whether that is more than chance."""
    keys = [key for key in before.members if key in after.members and key[0] in asked]
    differ = [key for key in keys if before.members[key][0] != after.members[key][0]]
    won = sum(after.members[key][1] and not before.members[key][1] for key in differ)
    lost = sum(before.members[key][1] and not after.members[key][1] for key in differ)
    differences = paired_differences(*([made.scores[key] for key in asked] for made in (after, before)))
    interval, test = paired_bootstrap(differences), paired_permutation(differences)
    votes_won = sum(after.is_right[key] and not before.is_right[key] for key in asked)
    votes_lost = sum(before.is_right[key] and not after.is_right[key] for key in asked)
    ends = "" if interval.low is None else f" ({interval.low:+.3f} … {interval.high:+.3f})"
    return (
        f"{len(differ)} of {len(keys)} answers differ, +{won} −{lost}; score {np.mean(differences):+.4f}{ends}, "
        f"p {test.p:.3f}; values of votes +{votes_won} −{votes_lost}, p {mcnemar(votes_lost, votes_won):.2f}"
    )


def describe(made: Made, asked: Sequence[str]) -> str:
    """How a run scores, what its members were shown, and what it cost."""
    held = np.array([made.held[key] for key in asked if key in made.held] or [(0, 0)], np.float64)
    flags = Counter(flag for _, _, of_answer in made.members.values() for flag in of_answer)
    score, value, refs = (np.mean([float(of[key]) for key in asked]) for of in (made.scores, made.is_right, made.refs))
    return (
        f"score {score:.4f}, value {value:.3f}, references {refs:.3f}; gold values in contexts: of any member "
        f"{held[:, 0].mean():.3f}, of each {held[:, 1].mean():.3f} (n {len(held)}); per question "
        f"{made.context_tokens:,.0f} context tokens, {made.n_prompts:.2f} prompts; {made.prompt_tokens:,} prompt "
        f"tokens in {made.n_calls} calls, {made.failed} without a reply; flags {dict(flags)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sources", nargs="+")
    parser.add_argument("--index", required=True)
    parser.add_argument("--truth", default=None)
    parser.add_argument("--metric", default=None)
    parser.add_argument("--base", default="", help="settings of both, with blanks between them")
    parser.add_argument("--set", dest="sets", action="append", required=True)
    parser.add_argument("--only", default=None, help="one run of a bundle")
    parser.add_argument("--limit", type=int, default=None, help="first questions alone")
    parser.add_argument("--ask", default=None)
    parser.add_argument("--ledger", default=None)
    parser.add_argument("--minutes", type=float, default=60, help="no call is made after so many")
    parser.add_argument("--show", action="store_true", help="name the answers that differ")
    given = parser.parse_args()
    deadline = time.time() + 60 * given.minutes
    with tempfile.TemporaryDirectory() as home:
        for path in given.sources:
            for source in sources_of(path, given.index, given.base.split(), home):
                if given.only in (None, source.name):
                    compare_source(source, given, deadline, home)


def compare_source(source: Source, given: argparse.Namespace, deadline: float, home: str) -> None:
    config = changed(source.config, given.base.split())
    if given.limit:
        questions = config.questions.model_copy(update={"limit": given.limit})
        config = config.model_copy(update={"questions": questions})
    metric = find_metric(given.metric or config.metrics[0])
    truth = read_submission(given.truth or resolve(config.questions.path))
    calls = Calls(source.entries, given.ask, given.ledger, deadline)
    before = make(source, config, metric, truth, calls, home)
    answered = {key for key, _ in before.members}
    asked = [key for key in before.scores if key in answered]
    print(f"{source.name}: {len(asked)} questions × {config.ensemble.members}\n  as it is: {describe(before, asked)}")
    for sets in given.sets:
        after = make(source, changed(config, sets.split()), metric, truth, calls, home)
        print(f"  {sets}: {describe(after, asked)}\n    {compare(before, after, asked)}; {len(calls.made)} calls made")
        for key, (value, is_right, flags) in after.members.items() if given.show else ():
            old, was_right, _ = before.members.get(key, ("", False, ()))
            if old != value:
                marks = f"{old!r} ({was_right}) → {value!r} ({is_right}), {flags}"
                print(f"      {key[0]} member {key[1]}, gold {truth.rows[key[0]].answer_value!r}: {marks}", flush=True)


if __name__ == "__main__":
    main()
