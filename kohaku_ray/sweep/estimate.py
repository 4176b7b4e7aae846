"""Tell before a sweep starts what it will do: what it holds fixed, and an estimate of its model calls."""

from __future__ import annotations

import functools
import math
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from kohaku_ray.collection.sources import questions_of
from kohaku_ray.config import Config, build_config
from kohaku_ray.config.deployments import Deployment
from kohaku_ray.config.roles import models_of
from kohaku_ray.errors import ConfigError
from kohaku_ray.evaluation.metrics import find_metric
from kohaku_ray.index.nodes import PARAGRAPH, SENTENCE
from kohaku_ray.index.store import Index
from kohaku_ray.models.calls import chat_request
from kohaku_ray.models.openai import OpenAIConfig
from kohaku_ray.models.request import request_key
from kohaku_ray.models.target import Target
from kohaku_ray.records import Question, digest, pluralize
from kohaku_ray.runs.identity import model_parts
from kohaku_ray.runs.seeds import seed_of
from kohaku_ray.runs.tracking import settings_of
from kohaku_ray.settings import Settings, read_meanings
from kohaku_ray.sweep.compare import FixedSetting, explain_no_groups, write_fixed
from kohaku_ray.sweep.load import KEYS_WITHOUT_EFFECT_ON_OUTPUTS, MEMBERS, VOTE, PoolConfig
from kohaku_ray.sweep.paper import paper_lines
from kohaku_ray.sweep.plan import PlannedTable, SweepPlan, index_exists, truth_of_sweep
from kohaku_ray.sweep.study import files_of, strata_of

_SILENT = (
    *KEYS_WITHOUT_EFFECT_ON_OUTPUTS,
    "shared",
    *("seed", "documents", "questions", "deployments", "model", "index.prefer", "roles.caption.model"),
)
_ANSWERS, _CAPTIONS, _TEMPERATURE = "answered by", "images described by", "temperature"
_VOTE = ("ensemble.vote.strategy", "ensemble.vote.ignore_blank", "ensemble.vote.tiebreak")
_SHOWN = (_ANSWERS, _TEMPERATURE, _CAPTIONS, "index.encoder.model", "index.encoder.dim", MEMBERS, *_VOTE)


LINE_CHARS = 120
"""Longest line of what tables hold fixed, which are dozens of settings."""

_AS_YAML = {"None": "none", "True": "true", "False": "false"}  # as files and axes write them


def fixed_lines(plan: SweepPlan) -> list[str]:
    """Write what each table with a cell that can be run holds fixed, a line each; of several, what most hold once."""
    tables = fixed_settings(plan)
    if len(tables) < 2:
        return [f"{name}: {write_fixed(fixed)}" for name, fixed in tables.items()]
    keys = [setting.key for fixed in tables.values() for setting in fixed]  # one table's change is another's default
    tables = {planned.table.name: _fixed(plan, planned, keys) for planned in plan.tables if planned.configs}
    counts = Counter(setting for fixed in tables.values() for setting in fixed)
    usual = [setting for setting, n in counts.items() if n > len(tables) / 2]
    own = {name: [setting for setting in fixed if setting not in usual] for name, fixed in tables.items()}
    lines = [f"{name}: {write_fixed(fixed, '')}" for name, fixed in own.items() if fixed]
    return [f"all tables, but for axes{' and the lines below' if lines else ''}: {write_fixed(usual)}", *lines]


def fixed_settings(plan: SweepPlan) -> dict[str, tuple[FixedSetting, ...]]:
    """List what each table with a cell that can be run holds fixed, by the table's name.

    Shown are generator, encoder, ensemble size and vote rule, the keys of the sweep's own base and of its ``set``, and
    whatever else is not as by default. A study of files has no generator, encoder or retrieval, but these files.
    """
    return {planned.table.name: _fixed(plan, planned) for planned in plan.tables if planned.configs}


