"""Why a vLLM engine did not start, from what its processes raised and wrote, with what to change.

An engine is a process of its own, and so are its workers: the process that waits for it learns only that it ended.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

LONGEST_CAUSE = 500
"""Characters of vLLM's own message that are kept: its sentences are up to 450 long."""

_PREFIXES = re.compile(
    r"(?:\x1b\[[\d;]*m)*(?:\([^()]*pid=\d+[^()]*\)(?:\x1b\[[\d;]*m)* ?)*"  # (EngineCore pid=7), (Worker_TP1 pid=8)
    r"(?:(?:ERROR|CRITICAL) [\d-]+ [\d:]+ \[[\w./]+:\d+\] ?)?"  # vLLM's logger, before each line of a traceback
)
_ERROR = re.compile(r"(?:\w+\.)*\w*(?:Error|Exception)(?:\(\w+\))?: .+")
_ELSEWHERE = re.compile(
    r"(?:Engine core|WorkerProc|Engine process|Frontend process) (?:initialization )?failed|RayTaskError|"
    r"Executor failed|EngineDeadError"
)
"""Errors that say that another process has failed."""

_QUOTED = re.compile(r"^RuntimeError: (?:Worker failed with error '|Failed to create vLLM engine config: )")
"""Errors that give another's message: a worker's, or that of the task which reads an engine's settings."""


class Cause(NamedTuple):
    """A cause that engines fail by: what vLLM or PyTorch writes, what that means, and the way out.

    ``{at}`` is the deployment's key, and ``{}`` in ``way_out`` the number that ``pattern`` finds.
    """

    pattern: str
    meaning: str
    way_out: str


CAUSES = (
    Cause(
        r"CUDA out of memory|CUDA error: out of memory",
        "the GPU has too little memory for the model's weights and one step",
        "raise {at}.tensor_parallel, lower {at}.engine_kwargs.max_num_batched_tokens, or take larger GPUs",
    ),
    Cause(
        r"No available memory for the cache blocks",
        "the weights leave no memory to the KV cache",
        "raise {at}.tensor_parallel or {at}.engine_kwargs.gpu_memory_utilization, or take larger GPUs",
    ),
    Cause(
        r"estimated maximum model length is (\d+)",
        "the KV cache has no room for one prompt of {at}.window_tokens",
        "lower {at}.window_tokens to {}, raise {at}.tensor_parallel, or take larger GPUs",
    ),
    Cause(
        r"Free memory on device .* is less than desired GPU memory utilization",
        "something else holds a part of the GPU's memory",
        "end it, or lower {at}.engine_kwargs.gpu_memory_utilization",
    ),
    Cause(
        r"greater than the derived max_model_len \(\w+=(\d+)",
        "the model takes no prompts of {at}.window_tokens",
        "lower {at}.window_tokens to {}",
    ),
    Cause(
        r"Bfloat16 is only supported on GPUs",
        "the GPU does not compute in the model's format",
        "set {at}.engine_kwargs.dtype to float16",
    ),
    Cause(
        r"no kernel image is available",
        "the installed torch or vLLM has no code for this GPU",
        "take GPUs of compute capability 7.5 or later (T4, L4, A100, H100 and later), or a build for this one",
    ),
    Cause(
        r"NVIDIA driver on your system is too old|driver version is insufficient",
        "NVIDIA's driver is older than the CUDA 13 of torch and vLLM",
        "install driver 580 or later on the nodes with GPUs",
    ),
    Cause(
        r"does not support ray|Failed to infer device type|No CUDA GPUs are available|not compiled with CUDA",
        "the installed vLLM or torch cannot use the GPUs that Ray has",
        "install kohaku-ray[gpu] on their nodes, or set {at}.cpus to run it without",
    ),
    Cause(
        r"couldn't connect to|Cannot reach|cannot find the requested files|LocalEntryNotFound|OfflineMode|"
        r"name resolution|Max retries exceeded|Network is unreachable|Connection refused",
        "the node has not all files of the model and reaches no hub",
        "download it to an HF_HOME that the nodes read (cluster/shared.yaml does), or let {at}.model name a directory",
    ),
    Cause(
        r"nvcc|'ninja'|cubin",
        "FlashInfer has no ready kernel for this and could not compile or download one",
        "set {at}.engine_kwargs.attention_config to {{backend: FLASH_ATTN}}, or use cluster/Containerfile's image",
    ),
    Cause(
        r"SafetensorError",
        "a file of the model's weights is cut or damaged",
        "download it again, all files of it",
    ),
    # After the others: where one worker has failed, those beside it lose it.
    Cause(
        r"NCCL error|DistBackendError",
        "the engine's GPUs do not reach each other (NCCL)",
        "set {at}.env.NCCL_DEBUG to INFO, whose lines say why; containers need a /dev/shm of 16 GiB (`--shm-size`)",
    ),
)


def explain_start(error: BaseException, written: Sequence[str], at: str) -> str:
    """Say in one line why an engine did not start, what to change, and vLLM's own words.

    Args:
        error: What was raised where it was waited for.
        written: Lines that its processes wrote meanwhile, in any order of processes.
        at: The deployment's key, such as ``deployments.qwen``.
    """
    raised = f"{type(error).__name__}: {' '.join(str(error).split())}"
    said = [raised] if _ERROR.match(raised) and not _ELSEWHERE.search(raised) else list(_errors(written))
    if not said:
        return (
            "its process ended without an error: the system ends one when the node's memory is used up; give the node "
            f"or pod more than the weights' size (vLLM: {raised[:LONGEST_CAUSE]})"
        )
    for cause in CAUSES:
        for text in said:
            if found := re.search(cause.pattern, text):
                meaning, way_out = (part.format(*found.groups(), at=at) for part in cause[1:])
                return f"{meaning}: {way_out} (vLLM: {_cut(text)})"
    return f"vLLM: {_cut(said[-1])}"


def _errors(written: Sequence[str]) -> Iterator[str]:
    """Find the last lines of tracebacks, but those that only point to another process."""
    for line in written:
        text = _PREFIXES.sub("", line, count=1).rstrip()
        if _ERROR.match(text) and not _ELSEWHERE.search(text):
            yield text


def _cut(text: str) -> str:
    text = _QUOTED.sub("", text).removesuffix("', please check the stack trace above for the root cause")
    return text if len(text) <= LONGEST_CAUSE else text[:LONGEST_CAUSE] + " …"
