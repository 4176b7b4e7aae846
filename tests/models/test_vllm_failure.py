"""Why an engine did not start, by what engines wrote when they failed: on GPUs, in the issues that are named."""

from __future__ import annotations

import pytest
from kit.rows import check_rows

from kohaku_ray.models.vllm_failure import explain_start

AT = "deployments.big"
POINTS_ELSEWHERE = RuntimeError("Engine core initialization failed. See root cause above. Failed core proc(s): {}")
"""All that the process learns which waits for an engine (vLLM 0.29, v1/engine/utils.py)."""

OUT_OF_MEMORY = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 50.00 MiB. GPU 0 has a total capacity of 23.56 GiB "
    "of which 21.75 MiB is free. Including non-PyTorch memory, this process has 23.50 GiB memory in use."
)
WINDOW = (
    "ValueError: To serve at least one request with the model's max seq len (4194304), (2.0 GiB KV cache is needed, "
    "which is larger than the available KV cache memory (1.0 GiB). Based on the available memory, the estimated "
    "maximum model length is 2097120. Try increasing `gpu_memory_utilization` (which also controls CPU memory on the "
    "CPU backend) or decreasing `max_model_len` when initializing the engine."
)
NO_KERNEL = "RuntimeError: CUDA error: no kernel image is available for execution on the device"
NCCL = "RuntimeError: NCCL error: invalid usage (run with NCCL_DEBUG=WARN for details)"


@check_rows(
    ("written", "sentence"),
    [
        (  # noonghunna/club-3090#16
            f"(EngineCore pid=112) ERROR 05-01 14:39:06 [core.py:1131] {OUT_OF_MEMORY}",
            "the GPU has too little memory for the model's weights and one step: raise deployments.big.tensor_par",
        ),
        (  # vllm#27508
            "(EngineCore_DP0 pid=223840) ERROR 10-25 13:08:43 [core.py:708] ValueError: No available memory for the "
            "cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.",
            "the weights leave no memory to the KV cache: raise deployments.big.tensor_parallel or ",
        ),
        (  # vLLM 0.29 on CPUs, a tiny Llama with a window of 4 million tokens
            f"(EngineCore pid=31223) {WINDOW}",
            "the KV cache has no room for one prompt of deployments.big.window_tokens: lower "
            "deployments.big.window_tokens to 2097120, ",
        ),
        (  # vllm#25837
            "(EngineCore_DP0 pid=17374) ERROR 09-28 15:47:24 [core.py:718] ValueError: Free memory on device "
            "(3.22/4.0 GiB) on startup is less than desired GPU memory utilization (0.9, 3.6 GiB). Decrease GPU memory "
            "utilization or reduce GPU memory used by other processes.",
            "something else holds a part of the GPU's memory: end it, or lower ",
        ),
        (  # substratusai/vllm-docker#37
            "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your Tesla T4 GPU "
            "has compute capability 7.5. You can use float16 instead by explicitly setting the`dtype` flag in CLI, for "
            "example: --dtype=half.",
            "the GPU does not compute in the model's format: set deployments.big.engine_kwargs.dtype to float16 ",
        ),
        (  # vllm#14452
            f"ERROR 07-28 15:07:22 [core.py:632] {NO_KERNEL}",
            "the installed torch or vLLM has no code for this GPU: take GPUs of compute capability 7.5 or later ",
        ),
        (  # modelscope/FunASR#2973
            "RuntimeError: The NVIDIA driver on your system is too old (found version 12080).",
            "NVIDIA's driver is older than the CUDA 13 of torch and vLLM: install driver 580 or later ",
        ),
        (  # vLLM 0.29 for CPUs, on GPUs that Ray was told of
            "(EngineCore pid=4711) ValueError: current platform cpu does not support ray.",
            "the installed vLLM or torch cannot use the GPUs that Ray has: install kohaku-ray[gpu] ",
        ),
        (  # vLLM 0.29 on CPUs, a file that lacks its last 1,000 bytes
            "(Worker pid=7410) ERROR 11-29 13:29:04 [multiproc_executor.py:944] safetensors._safetensors_rust."
            "SafetensorError: Error while deserializing header: incomplete metadata, file not fully covered",
            "a file of the model's weights is cut or damaged: download it again, all files of it ",
        ),
        (  # flashinfer#1919
            "(Worker_TP1 pid=3534) ERROR 10-11 22:28:17 [multiproc_executor.py:694] RuntimeError: Could not find nvcc",
            "FlashInfer has no ready kernel for this and could not compile or download one: set "
            "deployments.big.engine_kwargs.attention_config to {backend: FLASH_ATTN}, ",
        ),
        (  # huggingface/trl#3310
            f"(EngineCore_0 pid=2095608) ERROR 04-17 23:05:06 [core.py:390] {NCCL}",
            "the engine's GPUs do not reach each other (NCCL): set deployments.big.env.NCCL_DEBUG to INFO, ",
        ),
    ],
)
def test_what_an_engine_wrote_is_one_sentence_with_vllms_cause_and_the_way_out(written, sentence):
    reason = explain_start(POINTS_ELSEWHERE, ["Loading weights took 0.01 seconds", written], AT)
    assert reason.startswith(sentence)
    assert "\n" not in reason
    own = written[written.index("Error: ") - 5 :]
    assert f"{own[:200]}" in reason.partition("(vLLM: ")[2]


