"""Whether a run is finished already, so that the same command again has nothing to do."""

from __future__ import annotations

import inspect
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from kohaku_ray import __version__
from kohaku_ray.config import Config, as_yaml
from kohaku_ray.index.store import Index
from kohaku_ray.models.prompts import Prompts
from kohaku_ray.records import digest, digest_text
from kohaku_ray.run.collection import difference
from kohaku_ray.run.indexes import open_index
from kohaku_ray.run.sources import read_source, resolve_paths
from kohaku_ray.run.summary import AnswerSummary
from kohaku_ray.run.tables import SCHEMAS
from kohaku_ray.storage import below, is_file, read_file
from kohaku_ray.systems.base import System


def inputs_of(config: Config, index: Index, prompts: Prompts) -> str:
    """Digest everything that a run's outputs depend on and that its configuration does not hold.

    That is the contents of its files, the build of its index, its templates, its system's code and this version.
    """
    files = [path for path in (config.questions.path, config.documents.metadata) if path is not None]
    return digest(
        {
            "files": [digest_text(read_source(path)[1]) for path in files],
            "index": index.manifest["build"],
            "prompts": prompts.digest,
            "system": _code(config.declaration),
            "version": __version__,
        }
    )


def is_finished(run: str) -> bool:
    """Return whether a run is complete: all files, and a reply to every call (recorded errors count as replies)."""
    try:
        facts = json.loads(read_file(below(run, "run.json")))
    except (OSError, ValueError):
        return False
    files = ("config.yaml", "submission.csv", *(f"{name}.parquet" for name in SCHEMAS))
    whole = all(is_file(below(run, name)) for name in files)
    return whole and facts.get("status") == "finished" and not facts.get("n_unanswered")


def finished_before(config: Config) -> AnswerSummary | None:
    """Return the counts of this run if it is finished with the same inputs and a reply to every call; else None.

    None too where its documents have changed since they were indexed, which the job warns of.

    Raises:
        ConfigError: A template cannot be used.
        DataError: Its index or its questions cannot be used.
    """
    config = resolve_paths(config)
    if not is_finished(config.run):
        return None
    facts = _facts(config.run)
    if read_file(below(config.run, "config.yaml")).decode() != as_yaml(config):
        return None
    index = open_index(config)
    if facts.get("inputs") != inputs_of(config, index, config.declaration.prompts(config.prompts)):
        return None
    return None if difference(index, config) else summary_of(config.run)


def summary_of(run: str) -> AnswerSummary:
    """Return the counts that a finished run has recorded.

    Raises:
        DataError: Its ``run.json`` cannot be read.
    """
    facts, known = _facts(run), {one.name for one in fields(AnswerSummary)}
    return AnswerSummary(**{key: facts[key] for key in known & facts.keys()})


def _facts(run: str) -> dict[str, Any]:
    return dict(json.loads(read_file(below(run, "run.json"))))


def _code(system: System) -> str:
    """Digest the source of a system: its package's modules and templates, or its one file."""
    try:
        file = Path(inspect.getsourcefile(system.prepare) or "")
        is_package = (file.parent / "__init__.py").is_file()
        files = sorted(one for one in file.parent.rglob("*") if one.suffix in (".py", ".j2")) if is_package else [file]
        return digest([digest_text(one.read_bytes()) for one in files])
    except (OSError, TypeError):
        return ""