def _fixed(plan: SweepPlan, planned: PlannedTable, named: Sequence[str] = ()) -> tuple[FixedSetting, ...]:
    configs, pool = list(planned.configs.values()), planned.table.pool
    usual: dict[str, str] = {}  # the system's defaults, of one member if it refuses more
    for ensemble in ({}, {"members": 1}):
        with suppress(ConfigError):
            usual = settings_of(build_config({"system": configs[0].system, "ensemble": ensemble}, where="the defaults"))
            break
    settings = [settings_of(config) | _played(config) for config in configs]
    changed = [key for key, value in settings[0].items() if value != usual.get(key, "None")]
    keys = dict.fromkeys([*_SHOWN, *plan.loaded.given_keys, *planned.table.set, *changed, *named])
    shown = [key for key in keys if not any(f"{key}.".startswith(f"{prefix}.") for prefix in _SILENT)]
    if pool is not None and pool.members is None:
        shown = [key for key in shown if key.startswith(VOTE)]
    values_of = {key: {config[key] for config in settings if key in config} for key in shown}
    fixed = [
        FixedSetting(key, _AS_YAML.get(value := values.pop(), value), _meaning(configs[0], key))
        for key, values in values_of.items()
        if len(values) == 1 and not (key in _SHOWN and values == {"None"})
    ]
    repeated = [FixedSetting(text) for text in _repeated(plan, pool)]
    return tuple([*repeated, *fixed] if pool is not None and pool.members is None else [*fixed, *repeated])


def _meaning(config: Config, key: str) -> str:
    """Say what a setting is: the first sentence below its key; empty for what is none."""
    section: object = config
    *names, last = key.split(".")
    for name in names:
        section = config.settings if name == config.system else getattr(section, name, None)
    meaning = read_meanings(type(section)).get(last, "") if isinstance(section, Settings) else ""
    return re.split(r"[.:;](?:\s|$)", meaning, maxsplit=1)[0]


def _repeated(plan: SweepPlan, pool: PoolConfig | None) -> list[str]:
    """Say over what a table's cells are repeated: seeds, or recorded members."""
    if pool is None:
        return [pluralize(len(plan.loaded.sweep.seeds), "seed")]
    if pool.members is not None:
        return [f"{pluralize(pool.members, 'recorded member')} of one run"]
    if pool.table is not None:
        return [f"votes over what the cells of {pool.table} submit, seed {plan.loaded.sweep.seeds[0]}"]
    names = [Path(file).stem for file in files_of(pool)]
    strata = Counter(strata_of(pool, names) or ())
    of_each = f" ({', '.join(f'{stratum} {n}' for stratum, n in strata.items())})" if strata else ""
    return [f"votes over {pluralize(len(names), 'recorded run')}{of_each}, {', '.join(pool.files)}"]


def _played(config: Config) -> dict[str, str]:
    models = {_model(*item): None for item in config.answering_models.items()}
    describing = ", ".join(_model(*item) for item in config.caption_deployments.items())
    return {
        _ANSWERS: ", ".join(models),
        _TEMPERATURE: str(config.role(config.declaration.lead).temperature),
        **({_CAPTIONS: describing} if describing else {}),
    }


def _model(name: str, deployment: Deployment) -> str:
    model = getattr(deployment, "model", None)
    return f"{name} ({model})" if model else name


RecordedKeys = Callable[[str], AbstractSet[str]]
"""Reads the keys of the ledger at a path."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A sweep's model calls, as far as they are known before retrieval."""

    n_opening: int  # distinct calls that systems make before any search
    n_opening_recorded: int  # how many of them the ledger holds
    n_opening_most: int  # distinct calls if every retry is used: where a run replans, each makes them again
    n_answers: int  # distinct answer calls if no answer is blank
    n_answers_most: int  # the same if every retry is used
    n_asked: int  # opening and answer calls of all runs if no answer is blank
    n_recorded: int  # replies in the ledger, of any run
    prompt_tokens: int  # context of the distinct answer calls if no answer is blank: their number times the budget
    dollars: float  # of first answer calls with such prompts and replies of max_tokens, by single calls; 0: no prices
    dollars_by_batch: float  # the same, of deployments that have batches by these
    is_bound: (
        bool  # else without a budget: the matches times the mean text that one of an index of these documents brings
    )

    @property
    def context_tokens(self) -> str:
        """The tokens of context, as a bound or as a mean."""
        if self.is_bound:
            return f"at most {self.prompt_tokens:,}"
        return f"about {self.prompt_tokens:,} (matches, each with the mean text that one brings)"

    @property
    def share_distinct(self) -> float:
        """Distinct calls per call asked."""
        return (self.n_opening + self.n_answers) / self.n_asked if self.n_asked else 1.0


