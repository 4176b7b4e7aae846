"""A model or an index that no GPU of a cluster holds is refused with both sizes before anything starts."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from types import SimpleNamespace

import pytest
from kit.rows import check_rows

from kohaku_ray.config import load_config
from kohaku_ray.errors import ConfigError
from kohaku_ray.run.checks import cards
from kohaku_ray.run.checks.cards import retriever_need, weight_bytes
from kohaku_ray.run.checks.demand import Encoders, answer_demand, check_demand, index_demand

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
        match=r"a replica of big needs 131\.5 GiB of a GPU for its weights and 1\.5 GiB of the engine's own but of the "
        r"largest GPU, of at most 94 GiB, it gets at most 86\.5 GiB: raise tensor_parallel, or use larger GPUs",
    ):
        check_demand(demand, node("H100"), nodes=[node("H100"), node("L4")])
    check_demand(answer_demand(served(model, "tensor_parallel: 2")), node("H100"), nodes=[node("H100")])
    on_l4 = served(model, "tensor_parallel: 4", "resources: {small: 0.001}")
    nodes = [node("H100"), node("L4", small=1)]
    with pytest.raises(ConfigError, match=r"needs 34\.0 GiB .* for its part of 130\.0 GiB of weights on 4 GPUs and"):
        check_demand(answer_demand(on_l4), node("H100", 16, small=1), nodes=nodes)


@check_rows(
    ("kind", "gib", "largest"),
    [
        ("V100", 24, "32"),
        ("A100", 61, "79.2"),  # a model of 32 billion numbers in bfloat16
        ("H100", 80, "94"),
        ("H20", 110, "139.8"),
    ],
)
def test_a_type_with_several_sizes_refuses_only_what_the_largest_does_not_hold(tmp_path, kind, gib, largest):
    def check(gib: int) -> str:
        save_header(tmp_path / "m" / "model.safetensors", w=("BF16", gib * GIB))
        return cards.too_small(cards.deployment_needs(served(f"{tmp_path}/m").deployments), [node(kind)])

    assert check(gib) == ""
    assert f"of the largest GPU, of at most {largest} GiB, it gets at most " in check(2 * gib)


def test_a_size_that_a_node_names_beside_rays_own_type_counts(model):
    small, large = (node("A100", **{f"accelerator_type:A100-{size}G": 1.0}) for size in (40, 80))
    needs = cards.deployment_needs(served(model, "tensor_parallel: 2").deployments)
    assert "of at most 39.4 GiB" in cards.too_small(needs, [small])
    assert cards.too_small(needs, [large]) == ""
    assert cards.card_bytes([large]) == int(79.2 * GIB)


SHAPES = {
    "Qwen3-8B": (8.19e9, {"num_hidden_layers": 36, "num_key_value_heads": 8, "head_dim": 128}),
    "Llama-3.1-8B": (8.03e9, {"num_hidden_layers": 32, "num_key_value_heads": 8, "hidden_size": 4096}),
    "Qwen2.5-7B": (7.62e9, {"num_hidden_layers": 28, "num_key_value_heads": 4, "hidden_size": 3584}),
    "Qwen2.5-72B": (72.7e9, {"num_hidden_layers": 80, "num_key_value_heads": 8, "hidden_size": 8192}),
    "Qwen3-VL-8B": (8.77e9, {"text_config": {"num_hidden_layers": 36, "num_key_value_heads": 8, "head_dim": 128}}),
}
HEADS = {"Qwen2.5-7B": 28, "Qwen2.5-72B": 64}


@pytest.fixture
def shaped(tmp_path, monkeypatch):
    """Make a model of a real one's size and shape, and let it be the one that presets name."""

    def save(name: str) -> str:
        n, config = SHAPES[name]
        save_header(tmp_path / name / "model.safetensors", w=("BF16", 2 * int(n)))
        (config.get("text_config") or config)["num_attention_heads"] = HEADS.get(name, 32)
        (tmp_path / name / "config.json").write_text(json.dumps(config))
        for variable in ("KOHAKU_MODEL", "KOHAKU_CAPTION_MODEL"):
            monkeypatch.setenv(variable, f"{tmp_path}/{name}")
        return f"{tmp_path}/{name}"

    return save


@check_rows(
    ("name", "overrides", "expected"),
    [
        ("Qwen3-8B", [], 144 * 1024),
        ("Qwen3-8B", ["engine_kwargs: {kv_cache_dtype: fp8}"], 72 * 1024),
        ("Llama-3.1-8B", [], 128 * 1024),
        ("Qwen2.5-7B", [], 56 * 1024),
        ("Qwen2.5-72B", ["tensor_parallel: 4"], 80 * 1024),
        ("Qwen2.5-72B", ["tensor_parallel: 2", "pipeline_parallel: 2"], 80 * 1024),
    ],
)
def test_a_tokens_keys_and_values_follow_from_the_models_shape(shaped, name, overrides, expected):
    assert cards.bytes_per_token(served(shaped(name), *overrides).deployments["big"]) == expected


