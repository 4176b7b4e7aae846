"""A model or an index that no GPU of a cluster holds is refused with both sizes before anything starts."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from types import SimpleNamespace

import pytest

from kohaku_ray.config import load_config
from kohaku_ray.errors import ConfigError
from kohaku_ray.run import cards
from kohaku_ray.run.cards import retriever_need, weight_bytes
from kohaku_ray.run.demand import Encoders, answer_demand, check_demand, index_demand

GIB = 1 << 30


def save_header(path: Path, **tensors: tuple[str, int]) -> None:
    """Write the head of a safetensors file, which is all that is read: the numbers' format and bytes by name."""
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, n_bytes) in tensors.items():
        header[name], offset = (
            {"dtype": dtype, "shape": [1], "data_offsets": [offset, offset + n_bytes]},
            offset + n_bytes,
        )
    text = json.dumps(header).encode()
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text)) + text)


@pytest.fixture
def model(tmp_path) -> str:
    """A model of 70 billion numbers, in two files."""
    for part in (1, 2):
        save_header(tmp_path / "m" / f"model-{part}.safetensors", w=("BF16", 65 * GIB))
    save_header(tmp_path / "m" / "consolidated.safetensors", w=("BF16", 130 * GIB))
    names = {f"w{part}": f"model-{part}.safetensors" for part in (1, 2)}
    (tmp_path / "m" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    return str(tmp_path / "m")


def test_weights_are_read_from_the_headers_of_the_files_that_are_loaded(model, tmp_path):
    assert weight_bytes(model, None) == 130 * GIB
    assert weight_bytes(model, None, 4) == 260 * GIB
    save_header(tmp_path / "q" / "model.safetensors", scale=("F32", 8), w=("I32", 100))
    assert weight_bytes(str(tmp_path / "q"), None, 2) == 104, "packed numbers stay as they are"
    assert weight_bytes(str(tmp_path / "none"), None) is None
    (tmp_path / "q" / "model.safetensors").write_bytes(b"no header")
    assert weight_bytes(str(tmp_path / "q"), None) is None


def node(kind: str | None, gpus: float = 8, **resources: float) -> dict[str, float]:
    return {"CPU": 64.0, "GPU": gpus, **({} if kind is None else {f"accelerator_type:{kind}": 1.0}), **resources}


def served(model: str, *overrides: str):
    settings = ", ".join([f"kind: vllm, model: {model}", *overrides])
    return load_config(None, [f"deployments.big={{{settings}}}", "model=big"])


def test_a_model_too_large_for_its_gpus_is_refused_with_both_sizes(model):
    demand = answer_demand(served(model))
    with pytest.raises(
        ConfigError,
        match=r"a replica of big needs 130\.0 GiB of a GPU for its weights but of the largest GPU, of 80 GiB, it gets "
        r"73\.6 GiB: raise tensor_parallel, or use larger GPUs",
    ):
        check_demand(demand, node("H100"), nodes=[node("H100"), node("L4")])
    check_demand(answer_demand(served(model, "tensor_parallel: 2")), node("H100"), nodes=[node("H100")])
    on_l4 = served(model, "tensor_parallel: 4", "resources: {small: 0.001}")
    nodes = [node("H100"), node("L4", small=1)]
    with pytest.raises(ConfigError, match=r"needs 32\.5 GiB .* for its part of 130\.0 GiB of weights on 4 GPUs but of"):
        check_demand(answer_demand(on_l4), node("H100", 16, small=1), nodes=nodes)


@pytest.mark.parametrize(
    "overrides",
    [
        ["engine_kwargs: {quantization: fp8}"],
        ["engine_kwargs: {load_format: dummy}"],
        ["application: running"],
        ["cpus: 4"],
    ],
)
def test_a_model_whose_size_on_a_gpu_is_not_known_is_not_refused(model, overrides):
    check_demand(answer_demand(served(model, *overrides)), node("L4"), nodes=[node("L4")])


def test_a_gpu_whose_memory_is_not_known_refuses_nothing(model):
    for other in (node(None), node("X9")):
        check_demand(answer_demand(served(model)), node("L4", 16), nodes=[node("L4"), other])


def test_an_encoder_too_large_for_its_share_is_refused(tmp_path):
    save_header(tmp_path / "e" / "model.safetensors", w=("F32", 15 * GIB))
    overrides = [f"index.encoder.model={tmp_path}/e", "index.encoder_gpus=0.5"]
    demand = index_demand(load_config("demo", overrides), Encoders(2, gpu=True))
    with pytest.raises(ConfigError, match=r"an encoder needs 15\.0 GiB .* of 24 GiB, it gets 12\.0 GiB: raise index"):
        check_demand(demand, node("L4"), nodes=[node("L4")])
    half = load_config("demo", [*overrides, "index.encoder.precision=bfloat16"])
    check_demand(index_demand(half, Encoders(2, gpu=True)), node("L4"), nodes=[node("L4")])
    check_demand(index_demand(load_config("demo", overrides), Encoders(2, gpu=False)), node("L4"), nodes=[node("L4")])


def test_an_index_too_large_for_the_retrievers_share_is_refused_where_it_must_be_on_the_gpu(monkeypatch):
    index = SimpleNamespace(shards=[SimpleNamespace(files={f"faiss-{key}": {"bytes": 30 * GIB} for key in KEYS})])
    overrides = ["cluster.retriever.gpus=0.25", "index.search_device=cuda"]
    need = retriever_need(load_config("demo", overrides), index)
    small = cards.too_small({"a retriever": need}, [node("H100")])
    assert small.startswith("a retriever needs 31.5 GiB of a GPU for a shard of the index and FAISS's temporary memory")
    assert "of 80 GiB, it gets 20.0 GiB: raise index.shards" in small
    assert retriever_need(load_config("demo", overrides[:1]), index) is None, "auto searches on the CPU then"


KEYS = [view.key for view in cards.searched_views(load_config("demo"))]