def estimate(plan: SweepPlan, recorded: RecordedKeys) -> Estimate:
    """Count a sweep's model calls without making one; ``recorded`` reads the keys of a ledger.

    Opening calls are counted by their keys. The prompts of answers depend on their replies, so answers are counted by
    the settings that decide their prompts: runs with equal settings ask the same. First attempts and retries are
    counted apart, as more settings decide the latter.

    Raises:
        DataError: Questions or ledger cannot be read.
    """
    opening: dict[str, set[str]] = {}
    opening_again: dict[str, set[str]] = {}
    first: dict[str, tuple[int, int]] = {}
    costs: dict[str, tuple[float, float]] = {}
    further: dict[str, int] = {}
    n_asked, is_bound = 0, True
    built_of = {repr(config.documents): path for path, config in plan.indexes.items() if index_exists(path)}
    for config in plan.runs.values():
        questions, uses = questions_of(config), config.uses
        keys = _opening_keys(config, questions)
        opening.setdefault(config.ledger.path, set()).update(keys)
        for attempt in range(1, uses.attempts if uses.opens_again else 1):
            again = _opening_keys(config, questions, attempt)
            opening_again.setdefault(config.ledger.path, set()).update(again)
        n_asked += len(keys) + len(questions) * config.ensemble.members
        models = [config.role(config.declaration.lead, member).model for member in range(config.ensemble.members)]
        for name in dict.fromkeys(models):
            n, shown = len(questions) * models.count(name), _what_is_shown(config, name, uses.retry_settings)
            window = config.models[name].window  # type: ignore[union-attr]
            n_first, tokens = first.get(shown, (0, 0))
            longest = uses.context_tokens or window
            build = built_of.get(repr(config.documents))
            if build and uses.context_matches and not uses.context_tokens:
                is_bound = False
                longest = min(longest, math.ceil(uses.context_matches * _mean_parent_tokens(build)))
            first[shown] = (max(n_first, n), max(tokens, n * longest))
            most_tokens = config.role(config.declaration.lead).max_tokens
            price = config.models[name].price
            priced = [
                n * (longest * each.prompt + most_tokens * each.completion) / 1e6 for each in (price, price.by_batch)
            ]
            takes_batches = isinstance(config.models[name], OpenAIConfig)
            costs[shown] = max(costs.get(shown, (0.0, 0.0)), (priced[0], priced[takes_batches]))
            retried = _what_is_shown(config, name, {*uses.retry_settings} - {*uses.further_settings})
            further[retried] = max(further.get(retried, 0), n * (uses.attempts - 1))
    known = {path: recorded(path) for path in opening}
    n_answers = sum(n for n, _ in first.values())
    return Estimate(
        n_opening=sum(map(len, opening.values())),
        n_opening_recorded=sum(len(keys & known[path]) for path, keys in opening.items()),
        n_opening_most=sum(len(keys | opening_again.get(path, set())) for path, keys in opening.items()),
        n_answers=n_answers,
        n_answers_most=n_answers + sum(further.values()),
        n_asked=n_asked,
        n_recorded=sum(map(len, known.values())),
        prompt_tokens=sum(tokens for _, tokens in first.values()),
        dollars=sum(single for single, _ in costs.values()),
        dollars_by_batch=sum(by_batch for _, by_batch in costs.values()),
        is_bound=is_bound,
    )


@functools.cache
def _mean_parent_tokens(index: str) -> float:
    """Return the mean tokens of what a match shows: a sentence its paragraph, a paragraph its section."""
    nodes = Index.open(index).nodes
    is_match = np.isin(nodes.kind, [SENTENCE, PARAGRAPH])
    return float(nodes.tokens[nodes.parent[is_match]].mean()) if is_match.any() else 0.0


def _opening_keys(config: Config, questions: Sequence[Question], attempt: int = 0) -> list[str]:
    """Return the keys of a run's opening calls, per question and member that prepares: in a retry, every member."""
    system = config.declaration
    if system.opening is None:
        return []
    prompts = system.prompts(config.prompts)
    models = models_of(config, dict.fromkeys(config.deployments, Target("")), 0)
    preparing = range(config.ensemble.members if attempt or config.ensemble.scope == "question" else 1)
    keys = []
    for question in questions:
        for ask in system.opening(question, prompts, config.settings):
            for member in preparing:
                seed = seed_of(config, question.question_id, member, attempt, ask.role)
                keys.append(request_key(chat_request(models[ask.role], ask.prompt, seed, ask.schema)))
    return keys


