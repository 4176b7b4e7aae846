"""Count what a job did: blocks, answers, errors by their texts, and what its model calls used per deployment."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kohaku_ray.models.request import PROMPT_CHARS
from kohaku_ray.records import CUT, FLAGS
from kohaku_ray.records import pluralize as pluralize
from kohaku_ray.store.tables import SPENT

if TYPE_CHECKING:
    import polars as pl

    from kohaku_ray.models.calls import Call


def describe_sources(calls: Mapping[str, int]) -> str:
    """Say how many model calls were made, and how many replies came from elsewhere (see ``ReplySource``)."""
    said = {"made": "made", "ledger": "from the ledger", "joined": "sharing the reply of an equal call under way"}
    return ", ".join(f"{n:,} {what}" for source, what in said.items() if (n := calls.get(source, 0))) or "none made"


@dataclass(slots=True)
class AnswerSummary:
    """The counts of an answer job, or of one block: all that the driver gets of it.

    Attributes:
        run: Directory of the outputs.
        n_questions: Questions answered so far; at the end, all of them.
        n_member_errors: Member answers that carry an error.
        n_unanswered: Model calls that got no reply; the next start makes them again.
        n_questions_in_error: Questions all of whose members carry an error.
        n_answers: Member answers asked for: fewer than members × questions if votes were settled early.
        context_tokens: Sum over the questions of the tokens of their longest prompt, where the server counts them.
        n_calls: Model calls asked for, by source (see ``store.segments.ReplySource``).
        errors: Number of each error text, of answers and of preparing steps (see ``group_errors``).
        flags: Number of answers with each of ``records.FLAGS``.
        adapted: Number of calls by what their server was asked, or its reply read, otherwise than usual.
        finish_reasons: Number of calls by the finish reasons of their replies.
        served_models: By deployment, the number of replies by the model that they name, where they name one.
        asked_models: By deployment, the model that these were asked of.
        n_elsewhere: By deployment, the number of recorded replies that came from another address than it has now.
        shortened: By deployment, tokens read and tokens sent at least, of the prompt that its server cut most.
        stopped: Why no more calls were made after a while; empty: none was left out.
        paid: Tokens and dollars that this and earlier starts of the run paid.
        spent: Sums over the calls made by this run: tokens, seconds, joules (if all are measured), dollars.
        n_placed: Questions that the question router placed on replicas during this run, by deployment.
        n_moved: How many of them went to another replica because theirs was overloaded.
        wall_s: Whole job, start-up included.
    """

    run: str
    n_questions: int = 0
    n_member_errors: int = 0
    n_unanswered: int = 0
    n_questions_in_error: int = 0
    n_answers: int = 0
    context_tokens: int = 0
    n_calls: dict[str, int] = field(default_factory=lambda: {"ledger": 0, "joined": 0, "made": 0})
    errors: dict[str, int] = field(default_factory=dict)
    flags: dict[str, int] = field(default_factory=dict)
    adapted: dict[str, int] = field(default_factory=dict)
    finish_reasons: dict[str, int] = field(default_factory=dict)
    served_models: dict[str, dict[str, int]] = field(default_factory=dict)
    asked_models: dict[str, str] = field(default_factory=dict)
    n_elsewhere: dict[str, int] = field(default_factory=dict)
    shortened: dict[str, tuple[int, int]] = field(default_factory=dict)
    stopped: str = ""
    paid: dict[str, float] = field(default_factory=dict)
    spent: dict[str, float] = field(default_factory=dict)
    n_placed: dict[str, int] = field(default_factory=dict)
    n_moved: dict[str, int] = field(default_factory=dict)
    wall_s: float = 0.0

    def add(self, block: AnswerSummary) -> None:
        """Count a finished block."""
        self.n_questions += block.n_questions
        self.n_member_errors += block.n_member_errors
        self.n_unanswered += block.n_unanswered
        self.n_questions_in_error += block.n_questions_in_error
        self.n_answers += block.n_answers
        self.context_tokens += block.context_tokens
        for deployment, counts in block.shortened.items():
            self._shorten(deployment, counts)
        self.stopped = self.stopped or block.stopped
        self.asked_models |= block.asked_models
        for deployment, counted in block.served_models.items():
            self.served_models[deployment] = dict(Counter(self.served_models.get(deployment, {})) + Counter(counted))
        for name in ("n_calls", "errors", "flags", "adapted", "finish_reasons", "spent", "n_elsewhere"):
            total = getattr(self, name)
            for key, amount in getattr(block, name).items():
                total[key] = total.get(key, 0) + amount

    def add_paid(self, before: Mapping[str, float]) -> None:
        """Set what the run has ``paid``: what earlier starts paid, by the same names, and what this one spent."""
        used = {"tokens": ("prompt_tokens", "completion_tokens"), "dollars": ("dollars",)}
        self.paid = {
            name: before.get(name, 0) + sum(self.spent.get(part, 0) for part in parts) for name, parts in used.items()
        }

    def shorten(self, calls: Iterable[Call]) -> None:
        """Count the calls whose prompts their servers cut."""
        for call in calls:
            if call.is_shortened:
                self._shorten(call.deployment, (call.prompt_tokens, call.least_tokens))

    def name_servers(self, calls: Iterable[Call], asked: Mapping[str, tuple[str, str]]) -> None:
        """Count the models that replies name, and those of other addresses.

        Args:
            calls: The calls.
            asked: Model and digest of the address of each deployment that has an address.
        """
        for call in calls:
            model, address = asked.get(call.deployment, ("", ""))
            if model and call.served_model:
                self.asked_models[call.deployment] = model
                counts = self.served_models.setdefault(call.deployment, {})
                counts[call.served_model] = counts.get(call.served_model, 0) + 1
            if address and call.server not in ("", address):
                self.n_elsewhere[call.deployment] = self.n_elsewhere.get(call.deployment, 0) + 1

    def _shorten(self, deployment: str, counts: tuple[int, int]) -> None:
        known = self.shortened.get(deployment, (0, 0))
        self.shortened[deployment] = max(known, counts, key=lambda pair: pair[1] - pair[0])


MOST_KINDS = 5
"""Most kinds of errors that are printed."""

_CHARS = 300
_ID = re.compile(r"\b(?=[\w-]*\d)[\w-]{8,}\b")


def group_errors(texts: Iterable[str | None]) -> dict[str, int]:
    """Count error texts that differ only in ids (of requests, say) as one; the most frequent first."""
    counts = Counter(_ID.sub("…", " ".join(text.split()))[:_CHARS] for text in texts if text)
    return dict(counts.most_common())


def describe_errors(errors: Mapping[str, int]) -> list[str]:
    """Format counts of error texts, one line per kind."""
    most = sorted(errors.items(), key=lambda item: -item[1])
    lines = [f"{count} × {text}" for text, count in most[:MOST_KINDS]]
    more = len(most) - MOST_KINDS
    return lines + ([f"and {pluralize(more, 'more kind')} of errors"] if more > 0 else [])


def describe_flags(flags: Mapping[str, int], n_answers: int) -> list[str]:
    """Format how many answers' replies had something wrong, one line per flag."""
    return [f"{flags[flag]:,} of {n_answers:,} answers {text}" for flag, text in FLAGS.items() if flags.get(flag)]


