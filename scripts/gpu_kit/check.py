"""On the GPU machine: say what is there, then use each library of the packs that were unpacked once on the GPU.

check.py bare|vllm|serve
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version

NAMES = "torch triton transformers sentence-transformers numpy pyarrow pydantic ray faiss-gpu vllm pytest hypothesis"


def run(command: str) -> str:
    """Return what a shell prints, in one line."""
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    return done.stdout.strip().replace("\n", "; ")


def print_machine() -> None:
    """Print the GPU, the machine and the versions of what is installed."""
    print("GPU:", run("nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader"))
    print(f"python {sys.version.split()[0]}, {os.cpu_count()} cores;", run("free -g | head -2"), run("df -h /tmp"))
    print("compilers:", run("which nvcc gcc ninja xz"))
    installed = []
    for name in NAMES.split():
        try:
            installed.append(f"{name} {version(name)}")
        except importlib.metadata.PackageNotFoundError:
            installed.append(f"{name}: none")
    print("versions:", ", ".join(installed))


def matmul() -> str:
    """Multiply two matrices by torch."""
    import torch

    a = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16)
    exact = a.double() @ a.double()
    error = ((a @ a).double() - exact).norm() / exact.norm()
    assert error < 1e-2
    return f"torch {torch.__version__}, {torch.cuda.get_device_name()}, relative error {error:.1e}"


def flat() -> str:
    """Search a flat index by FAISS, there and on the CPU."""
    import faiss
    import numpy as np

    rng = np.random.default_rng(0)
    vectors, queries = (rng.standard_normal((n, 384), dtype=np.float32) for n in (100_000, 64))
    index = faiss.IndexFlatIP(384)
    index.add(vectors)
    on_gpu = faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), 0, index)
    same = float((on_gpu.search(queries, 16)[1] == index.search(queries, 16)[1]).mean())
    assert same > 0.999, same
    return f"faiss {faiss.__version__}: {same:.4f} of the hits are the CPU's"


def cluster() -> str:
    """Run a task with a GPU by Ray."""
    import ray

    ray.init("local", num_gpus=1, include_dashboard=False, log_to_driver=False)

    @ray.remote(num_gpus=1)
    def name_gpu() -> str:
        import torch

        return str(torch.cuda.get_device_name())

    name = ray.get(name_gpu.remote(), timeout=120)
    ray.shutdown()
    return f"ray {version('ray')}: a task with a GPU sees {name}"


def modules(*names: str) -> Callable[[], str]:
    """Make a step that imports modules."""

    def load() -> str:
        for name in names:
            importlib.import_module(name)
        return ", ".join(names)

    return load


def kernels() -> str:
    """Run a kernel of each thinned library of vLLM."""
    import torch
    import vllm._custom_ops as ops
    from vllm.vllm_flash_attn import flash_attn_varlen_func

    x, w = torch.randn(64, 4096).cuda().bfloat16(), torch.ones(4096).cuda().bfloat16()
    out = torch.empty_like(x)
    ops.rms_norm(out, x, w, 1e-6)
    torch.testing.assert_close(out, torch.nn.functional.rms_norm(x, (4096,), w, 1e-6), atol=2e-2, rtol=2e-2)
    q, k, v = (torch.randn(256, 8, 128).cuda().bfloat16() for _ in range(3))
    ends = torch.tensor([0, 256], device="cuda", dtype=torch.int32)
    lengths = {"max_seqlen_q": 256, "cu_seqlens_q": ends, "max_seqlen_k": 256, "cu_seqlens_k": ends}
    attended = flash_attn_varlen_func(q=q, k=k, v=v, causal=True, fa_version=3, **lengths)
    heads = (each.transpose(0, 1)[None].float() for each in (q, k, v))
    plain = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
    torch.testing.assert_close(attended.float(), plain[0].transpose(0, 1), atol=3e-2, rtol=3e-2)
    return "rms_norm and flash attention 3 agree with torch"


STEPS: dict[str, list[Callable[[], str]]] = {
    "bare": [matmul, flat, modules("kohaku_ray.index.vectors", "kohaku_ray.models.transformers")],
    "vllm": [matmul, modules("vllm.v1.engine.async_llm", "kohaku_ray.models.vllm_offline"), kernels],
    "serve": [
        *[matmul, flat, cluster, modules("ray.serve.llm", "kohaku_ray.engine.serving.vllm_replica"), kernels],
        modules("kohaku_ray.engine.jobs.answer", "kohaku_ray.engine.jobs.index"),
    ],
}


def main() -> int:
    """Make the steps of a visit; the exit code says whether all of them did."""
    print_machine()
    n_failed = 0
    for step in STEPS[sys.argv[1]]:
        try:
            print("ok    ", step(), flush=True)
        except Exception as error:  # say it and go on
            n_failed += 1
            print("FAILED", step.__name__, f"{type(error).__name__}: {' '.join(str(error).split())[:500]}", flush=True)
    return int(n_failed > 0)


if __name__ == "__main__":
    sys.exit(main())
