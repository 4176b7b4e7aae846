"""What tests of runs share: a server as their model, their outputs, settings as flags of a command."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pyarrow.parquet as pq

from kit.fake_openai import FakeOpenAI
from kohaku_ray.store.tables import SCHEMAS

COMPARED = ["submission.csv", *(f"{name}.parquet" for name in SCHEMAS if name != "usage")]
"""Outputs that are the same to the byte however a run was made."""

KEY = "sk-Secret-0123456789abcdef"
"""The value of OUR_KEY, in this process and those of the session's cluster."""


def deployment(server: FakeOpenAI, **more: object) -> dict[str, object]:
    return {"kind": "openai", "base_url": server.base_url, "model": "fake", "api_key_env": None, **more}


def fake(server: FakeOpenAI, **more: object) -> list[str]:
    """Overrides: the server answers as deployment ``fake``."""
    return [f"deployments.fake={json.dumps(deployment(server, backoff_s=0.05, **more))}", "roles.answer.model=fake"]


def flags(settings: Mapping[str, object]) -> list[str]:
    return [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]


def rows_of(run: str, name: str) -> list[dict]:
    return pq.read_table(f"{run}/{name}.parquet").to_pylist(maps_as_pydicts="strict")


def steps_of(run: str, step: str) -> list[dict]:
    return [row for row in rows_of(run, "trace") if row["step"] == step]
