"""Whether torch can use the GPUs of this machine: files are read, and neither torch nor a driver is loaded."""

from __future__ import annotations

import glob
import importlib.util
import re
from pathlib import Path

from kohaku_ray.records import pluralize

NVIDIA_DEVICES = "/dev/nvidia[0-9]*"
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
NVIDIA_COMPAT = "/usr/local/cuda*/compat/libcuda.so*"
"""With it, a data centre's GPU runs programs of a later CUDA than its driver's."""
AMD_DEVICE, ROCM = Path("/dev/kfd"), Path("/opt/rocm")

DRIVER_OF_CUDA = {13: 580}
"""The first major version of NVIDIA's driver for a CUDA (CUDA's release notes, table of minimum drivers)."""


def has_gpus() -> bool:
    """Return whether this machine has GPUs of NVIDIA's, whatever can use them."""
    return bool(glob.glob(NVIDIA_DEVICES))


def local_gpus() -> int:
    """Return the GPUs that a local cluster would use: NVIDIA's, if torch can use them."""
    return 0 if unusable_gpus() else len(glob.glob(NVIDIA_DEVICES))


def unusable_gpus() -> str:
    """Say why torch cannot use this machine's GPUs and what mends it; empty: it can, or there are none."""
    n, build = len(glob.glob(NVIDIA_DEVICES)), _torch_build()
    is_amd = AMD_DEVICE.exists() and ROCM.exists()
    if build is None or not (n or is_amd):
        return ""
    version, cuda, hip = build
    if not n and hip is None:
        return f"the GPUs are AMD's but torch {version} has no ROCm, nor do vLLM and FAISS of kohaku-ray[gpu]"
    if not n:
        return ""
    if cuda is None:
        return (
            f"{pluralize(n, 'GPU')} there, but torch {version} is built without CUDA: pip install 'kohaku-ray[gpu]' "
            "with a torch for CUDA (without UV_TORCH_BACKEND=cpu)"
        )
    least = DRIVER_OF_CUDA.get(int(cuda.partition(".")[0]), 0)
    driver = _driver()
    if driver and int(driver.partition(".")[0]) < least and not glob.glob(NVIDIA_COMPAT):
        return (
            f"{pluralize(n, 'GPU')} there, but NVIDIA's driver is {driver} and torch {version} is built for CUDA "
            f"{cuda}: install driver {least} or later"
        )
    return ""


def _torch_build() -> tuple[str, str | None, str | None] | None:
    """Return torch's version, and those of CUDA and ROCm that it was built for; None: it is not installed."""
    directory = _torch_directory()
    if directory is None or not (directory / "version.py").is_file():
        return None
    text = (directory / "version.py").read_text(encoding="utf-8")
    values = dict(re.findall(r"^(\w+)(?:: [\w\[\]]+)? = '([^']+)'", text, re.MULTILINE))
    return values.get("__version__", ""), values.get("cuda"), values.get("hip")


def _torch_directory() -> Path | None:
    found = importlib.util.find_spec("torch")  # which does not import it
    return Path(found.submodule_search_locations[0]) if found and found.submodule_search_locations else None


def _driver() -> str:
    try:
        found = re.search(r"Kernel Module.*?\b(\d{3,}\.[\d.]+)", NVIDIA_DRIVER.read_text(encoding="utf-8"))
    except OSError:
        return ""
    return found[1] if found else ""
