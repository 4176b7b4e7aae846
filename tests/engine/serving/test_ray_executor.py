"""The executor of every replica on GPUs, on a machine without one: two engines on shares of a GPU that nobody has.

vLLM's CPU platform says that its device is Ray's "GPU", and Ray counts one: so an engine is started by Ray's executor,
in bundles of a GPU, as it is with ``gpus: 1``, and computes on the CPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from kit import tiny_llama
from kit.installed import needs
from kit.tiny_job import SAMPLE_TEXTS

pytestmark = [needs("vllm"), pytest.mark.ray, pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(900)]

STAND_IN = """
import importlib.abc, importlib.machinery, json, os, sys, time

def note(**what):
    with open(os.environ["STAND_IN_LOG"], "a") as file:
        file.write(json.dumps({**what, "pid": os.getpid(), "at": time.time()}) + "\\n")

def platform(module):
    module.CpuPlatform.ray_device_key = "GPU"

def executor(module):
    own = module.RayExecutorV2.__init__
    def noted(self, *given, **named):
        note(what="executor")
        own(self, *given, **named)
    module.RayExecutorV2.__init__ = noted

def server(module):
    own = module.LLMServer.start
    async def noted(self):
        note(what="start")
        await own(self)
        note(what="started")
    module.LLMServer.start = noted

CHANGES = {
    "vllm.platforms.cpu": platform,
    "vllm.v1.executor.ray_executor_v2": executor,
    "ray.llm._internal.serve.core.server.llm_server": server,
}

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name not in CHANGES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        run = spec.loader.exec_module
        def changed(module):
            run(module)
            CHANGES[name](module)
        spec.loader.exec_module = changed
        return spec

sys.meta_path.insert(0, Finder())
"""

ON_CPUS = {"dtype": "float32", "enforce_eager": True, "enable_chunked_prefill": False, "block_size": 32}


@pytest.fixture(scope="module")
def answered(tmp_path_factory, sample_here) -> tuple[Path, list[dict]]:
    """A run of two replicas with half a GPU each, and what the stand-in noted."""
    folder = tmp_path_factory.mktemp("ray_executor")
    model = tiny_llama.build(folder / "model", SAMPLE_TEXTS)
    stand_in, log = folder / "stand_in", folder / "log.jsonl"
    stand_in.mkdir()
    (stand_in / "sitecustomize.py").write_text(STAND_IN)
    kwargs = {**ON_CPUS, "max_num_batched_tokens": 4096}
    deployment = {"kind": "vllm", "model": model, "gpus": 0.5, "replicas": 2, "window_tokens": 4096}
    deployment |= {"start_timeout_s": 600, "engine_kwargs": kwargs, "env": {"VLLM_CPU_KVCACHE_SPACE": "1"}}
    overrides = [f"deployments.tiny={json.dumps(deployment)}", "model=tiny", "roles.answer.max_tokens=128"]
    overrides += [
        "roles.plan.max_tokens=48",
        "kohaku.max_retries=0",
        "kohaku.max_context_tokens=1500",
        "ensemble.members=3",
    ]
    overrides += [
        "questions.limit=4",
        "cluster.num_cpus=6",
        "cluster.retriever.gpus=0",
        f"index.path={sample_here}",
    ]
    overrides += [f"run={folder}/run", f"ledger.path={folder}/ledger"]
    command = [sys.executable, "-m", "kohaku_ray", "answer", "demo", "--rows-in-error-ok"]
    paths = [str(stand_in), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_SERVE_", "RAY_ADDRESS"))}
    env |= {"PYTHONPATH": os.pathsep.join(paths), "STAND_IN_LOG": str(log), "RAY_OVERRIDE_RESOURCES": '{"GPU": 1}'}
    done = subprocess.run(
        [*command, *(word for override in overrides for word in ("--set", override))],
        capture_output=True, text=True, timeout=800, check=False, env=env, cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:] + done.stdout[-2000:]
    return folder / "run", [json.loads(line) for line in log.read_text().splitlines()]


def test_replicas_on_a_gpu_answer_by_rays_executor(answered):
    run, noted = answered
    assert sum(note["what"] == "executor" for note in noted) == 2
    usage = pq.read_table(run / "usage.parquet").to_pylist()
    assert len(usage) == 4 * (1 + 3)
    assert {row["error"] for row in usage} == {None} if "error" in usage[0] else True
    assert len({row["replica"] for row in usage}) == 2
    assert all(row["gpu_s"] > 0 and row["joules"] is None for row in usage), "a share of a GPU, without a counter"


def test_engines_on_one_gpu_start_one_after_the_other(answered):
    _, noted = answered
    spans = {}
    for note in noted:
        spans.setdefault(note["pid"], {})[note["what"]] = note["at"]
    first, second = sorted((span for span in spans.values() if "start" in span), key=lambda span: span["start"])
    assert first["started"] <= second["start"]
