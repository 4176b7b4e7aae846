"""benchmarks/gpu.py without a GPU: its file names every figure's peer, and every reason why one is missing."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def module(monkeypatch):
    """Import a module of the benchmarks."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / "gpu.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **variables})


@pytest.mark.slow
def test_figures_have_peers_and_what_is_missing_a_reason(tmp_path):
    done = run("--device", "cpu", "--small", "--sections", "faiss", "--output", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    [path] = tmp_path.glob("*.json")
    report = json.loads(path.read_text())
    assert {"device", "driver", "versions", "date", "command"} <= report.keys()
    section = report["sections"]["faiss"]
    assert [item["name"] for item in section["figures"]] == [
        "Flat on CPU, 25,000 vectors",
        "IVF64,Flat on CPU, 25,000 vectors",
    ]
    for figure in section["figures"]:
        assert figure["ratio"] == pytest.approx(figure["figure"] / figure["peer"])
        assert figure["peer_name"] == "FAISS alone"
    assert [item["name"] for item in section["skipped"]] == [
        "Flat on GPU, 25,000 vectors",
        "IVF64,Flat on GPU, 25,000 vectors",
    ]
    assert all(item["reason"] and item["reason"] in done.stdout for item in section["skipped"])


@pytest.mark.slow
def test_bare_measures_on_a_machine_without_ray_and_vllm(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules |= {'ray': None, 'vllm': None}\n")
    paths = os.pathsep.join([str(tmp_path), str(BENCHMARKS.parent)])
    done = run("--device", "cpu", "--small", "--bare", "--output", str(tmp_path), PYTHONPATH=paths)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAILED" not in done.stdout
    [path] = tmp_path.glob("*.json")
    sections = json.loads(path.read_text())["sections"]
    assert list(sections) == ["encoder", "faiss", "cross_encoder"]
    assert all(section["figures"] for section in sections.values())


def test_an_encoder_beside_the_bare_model_gets_token_ids_as_in_an_index_job(
    tmp_path, module, monkeypatch, tiny_encoder
):
    from transformers import PreTrainedTokenizerFast

    def refuse(self, *given, **named):
        raise AssertionError("a text was tokenised: a GPU would wait for that")

    def timed(rounds, **ways):
        with monkeypatch.context() as meanwhile:
            if "bare" in ways:
                meanwhile.setattr(PreTrainedTokenizerFast, "__call__", refuse)
            for way in ways.values():
                way()
        return {name: 1.0 + number for number, name in enumerate(ways)}

    sections = module("gpu_sections")
    monkeypatch.setattr(sections, "best_of", timed)
    sheet, texts = module("gpu_sheet").Sheet(tmp_path / "result.jsonl"), sections.sentences(20)
    sections.compare_encoders(sheet, "tiny", tiny_encoder, texts, "cpu", "float32")
    bare, encode = [json.loads(line) for line in (tmp_path / "result.jsonl").read_text().splitlines()]
    assert (bare["figure"], bare["peer"]) == (20, 10)
    assert (encode["figure"], encode["peer"]) == (20, 10), "texts in, on both sides"


def test_bare_refuses_a_section_that_needs_ray(tmp_path):
    done = run("--bare", "--sections", "encoder,vllm", "--output", str(tmp_path))
    assert done.returncode == 2
    assert "--bare runs encoder, faiss, cross_encoder: vllm needs Ray" in done.stderr


def test_a_section_that_cannot_run_fails_unless_it_is_left_out_by_name(tmp_path):
    out = ["--output", str(tmp_path)]
    done = run("--sections", "faiss", *out)  # on a GPU, and there is none
    assert done.returncode == 1, done.stdout + done.stderr
    assert "faiss: FAILED: " in done.stdout
    assert run("--sections", "faiss", "--without", "faiss", *out).returncode == 0
    wrong = run("--without", "fais", *out)
    assert wrong.returncode == 2
    assert "no section fais: choose from encoder, index, faiss, cross_encoder, waves, vllm" in wrong.stderr


SECTION = """
import os, sys, time
sys.path.insert(0, {benchmarks!r})
from gpu_sheet import Sheet
from pathlib import Path
sheet = Sheet(Path(sys.argv[sys.argv.index("--to") + 1]))
with sheet.measuring("first"):
    raise MemoryError("CUDA out of memory")
sheet.add("second", 2.0, "peer", 1.0, "texts/s")
time.sleep(2.5)
{end}
"""


@pytest.mark.parametrize(
    ("end", "limit_s", "reason"),
    [("os._exit(9)", 60, "ended with code 9"), ("time.sleep(60)", 8, "stopped at its limit of 8 s")],
)
def test_a_figure_is_kept_when_it_is_measured_whatever_comes_before_and_after(
    tmp_path, monkeypatch, module, end, limit_s, reason
):
    gpu, kept = module("gpu"), []
    script = tmp_path / "section.py"
    script.write_text(SECTION.format(benchmarks=str(BENCHMARKS), end=end))
    monkeypatch.setattr(gpu, "__file__", str(script))
    result = gpu.apart("faiss", gpu.Run("cpu", small=True), limit_s, kept.append)
    assert [item["name"] for item in kept[0]["figures"]] == ["second"]
    assert kept[0]["wall_s"] < result["wall_s"], "before the section ended"
    assert [item["name"] for item in result["figures"]] == ["second"]
    assert result["skipped"][0]["reason"] == "MemoryError: CUDA out of memory"
    assert reason in result["skipped"][1]["reason"]
    assert not gpu.is_kept(result)


def test_an_answer_run_stands_beside_plain_vllm_given_its_calls_once(tmp_path, module):
    from kohaku_ray.engine.jobs.bench import Grid
    from kohaku_ray.pages.throughput import AnswerRun, Gpus, Measurement, Plain, Throughput

    run = AnswerRun(1, 9, Measurement(40, 400, 20.0, 8000, 2000, 5000, n_answers=360, n_usable=30, joules=720.0))
    plain = Plain(9, Measurement(40, 400, 16.0, 8000, 2000))
    throughput = Throughput({}, runs=(run,), plain_run=plain, gpus=Gpus(1, 1e6, 1000))
    sheet, added = module("gpu_sheet").Sheet(tmp_path / "result.jsonl"), set()
    for so_far in (Throughput({}, runs=(run,)), throughput, throughput):
        module("gpu_vllm").add_new(sheet, so_far, Grid(), {9: 144.0}, added, gpu_hour=3.6)
    line, dollars, joules = [json.loads(line) for line in (tmp_path / "result.jsonl").read_text().splitlines()]
    assert (line["figure"], line["peer"], line["ratio"], line["unit"]) == (20, 25, 0.8, "calls/s")
    assert line["note"] == "0.500 of the GPU's bf16 FLOP/s, 40 questions, 30 of 360 answers without an error"
    assert (dollars["figure"], dollars["peer"]) == (pytest.approx(1000 * 0.001 * 20 / 360), pytest.approx(16 / 360))
    assert (joules["figure"], joules["peer"], joules["unit"]) == (2000.0, 1000.0, "J")


@pytest.mark.parametrize(
    ("visible", "joules"), [(None, 0.001), ("", 0.001), ("2,0", 0.003), ("GPU-abc,GPU-def", 7.0), ("GPU-none", None)]
)
def test_energy_is_that_of_the_first_gpu_which_the_process_sees(module, monkeypatch, visible, joules):
    nvml = types.ModuleType("vllm.third_party.pynvml")
    nvml.nvmlInit = lambda: None
    nvml.nvmlDeviceGetHandleByIndex = lambda number: number + 1
    nvml.nvmlDeviceGetHandleByUUID = {"GPU-abc": 7000}.__getitem__
    nvml.nvmlDeviceGetTotalEnergyConsumption = lambda gpu: gpu
    parent = types.ModuleType("vllm.third_party")
    parent.pynvml = nvml
    for name, package in (("vllm", types.ModuleType("vllm")), ("vllm.third_party", parent)):
        monkeypatch.setitem(sys.modules, name, package)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    energy = module("gpu_vllm").Energy()
    assert energy.joules() == joules
    assert bool(energy.reason) == (joules is None)


def test_waves_stand_beside_the_same_as_they_come_and_nine_at_once(tmp_path, module):
    def result(n_calls, cached, wall_s):
        counts = {"n_calls": n_calls, "prompt_tokens": 1001 * n_calls, "cached_tokens": cached}
        return {**counts, "completion_tokens": 1, "wall_s": wall_s}

    results, added = {}, set()
    sheet = module("gpu_sheet").Sheet(tmp_path / "result.jsonl")
    made = {
        "as many as fit": result(60, 992 * 50, 20.0),
        "older first": result(60, 992 * 45, 25.0),
        "as they come": result(60, 992 * 40, 30.0),
        "nine at once": result(90, 992 * 80, 25.0),
        "one member": result(10, 0, 10.0),
    }
    for name, each in made.items():
        results[name] = each
        module("gpu_waves").add_new(sheet, results, 10, 16, added)
    lines = [json.loads(line) for line in (tmp_path / "result.jsonl").read_text().splitlines()]
    assert [(line["name"], line["peer_name"], line["ratio"], line["is_kept"]) for line in lines] == [
        ("prefills per question in waves", "one", 1.0, True),
        ("waves, as many as fit", "older first", 0.8, True),
        ("waves, as many as fit", "as they come", pytest.approx(2 / 3), True),
        ("waves, as many as fit", "nine at once", 0.8, True),
        ("nine at once", "one member", 2.5, True),
    ]
    assert lines[2]["note"] == "2.00 prefills per question, 6.0 calls"


def test_sizes_that_the_machines_memory_does_not_hold_are_left_out_by_name(tmp_path, module, monkeypatch):
    sections = module("gpu_sections")
    monkeypatch.setattr(sections.psutil, "virtual_memory", lambda: types.SimpleNamespace(available=100 << 20))
    sheet = module("gpu_sheet").Sheet(tmp_path / "result.jsonl")
    sections.faiss(sheet, module("gpu").Run("cpu", small=True))
    lines = [json.loads(line) for line in (tmp_path / "result.jsonl").read_text().splitlines()]
    assert [line["name"] for line in lines] == ["Flat on GPU, 25,000 vectors", "IVF64,Flat on GPU, 25,000 vectors"]
    assert all("GiB of this machine's memory" in line["reason"] and not line["is_failure"] for line in lines)


def test_a_second_replica_stands_beside_the_first(tmp_path, module):
    from kohaku_ray.engine.jobs.bench import Grid
    from kohaku_ray.pages.throughput import BenchCell, Measurement, Throughput

    cells = [BenchCell(n, 1, 16, Measurement(160 * n, 160 * n, 20.0 + n, 8000, 2000)) for n in (1, 2)]
    sheet = module("gpu_sheet").Sheet(tmp_path / "result.jsonl")
    module("gpu_vllm").add_new(sheet, Throughput({}, cells=tuple(cells)), Grid(), {}, set())
    [line] = [json.loads(line) for line in (tmp_path / "result.jsonl").read_text().splitlines()]
    assert (line["name"], line["peer_name"]) == ("two replicas, 1 member(s)", "one replica")
    assert line["ratio"] == pytest.approx(2 * 21 / 22)


def test_the_benchmarks_grammars_run_through_as_many_tokens_as_the_model_has_logits(tmp_path, module):
    from kit import tiny_llama
    from kit.tiny_job import SAMPLE_TEXTS
    from tokenizers import Tokenizer

    path = Path(tiny_llama.build(tmp_path, SAMPLE_TEXTS))
    before = Tokenizer.from_file(str(path / "tokenizer.json"))
    gpu_vllm = module("gpu_vllm")
    gpu_vllm.widen_vocabulary(path / "tokenizer.json", gpu_vllm.QWEN_7B["vocab_size"])
    after = Tokenizer.from_file(str(path / "tokenizer.json"))
    assert max(after.get_vocab().values()) == 152_063
    text = "The fans of 7 racks draw 40 kW."
    assert after.encode(text).ids == before.encode(text).ids
    assert after.decode([152_063])