@check_rows(
    ("error", "sentence"),
    [
        (  # the hub's client in a pod without internet (facebookresearch/bitsandbytes#34)
            OSError(
                "We couldn't connect to 'https://hub' to load this file, couldn't find it in the cached files and it "
                "looks like org/model is not the path to a directory containing a file named config.json."
            ),
            "the node has not all files of the model and reaches no hub: download it to an HF_HOME that the nodes read",
        ),
        (  # vLLM 0.29, config/model.py, as ray.serve.llm passes it on
            RuntimeError(
                "Failed to create vLLM engine config: 1 validation error for ModelConfig\n  Value error, "
                "User-specified max_model_len (16384) is greater than the derived max_model_len "
                "(max_position_embeddings=8192 or model_max_length=None in model's config.json)."
            ),
            "the model takes no prompts of deployments.big.window_tokens: lower deployments.big.window_tokens to 8192 "
            "(vLLM: 1 validation error for ModelConfig Value error, User-specified",
        ),
        (
            RuntimeError("Failed to create vLLM engine config: Unknown quantization method: no_such_method."),
            "vLLM: Unknown quantization method: no_such_method.",
        ),
    ],
)
def test_what_vllm_raises_before_its_engine_starts_is_told_the_same_way(error, sentence):
    assert explain_start(error, ["(EngineCore pid=1) ValueError: of an earlier engine"], AT).startswith(sentence)


def test_the_cause_is_told_and_not_what_followed_from_it():
    """Of two workers one runs out of memory, and the other loses it; each process ends by an error of its own."""
    written = [
        f"(Worker_TP1 pid=9) ERROR 05-01 14:39:06 [multiproc_executor.py:962] {OUT_OF_MEMORY}",
        f"(Worker_TP0 pid=8) ERROR 05-01 14:39:07 [multiproc_executor.py:962] {NCCL}",
        "(EngineCore pid=7) ERROR 05-01 14:39:07 [core.py:1136] Exception: WorkerProc initialization failed due to an "
        "exception in a background process. See stack trace for root cause.",
    ]
    assert "CUDA out of memory" in explain_start(POINTS_ELSEWHERE, written, AT)
    assert "no code for this GPU" in explain_start(
        POINTS_ELSEWHERE,
        [  # a worker that is an actor of Ray writes to a file of its own (vLLM 0.29, multiproc_executor.py)
            f"(EngineCore pid=7) RuntimeError: Worker failed with error '{NO_KERNEL.partition(': ')[2]}",
            "(EngineCore pid=7) CUDA kernel errors might be asynchronously reported at some other API call', please "
            "check the stack trace above for the root cause",
        ],
        AT,
    )
    task = "ray.exceptions.RayTaskError(OutOfMemoryError): ray::RayWorkerProc.initialize_worker() (pid=12, ip=10.0.0.2)"
    assert "CUDA out of memory" in explain_start(
        POINTS_ELSEWHERE, [f"(EngineCore pid=7) {task}", f"(EngineCore pid=7) {OUT_OF_MEMORY}"], AT
    )


def test_an_engine_that_ended_without_an_error_was_ended_by_the_system():
    killed = RuntimeError("Engine core initialization failed. See root cause above. Failed core proc(s): {'E': -9}")
    reason = explain_start(killed, ["(EngineCore pid=7) INFO 05-01 14:39:06 [utils.py:306] Using LBHNC layout."], AT)
    assert reason.startswith(
        "its process ended without an error: the system ends one when the node's memory is used up"
    )
    assert "{'E': -9}" in reason


@pytest.mark.parametrize("length", [100, 5000])
def test_of_a_long_message_the_sentence_and_the_way_out_stay(length):
    reason = explain_start(POINTS_ELSEWHERE, [f"ValueError: {'x' * length}"], AT)
    assert len(reason) < 600
    assert reason.startswith("vLLM: ValueError: xxx")
