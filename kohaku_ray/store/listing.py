"""List the runs below a directory, from the files that they and their sweeps leave: nothing else is opened."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from kohaku_ray.errors import DataError
from kohaku_ray.store.directory import SCORES, is_whole

SWEEP_RUNS = "runs.json"
"""File of a sweep's directory: label and score of each of its runs, by the run's directory."""

DEFAULT = "default"
"""Stands for the value of a setting that a run does not set otherwise."""

_NOT_ENTERED = frozenset({"race", "asked", "index", "ledger", "indexes"})
"""Directories of a sweep or a run that hold shards, single questions or tables, no runs of their own."""


@dataclass(frozen=True, slots=True)
class ListedRun:
    """A run as its files say; None is not known.

    Attributes:
        path: Its directory, relative to the one that was listed.
        state: ``finished``, ``with errors``, ``stopped``, ``unfinished`` or ``damaged``.
        date: When its ``run.json`` was written, in the local time of this machine.
        label: Its cell's labels, in a sweep.
        metric: Name of the metric of the score, and the score's 95 % interval.
        settings: What its configuration sets otherwise than the defaults, by key; empty for runs of older versions.
    """

    path: str
    state: str
    date: datetime
    system: str = ""
    models: str = ""
    label: str = ""
    n_questions: int | None = None
    metric: str = ""
    score: float | None = None
    low: float | None = None
    high: float | None = None
    dollars: float | None = None
    tokens: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def page(self) -> str:
        """Path of its page, relative as ``path``."""
        return os.path.join(self.path, "report.html")


@dataclass(frozen=True, slots=True)
class RunList:
    """The runs below a directory, the latest first, and the files that are none though they are called ``run.json``."""

    directory: str
    runs: tuple[ListedRun, ...]
    unread: tuple[str, ...] = ()

    def differing(self) -> dict[str, dict[str, str]]:
        """Find the settings that are not the same in all runs, by path and key: those of the most values first.

        A deployment that only some runs have is named by their models; its keys differ where runs that have it differ.
        """
        known = [run for run in self.runs if run.settings]
        kept = list_differing([run.settings for run in known])
        return {run.path: {key: run.settings[key] for key in kept if key in run.settings} for run in known}


def list_differing(settings: Sequence[Mapping[str, str]]) -> list[str]:
    """List the keys that have not the same value in all runs, those of the most values first."""
    keys = {key for of_run in settings for key in of_run}
    n_values = {key: len({of_run.get(key, DEFAULT) for of_run in _having(key, settings)}) for key in keys}
    return sorted((key for key in keys if n_values[key] > 1), key=lambda key: (-n_values[key], key))


def _having(key: str, settings: Sequence[Mapping[str, str]]) -> list[Mapping[str, str]]:
    """Select the runs of which a key can tell something: of a deployment's, those that set any key of it."""
    section, _, rest = key.partition(".")
    if section != "deployments":
        return [*settings]
    start = f"{section}.{rest.partition('.')[0]}."
    return [of_run for of_run in settings if any(each.startswith(start) for each in of_run)]


def find_label(run: str) -> str:
    """Find the labels that a sweep beside a run gives it: ``rerank=max, top_k=4``; empty where none does."""
    path = os.path.realpath(run)
    for file in sorted(glob.glob(os.path.join(glob.escape(os.path.dirname(os.path.dirname(path))), "*", SWEEP_RUNS))):
        if label := str(_runs_of_sweep(file).get(path, {}).get("label", "")):
            return label
    return ""


def list_runs(directory: str) -> RunList:
    """Find every run below a directory; links are not followed, and no run is looked for within another.

    Raises:
        DataError: There is no such directory.
    """
    if not os.path.isdir(directory):
        raise DataError(f"{directory}: no such directory: name the one that your runs lie in, such as runs")
    of_sweeps: dict[str, Mapping[str, Any]] = {}
    found, unread = list[str](), list[str]()
    for path, folders, files in os.walk(directory):
        folders[:] = sorted(name for name in folders if name not in _NOT_ENTERED and not name.startswith("."))
        if "run.json" in files:
            found.append(path)
            folders.clear()
        elif SWEEP_RUNS in files:
            of_sweeps |= _runs_of_sweep(os.path.join(path, SWEEP_RUNS))
    runs = []
    for path in found:
        try:
            runs.append(_read(path, directory, of_sweeps.get(os.path.realpath(path), {})))
        except (OSError, ValueError, AttributeError, TypeError, LookupError):
            unread.append(os.path.relpath(os.path.join(path, "run.json"), directory))
    return RunList(directory, tuple(sorted(runs, key=lambda run: run.date, reverse=True)), tuple(unread))


def _runs_of_sweep(file: str) -> dict[str, Mapping[str, Any]]:
    """Read the labels and scores that a sweep wrote; none of a file that is not its."""
    try:
        with open(file, encoding="utf-8") as text:
            listed = json.load(text)
        home = os.path.dirname(file)
        return {os.path.realpath(os.path.join(home, path)): dict(facts) for path, facts in listed["runs"].items()}
    except (OSError, ValueError, AttributeError, TypeError, LookupError):
        return {}


def _read(path: str, directory: str, of_sweep: Mapping[str, Any]) -> ListedRun:
    file = os.path.join(path, "run.json")
    with open(file, encoding="utf-8") as text:
        facts = json.load(text)
    status, models = str(facts["status"]), facts.get("models") or {}
    shown = {role: ", ".join(map(str, names)) for role, names in models.items()}
    scored = of_sweep or next(iter(_scores(path)), {})
    spent = facts.get("spent") or {}
    counts = [count for name in ("prompt_tokens", "completion_tokens") if (count := spent.get(name)) is not None]
    return ListedRun(
        path=os.path.relpath(path, directory),
        state=_state(facts, status),
        date=datetime.fromtimestamp(os.path.getmtime(file), UTC).astimezone(),
        system=str(facts.get("system", "")),
        models="; ".join(dict.fromkeys(shown.values())),
        label=str(of_sweep.get("label", "")),
        n_questions=None if status == "running" else int(facts["n_questions"]),
        metric=str(scored.get("metric", "")),
        score=_number(scored.get("score")),
        low=_number(scored.get("low")),
        high=_number(scored.get("high")),
        dollars=_number(spent.get("dollars")),
        tokens=sum(map(int, counts)) if len(counts) == 2 else None,
        settings={str(key): str(value) for key, value in (facts.get("settings") or {}).items()},
    )


def _state(facts: Mapping[str, Any], status: str) -> str:
    if status == "running":
        return "unfinished"
    if not is_whole(facts):
        return "damaged"
    if facts.get("stopped"):
        return "stopped"
    return "with errors" if facts.get("n_member_errors") else status


def _scores(path: str) -> Iterator[Mapping[str, Any]]:
    """Read the scores that the run's last scoring left beside it, the headline first."""
    try:
        with open(os.path.join(path, SCORES), encoding="utf-8") as text:
            yield from (dict(record) for record in json.load(text)["scores"])
    except (OSError, ValueError, AttributeError, TypeError, LookupError):
        return


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
