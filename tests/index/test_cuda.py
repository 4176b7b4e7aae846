"""GPUs that torch cannot use, by the files of a driver and of torch's build: no machine here has a GPU."""

from __future__ import annotations

import pytest

from kohaku_ray.checks.demand import answer_demand, check_demand, local_node
from kohaku_ray.checks.validate import validate
from kohaku_ray.config import load_config
from kohaku_ray.config.sections import ClusterConfig
from kohaku_ray.errors import ConfigError
from kohaku_ray.index import cuda

DRIVER = (
    "NVRM version: NVIDIA UNIX {module}  {version}  Tue Sep  9 17:07:51 UTC 2025\n"
    "GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04.2)\n"
)
"""/proc/driver/nvidia/version, of the closed driver's module or of the open one."""

BUILD = (
    "from typing import Optional\n\n__version__ = '{version}'\ndebug = False\ncuda: Optional[str] = {cuda}\n"
    "git_version = 'cf30153c'\nhip: Optional[str] = {hip}\n"
)
"""torch/version.py (2.13.0)."""


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Make a machine of so many GPUs, with a driver and a build of torch."""

    def make(*, gpus=0, driver="580.82.07", is_open=False, amd=False, version="2.13.0+cu130", build="'13.0'", hip=None):
        for number in range(gpus):
            (tmp_path / f"nvidia{number}").touch()
        module = "Open Kernel Module for x86_64" if is_open else "x86_64 Kernel Module"
        (tmp_path / "version").write_text(DRIVER.format(module=module, version=driver))
        (tmp_path / "torch").mkdir(exist_ok=True)
        (tmp_path / "torch" / "version.py").write_text(BUILD.format(version=version, cuda=build, hip=hip))
        if amd:
            (tmp_path / "kfd").touch()
            (tmp_path / "rocm").mkdir()
        return tmp_path

    monkeypatch.setattr(cuda, "NVIDIA_DEVICES", f"{tmp_path}/nvidia[0-9]*")
    monkeypatch.setattr(cuda, "NVIDIA_DRIVER", tmp_path / "version")
    monkeypatch.setattr(cuda, "NVIDIA_COMPAT", f"{tmp_path}/compat/libcuda.so*")
    monkeypatch.setattr(cuda, "AMD_DEVICE", tmp_path / "kfd")
    monkeypatch.setattr(cuda, "ROCM", tmp_path / "rocm")
    monkeypatch.setattr(cuda, "_torch_directory", lambda: tmp_path / "torch")
    return make


@pytest.mark.parametrize(
    ("made", "usable", "reason"),
    [
        ({}, 0, ""),
        ({"gpus": 2}, 2, ""),
        ({"gpus": 2, "is_open": True}, 2, ""),
        ({"gpus": 2, "version": "2.13.0+cpu", "build": None}, 0, "2 GPUs there, but torch 2.13.0+cpu is built without"),
        (
            {"gpus": 1, "driver": "550.90.07"},
            0,
            "1 GPU there, but NVIDIA's driver is 550.90.07 and torch 2.13.0+cu130 is built for CUDA 13.0: install "
            "driver 580 or later",
        ),
        ({"gpus": 1, "driver": "570.124.06", "is_open": True}, 0, "NVIDIA's driver is 570.124.06 and "),
        ({"gpus": 1, "driver": "550.90.07", "version": "2.11.0", "build": "'12.8'"}, 1, ""),
        ({"amd": True}, 0, "the GPUs are AMD's but torch 2.13.0+cu130 has no ROCm"),
        ({"amd": True, "hip": "'7.0'", "build": None}, 0, ""),
    ],
)
def test_gpus_that_torch_cannot_use_are_not_counted_and_the_reason_is_said(machine, made, usable, reason):
    machine(**made)
    assert cuda.local_gpus() == usable
    assert reason in cuda.unusable_gpus()
    assert bool(reason) == bool(cuda.unusable_gpus())


def test_an_older_driver_with_cudas_compatibility_library_is_used(machine):
    path = machine(gpus=1, driver="550.90.07")
    (path / "compat").mkdir()
    (path / "compat" / "libcuda.so.580.82.07").touch()
    assert cuda.local_gpus() == 1


def test_a_job_is_refused_and_validate_says_why_before_anything_starts(machine, tmp_path):
    machine(gpus=2, driver="550.90.07")
    reason = r"NVIDIA's driver is 550\.90\.07 and torch 2\.13\.0\+cu130 is built for CUDA 13\.0: install driver 580"
    served = load_config(None, ["deployments.big={kind: vllm, model: org/model}", "model=big"])
    assert local_node(served)["GPU"] == 0
    with pytest.raises(ConfigError, match=rf"the cluster has 0 GPUs but .* need.* 1 \(2 GPUs there, but {reason}"):
        check_demand(answer_demand(served), local_node(served))
    found = validate(load_config("demo", [f"run={tmp_path}/run", f"index.path={tmp_path}/index"]))
    assert [line for line in found.lines if "warning: 2 GPUs there, but NVIDIA's driver is 550.90.07" in line]


def test_a_local_cluster_says_why_it_leaves_gpus_out(machine, monkeypatch, capsys):
    from kohaku_ray.engine import cluster

    machine(gpus=2, version="2.13.0+cpu", build=None)
    started = []
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr(cluster, "_start", lambda settings, until_end, is_last: started.append(settings) or True)
    monkeypatch.setattr(cluster, "compile_agents", lambda: None)
    with cluster.connect(ClusterConfig()):
        pass
    assert started[0]["num_gpus"] == 0
    assert "ray     2 GPUs there, but torch 2.13.0+cpu is built without CUDA" in capsys.readouterr().err


def test_an_encoder_that_ray_gave_a_gpu_which_torch_cannot_use_is_refused(machine, tiny_encoder, monkeypatch):
    """It encoded on CPUs, in as many processes as there were GPUs, without a word (findings/gpu6.md, A4)."""
    from kohaku_ray.collection.indexes import make_encoder

    config = load_config("demo", [f"index.encoder.model={tiny_encoder}"])
    make_encoder(config, on_gpu=True).encode_passages(["a GPU that Ray was told of"])
    machine(gpus=1, version="2.13.0+cpu", build=None)
    with pytest.raises(
        ConfigError, match=r"Ray gave it a GPU, but 1 GPU there, but torch 2\.13\.0\+cpu is built without"
    ):
        make_encoder(config, on_gpu=True).encode_passages(["one that is there"])
    make_encoder(config, on_gpu=False).encode_passages(["on CPUs"])
    make_encoder(load_config("demo", [f"index.encoder.model={tiny_encoder}", "index.encoder.device=cpu"]), on_gpu=True)