def test_layers_with_a_sliding_window_or_latent_attention_keep_less(tmp_path):
    def per_token(**config):
        (tmp_path / "config.json").write_text(json.dumps(config))
        return cards.bytes_per_token(served(str(tmp_path), "tensor_parallel: 2").deployments["big"])

    gpt_oss = {"num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "num_hidden_layers": 24}
    kinds = ["sliding_attention", "full_attention"] * 12
    assert per_token(**gpt_oss, layer_types=kinds) == 12 * 2 * 4 * 64 * 2
    assert per_token(num_hidden_layers=61, kv_lora_rank=512, qk_rope_head_dim=64) == 61 * 576 * 2
    assert per_token(state_size=16) == 0, "a model without attention"


@check_rows(
    ("more", "expected"),
    [
        ({"sliding_window": 1024}, 0),  # as google/gemma-3-12b-it: 8 of its 48 layers keep all tokens
        ({"full_attention_interval": 4}, 0),  # as Qwen/Qwen3-Next-80B-A3B-Instruct
        ({"sliding_window": 131072, "use_sliding_window": False}, 48 * 2 * 8 * 256 * 2),  # as Qwen/Qwen2.5-7B-Instruct
        ({"sliding_window": None}, 48 * 2 * 8 * 256 * 2),  # as mistralai/Mistral-7B-Instruct-v0.3
    ],
)
def test_keys_and_values_are_unknown_where_config_json_leaves_open_which_layers_keep_all(tmp_path, more, expected):
    shape = {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256, "num_hidden_layers": 48}
    (tmp_path / "config.json").write_text(json.dumps({"text_config": shape | more}))
    assert cards.bytes_per_token(served(str(tmp_path)).deployments["big"]) == expected


@pytest.mark.parametrize(
    ("preset", "name", "key"),
    [
        ("models/vllm_qwen3", "Qwen3-8B", "qwen"),
        ("models/vllm_qwen3_thinking", "Qwen3-8B", "qwen"),
        ("models/vllm_llama_8b", "Llama-3.1-8B", "llama"),
        ("models/vllm_qwen25_7b", "Qwen2.5-7B", "qwen"),
        ("models/vllm_qwen3_vl", "Qwen3-VL-8B", "eyes"),
        ("vllm", "Qwen3-8B", "qwen"),
    ],
)
@pytest.mark.parametrize("kind", ["L4", "A10G"])
def test_shipped_models_of_eight_billion_start_on_cards_of_24_gb(shaped, preset, name, key, kind):
    shaped(name)
    config = load_config(preset)
    deployments = {key: config.deployments[key]}
    assert cards.too_small(cards.deployment_needs(deployments), [node(kind)]) == ""
    longer = {key: deployments[key].model_copy(update={"window_tokens": 98304})}
    assert "lower deployments" in cards.too_small(cards.deployment_needs(longer), [node(kind)])


def test_a_window_that_does_not_fit_beside_the_weights_is_said_with_the_one_that_does(shaped):
    path = shaped("Qwen3-8B")
    with pytest.raises(
        ConfigError,
        match=r"a replica of big needs 21\.3 GiB of a GPU for its weights and 1\.5 GiB of the engine's own, and for a "
        r"window of 32,768 tokens 4\.5 GiB of it but of the largest GPU, of at most 22\.5 GiB, it gets at most "
        r"20\.7 GiB: lower deployments\.big\.window_tokens to at most 28672, raise tensor_parallel, or use larger GPUs",
    ):
        check_demand(answer_demand(served(path, "window_tokens: 32768")), node("L4"), nodes=[node("L4")])
    check_demand(answer_demand(served(path, "window_tokens: 28672")), node("L4"), nodes=[node("L4")])
    large = served(shaped("Qwen2.5-72B"), "tensor_parallel: 4", "window_tokens: 32768")
    with pytest.raises(
        ConfigError, match=r"lower deployments\.big\.window_tokens to at most 11264, raise tensor_parallel"
    ):
        check_demand(answer_demand(large), node("A100-40G"), nodes=[node("A100-40G")])


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
    with pytest.raises(
        ConfigError, match=r"an encoder needs 15\.0 GiB .* of at most 22\.5 GiB, it gets at most 11\.2 GiB: "
    ):
        check_demand(demand, node("L4"), nodes=[node("L4")])
    half = load_config("demo", [*overrides, "index.encoder.precision=bfloat16"])
    check_demand(index_demand(half, Encoders(2, gpu=True)), node("L4"), nodes=[node("L4")])
    check_demand(index_demand(load_config("demo", overrides), Encoders(2, gpu=False)), node("L4"), nodes=[node("L4")])


def test_an_index_too_large_for_the_retrievers_share_is_refused_where_it_must_be_on_the_gpu(monkeypatch):
    files = {f"faiss-{key}": {"bytes": 30 * GIB} for key in KEYS}
    index = SimpleNamespace(shards=[SimpleNamespace(files=files)], manifest={"dim": 384})
    overrides = ["cluster.retriever.gpus=0.25", "index.search_device=cuda"]
    need = retriever_need(load_config("demo", overrides), index)
    small = cards.too_small({"a retriever": need}, [node("H100")])
    assert small.startswith("a retriever needs 31.5 GiB of a GPU for a shard of the index and FAISS's temporary memory")
    assert "of at most 94 GiB, it gets at most 23.5 GiB: raise index.shards" in small
    assert retriever_need(load_config("demo", overrides[:1]), index) is None, "auto searches on the CPU then"


KEYS = [view.key for view in cards.searched_views(load_config("demo"))]
