"""Identify a run by everything that decides its outputs, and tell whether a run is finished already.

``answer`` does a finished run again if its identity has changed, and a sweep names its runs by the same settings and
digests: equal ones are made once.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Hashable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from kohaku_ray.collection.indexes import difference, open_index
from kohaku_ray.collection.sources import read_source
from kohaku_ray.config import Config, as_yaml
from kohaku_ray.config.deployments import Deployment
from kohaku_ray.config.plain import leaves, shown
from kohaku_ray.errors import ConfigError, DataError
from kohaku_ray.index.store import Index
from kohaku_ray.models.openai import OpenAIConfig
from kohaku_ray.models.summary import AnswerSummary
from kohaku_ray.records import digest, digest_text, pluralize
from kohaku_ray.runs.facts import changed_settings
from kohaku_ray.settings import resolve_paths, shown_path
from kohaku_ray.store.storage import is_file, join_path, read_file
from kohaku_ray.store.tables import SCHEMAS
from kohaku_ray.systems.base import System
from kohaku_ray.version import __version__, code_version

CachedCall = Callable[[Hashable, Callable[[], str]], str]
"""Computes a digest, or takes it from an earlier call with the same key."""


def output_determinants(
    config: Config, index: str, cached: CachedCall = lambda _, compute: compute()
) -> dict[str, Any]:
    """Collect everything that decides a run's outputs, except its seed: no paths, no devices.

    Args:
        config: The run, its paths resolved.
        index: Names what the index holds.
        cached: Shares the digests of files, templates and code among many runs.
    """
    uses, system = config.uses, config.declaration
    questions, metadata, prompts = config.questions.path, config.documents.metadata, config.prompts
    members = [
        {role: asdict(config.role(role, member)) for role in uses.roles} for member in range(config.ensemble.members)
    ]
    names = list(dict.fromkeys(played["model"] for member in members for played in member.values()))
    for member in members:
        for played in member.values():
            played["model"] = names.index(played["model"])
    return {
        "version": __version__,
        "index": index,
        "questions": cached(("file", questions), lambda: file_digest(questions)),
        "metadata": cached(("file", metadata), lambda: file_digest(metadata)),
        "prompts": cached(("prompts", system.name, repr(prompts)), lambda: system.prompts(prompts).digest),
        "code": cached(("code", system.name), lambda: _code(system)),
        "system": system.name,
        "limit": config.questions.limit,
        "settings": config.settings.model_dump(mode="json", exclude={"cross_encoder"}),
        "ensemble": config.ensemble.model_dump(mode="json", exclude={"models"}),
        "models": [model_parts(config.models[name]) for name in names],
        "members": members,
        "cross_encoder": uses.cross_encoder and config.deployments[uses.cross_encoder].model_identity,
    }


def run_identity(decides: Mapping[str, Any], seed: int) -> str:
    """Digest what decides a run's outputs, its seed included."""
    return digest({**decides, "seed": seed})


def identity_of(config: Config, index: Index) -> str:
    """Digest everything that decides the outputs of a run on an index that is there; see ``output_determinants``."""
    return run_identity(output_determinants(config, index.content), config.seed)


def model_parts(deployment: Deployment) -> list[Any]:
    """Return everything that decides a deployment's prompts and replies."""
    # The tokenizer decides what fits a prompt; a vLLM model's own belongs to its identity.
    counts = [deployment.tokenizer, deployment.revision] if isinstance(deployment, OpenAIConfig) else []
    return [deployment.model_identity, deployment.window, *counts]  # type: ignore[union-attr]


def file_digest(path: str | None) -> str:
    """Digest the content of a source; empty for None."""
    return "" if path is None else digest_text(read_source(path)[1])


def is_finished(run: str) -> bool:
    """Return whether a run is complete: all files, and a reply to every call (recorded errors count as replies)."""
    try:
        facts = _facts(run)
    except (OSError, ValueError):
        return False
    files = ("config.yaml", "submission.csv", *(f"{name}.parquet" for name in SCHEMAS))
    whole = all(is_file(join_path(run, name)) for name in files)
    return whole and facts.get("status") == "finished" and not facts.get("n_unanswered")