SERVER_FACTS = ("adapted", "shortened", "finish_reasons", "served_models", "asked_models", "n_elsewhere")
"""Counts of an `AnswerSummary` that `describe_servers` takes, in its order."""

_MOST_MODELS = 3
_SNAPSHOT = re.compile(r"(?:[-:@](?:latest|\d{3,}[\d-]*))?(?:\.gguf)?$")


def is_model_asked(asked: str, named: str) -> bool:
    """Whether a reply names the model that was asked: also a dated one of its name, or without its folder or owner."""
    asked, named = (_SNAPSHOT.sub("", name.casefold().rstrip("/").rpartition("/")[2]) for name in (asked, named))
    return asked == named


def describe_models(served: Mapping[str, Mapping[str, int]], asked: Mapping[str, str]) -> list[str]:
    """Say which deployments' replies name another model than was asked, or several; a line each."""
    lines = []
    for deployment, counts in served.items():
        model = asked.get(deployment, "")
        if len(counts) == 1 and is_model_asked(model, next(iter(counts))):
            continue
        most = sorted(counts, key=lambda name: -counts[name])
        named = ", ".join(f"{name} ({counts[name]:,} times)" for name in most[:_MOST_MODELS])
        more = f" and {len(most) - _MOST_MODELS} more" if len(most) > _MOST_MODELS else ""
        lines.append(
            f"deployments.{deployment}.model is {model}, and its replies name {named}{more}: another model may have "
            "answered; name that one, or have the server answer with what is asked"
        )
    return lines