def _what_is_shown(config: Config, name: str, without: AbstractSet[str] | Sequence[str]) -> str:
    """Return a key of what decides a deployment's answer prompts: question, attempt and some settings aside."""
    roles = {role: config.role(role) for role in config.uses.roles}
    return digest(
        {
            "index": config.index.path,
            "questions": config.questions.model_dump(mode="json"),
            "system": config.declaration.name,
            "settings": config.settings.model_dump(mode="json", exclude=set(without)),
            "roles": {
                role: {**asdict(played), "model": model_parts(config.models[played.model])}
                for role, played in roles.items()
            },
            "prompts": config.prompts,
            "model": model_parts(config.models[name]),
            "scope": config.ensemble.scope,
            "seed": config.seed,
            "ledger": config.ledger.path,
        }
    )


def describe_plan(plan: SweepPlan, recorded: RecordedKeys) -> str:
    """Describe what a sweep will do, for ``--dry-run``; arguments as in ``estimate``.

    Raises:
        DataError: Questions or ledger cannot be read.
    """
    lines = [plan.loaded.sweep.title or ""]
    for planned in plan.tables:
        table = planned.table
        axes = " × ".join(f"{name} ({', '.join(labels)})" for name, labels in table.labels().items())
        n_left_out = sum(bool(cell.reason) for cell in planned.cells)
        skipped = f", {n_left_out} skipped" if n_left_out else ""
        repeats = f"{table.subsamples} subsamples, no new calls"
        if table.pool is None:
            repeats = pluralize(len(plan.loaded.sweep.seeds), "seed")
        lines.append(f"{table.name:<20}{pluralize(len(planned.cells), 'cell'):>11}, {repeats}{skipped}: {axes}")
    cells = [cell for table in plan.tables for cell in table.cells]
    n_finished, costs = len(plan.finished), estimate(plan, recorded)
    n_built = sum(map(index_exists, plan.indexes))
    again = f"; up to {costs.n_opening_most:,} plans with every retry" if costs.n_opening_most > costs.n_opening else ""
    lines += [
        "",
        f"cells     {len(cells)}, {sum(bool(cell.reason) for cell in cells)} skipped; "
        f"{pluralize(len(plan.runs), 'distinct run')}, {n_finished} finished",
        f"indexes   {len(plan.indexes)}: {n_built} built, {len(plan.indexes) - n_built} to build",
        f"planning  {pluralize(costs.n_opening, 'distinct call')} before any search, "
        f"{costs.n_opening_recorded:,} in the ledger{again}",
        f"answers   {pluralize(costs.n_answers, 'distinct call')}, up to {costs.n_answers_most:,} with every retry",
        f"calls     {costs.n_asked:,} by all runs before retries, {costs.share_distinct:.0%} of them distinct",
        f"ledger    {costs.n_recorded:,} recorded replies; how many answers are among them shows when planning is done",
        f"tokens    {costs.context_tokens} of context in the distinct answer calls before retries",
    ]
    if costs.dollars:
        bound = "at most" if costs.is_bound else "about"
        lines.append(
            f"price     {bound} ${costs.dollars:,.2f} for these by single calls, ${costs.dollars_by_batch:,.2f} with "
            "deployments.*.batch, each reply as long as max_tokens"
        )
    if by := plan.loaded.sweep.by:
        asked = {repr(config.questions): config for config in plan.configs}.values()
        headers = [truth_of_sweep(config, find_metric(config.metrics[0])).header for config in asked]
        if not any(by in header for header in headers):
            lines.append(f"groups    {explain_no_groups(by, headers[0])}")
    fill = textwrap.TextWrapper(LINE_CHARS, subsequent_indent=" " * 10, break_on_hyphens=False).fill
    lines += ["", *(fill(f"fixed     {line}") for line in fixed_lines(plan))]
    lines += [f"paper     {line}" for line in paper_lines(plan)]
    if missing := missing_lines(plan):
        lines += ["", *missing]
    return "\n".join(lines).lstrip()


def missing_lines(plan: SweepPlan) -> list[str]:
    """Name the preferred presets that are left out and the cells that are skipped, each reason once."""
    reasons: dict[str, list[str]] = {}
    for table in plan.tables:
        for cell in table.cells:
            if cell.reason:
                reasons.setdefault(cell.reason, []).append(f"{table.table.name} ({', '.join(cell.labels.values())})")
    return [*plan.notes, *(f"skipped   {', '.join(where)}: {reason}" for reason, where in reasons.items())]