def finished_before(config: Config) -> AnswerSummary | None:
    """Return the counts of this run if it is finished, with this identity, wherever its files lie; else None.

    None too where other metrics are on its page, or its documents have changed since they were indexed, which the job
    warns of.
    """
    config = resolve_paths(config)
    if not is_finished(config.run):
        return None
    facts, index = _facts(config.run), open_index(config)
    if facts.get("identity") != identity_of(config, index) or difference(index, config):
        return None
    return summary_of(config.run) if facts.get("metrics") == [*config.metrics] else None


def check_replaces(config: Config) -> None:
    """Refuse to replace the finished outputs of another configuration; the error names the keys that differ.

    Where none of them was set, and another version made the run, it says so.
    """
    config = resolve_paths(config)
    written = join_path(config.run, "config.yaml")
    if not is_finished(config.run) or (finished := read_file(written).decode()) == (asked := as_yaml(config)):
        return
    facts = _facts(config.run)
    if facts.get("identity") == identity_of(config, open_index(config)):
        return  # the outputs are the same
    before, after = (
        {".".join(key_path): value for key_path, value in leaves(yaml.safe_load(text))} for text in (finished, asked)
    )
    keys = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    here = changed_settings(config)
    there = facts.get("settings", {key: here[key] for key in here if key not in keys})  # older runs have none
    chosen = [key for key in keys if there.get(key) != here.get(key)]
    version = facts.get("versions", {}).get("kohaku_ray", "unknown")
    what = "the finished run of another configuration"
    if not chosen and version != code_version():
        what = f"a finished run of version {version}, whose defaults differ from those of {code_version()}"
    # Where a job's copy of the working directory lay is no choice of anybody's, if there is another difference.
    own = [key for key in keys if _without_copies(before.get(key)) != _without_copies(after.get(key))]
    keys = [key for key in chosen if key in own] or own
    changes = ", ".join(f"{key} is {shown(before.get(key))} there, {shown(after.get(key))} here" for key in keys[:3])
    changes = changes or "its settings are these, but documents, questions or code are others"
    more = f", and {pluralize(len(keys) - 3, 'more key')}" if len(keys) > 3 else ""
    raise ConfigError(
        config.hide(
            f"{config.run} holds {what} ({changes}{more}): give --again to replace it, or --set run=DIR for a "
            f"directory of its own; either way calls are made that the ledger {config.ledger.path} lacks"
        )
    )


def _without_copies(value: object) -> object:
    """Shorten the paths in a value as ``shown_path`` does."""
    if isinstance(value, list):
        return [_without_copies(item) for item in value]
    return shown_path(value) if isinstance(value, str) else value


def summary_of(run: str) -> AnswerSummary:
    """Return the counts that a finished run has recorded.

    Raises:
        DataError: They are not what a run writes.
    """
    facts, known = _facts(run), {field.name for field in fields(AnswerSummary)}
    try:
        return TypeAdapter(AnswerSummary).validate_python({key: facts[key] for key in known & facts.keys()})
    except ValidationError as error:
        [first, *_] = error.errors()
        where, file = ".".join(map(str, first["loc"])), join_path(run, "run.json")
        raise DataError(
            f"{file} is not what the run wrote ({where} is {shown(first['input'])}): repeat `kohaku-ray answer "
            "--again`, which takes the replies from the ledger"
        ) from None


def _facts(run: str) -> dict[str, Any]:
    return dict(json.loads(read_file(join_path(run, "run.json"))))


def _code(system: System) -> str:
    """Digest the source of a system: its package's modules and templates, or its one file."""
    try:
        file = Path(inspect.getsourcefile(system.prepare) or "")
        is_package = (file.parent / "__init__.py").is_file()
        files = (
            sorted(source for source in file.parent.rglob("*") if source.suffix in (".py", ".j2"))
            if is_package
            else [file]
        )
        return digest([digest_text(source.read_bytes()) for source in files])
    except (OSError, TypeError):
        return ""