def describe_servers(
    adapted: Mapping[str, int],
    shortened: Mapping[str, Sequence[int]],
    finish_reasons: Mapping[str, int] | None = None,
    served_models: Mapping[str, Mapping[str, int]] | None = None,
    asked_models: Mapping[str, str] | None = None,
    n_elsewhere: Mapping[str, int] | None = None,
) -> list[str]:
    """Format what servers were asked or read otherwise, which cut prompts, and how many replies were cut."""
    lines = [f"deployments.{note} ({pluralize(n, 'call')})" for note, n in adapted.items()]
    if finish_reasons and (n_cut := finish_reasons.get(CUT, 0)):
        lines.append(f"{n_cut:,} of {sum(finish_reasons.values()):,} replies were cut at max_tokens")
    lines += describe_models(served_models or {}, asked_models or {})
    lines += [
        f"deployments.{name}: {n:,} of its replies came from another address than its base_url, under one "
        f"identity: if the servers differ, set deployments.{name}.identity to ask this one"
        for name, n in (n_elsewhere or {}).items()
    ]
    return lines + [
        f"deployments.{name}: its server read {read:,} tokens of a prompt of at least {sent:,}: give it a longer "
        f"context (Ollama: OLLAMA_CONTEXT_LENGTH, llama.cpp: -c), or lower deployments.{name}.window_tokens to its own"
        for name, (read, sent) in shortened.items()
    ]


@dataclass(frozen=True, slots=True)
class Spent:
    """What the calls of one deployment used, whichever run made them.

    Attributes:
        n_calls: Replies used; one reply used twice counts twice.
        cached_share: Share of prompt tokens from the prefix cache; None without prompts.
        cached_bound: The share if the first of a question's k different calls with one prompt filled the cache for the
            others, (k - 1) / k of each; what other prompts share with it comes on top. None without prompts.
        queue_s: Seconds spent waiting for a replica.
        service_s: Seconds in replicas.
        joules: Energy; None if not measured.
    """

    deployment: str
    n_calls: int
    prompt_tokens: int
    cached_share: float | None
    cached_bound: float | None
    completion_tokens: int
    queue_s: float
    service_s: float
    gpu_s: float
    joules: float | None
    dollars: float


def with_prompts(usage: pl.DataFrame) -> pl.DataFrame:
    """Add the column ``prompt``, equal where calls have one prompt, from the column ``key``."""
    import polars as pl

    return usage.with_columns(prompt=pl.col("key").str.head(PROMPT_CHARS))


def spent(usage: pl.DataFrame) -> list[Spent]:
    """Sum usage.parquet's rows, perhaps ``with_prompts``, by deployment; calls that share one reply each count it."""
    import polars as pl

    if usage.is_empty():
        return []
    total = {name: pl.col(name).sum() for name in SPENT}
    usage = usage if "prompt" in usage.columns else with_prompts(usage)
    alike = pl.col("key").n_unique().over("deployment", "question_id", "prompt")
    prompts = pl.when(total["prompt_tokens"] > 0)
    sums = {
        **total,
        "n_calls": pl.len(),
        "cached_share": prompts.then(total["cached_tokens"] / total["prompt_tokens"]),
        "cached_bound": prompts.then(pl.col("shareable").sum() / total["prompt_tokens"]),
        "joules": pl.when(pl.col("joules").null_count() == 0).then(total["joules"]),
    }
    table = usage.with_columns(shareable=pl.col("prompt_tokens") * (1 - 1 / alike))
    by_deployment = table.group_by("deployment").agg(**sums).sort("deployment").drop("cached_tokens")
    return [Spent(**row) for row in by_deployment.iter_rows(named=True)]
