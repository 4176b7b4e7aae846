"""What a run records of its configuration."""

from __future__ import annotations

from typing import Any

from kohaku_ray.collection.indexes import preferred_note
from kohaku_ray.config import Config, as_yaml
from kohaku_ray.runs.tracking import settings_of
from kohaku_ray.store.directory import RunRecord


def run_record(config: Config) -> RunRecord:
    """Build what a run's directory records of its configuration."""
    return RunRecord(as_yaml(config), facts_of(config), changed_settings(config), tuple(config.declaration.outputs))


def facts_of(config: Config) -> dict[str, Any]:
    """Collect the facts that pages show of a run, so that they need not import its system."""
    members, roles = range(config.ensemble.members), config.uses.roles
    asked = {role: dict.fromkeys(config.role(role, member).model for member in members) for role in roles}
    models = {role: [f"{name} ({config.models[name].kind})" for name in names] for role, names in asked.items()}
    answering = config.answering_models
    notes = [note for model in answering.values() if (note := getattr(model, "note", ""))]
    notes = list(dict.fromkeys(filter(None, [*notes, preferred_note(config)])))
    return {
        "system": config.declaration.name,
        "metrics": list(config.metrics),
        "models": models,
        "lead": config.declaration.lead,
        "n_answering": len(answering),
        "baselines": [name for name, deployment in answering.items() if deployment.kind == "extractive"],
        "limit": config.questions.limit,
        "outputs": list(config.declaration.outputs),
        "split_by": list(config.declaration.columns.split_by),
        **({"notes": notes} if notes else {}),
    }


def changed_settings(config: Config) -> dict[str, str]:
    """Flatten what a configuration sets otherwise than the defaults: value by dotted key.

    Secrets are hidden; where something lies is left out.
    """
    places = {"run", "shared", "index.path", "ledger.path", "tracking.store", "deployments.extractive.system"}
    return {key: value for key, value in settings_of(config, changed=True).items() if key not in places}
