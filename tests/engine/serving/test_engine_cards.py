"""GPUs before and while an engine runs, by an NVML of our own: no machine here has one."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import types
from types import SimpleNamespace

import pytest

from kohaku_ray.engine.serving import cards
from kohaku_ray.engine.serving.cards import alone_on, check_gpus_known, read_cards, read_joules, wait_for_room
from kohaku_ray.errors import ConfigError
from kohaku_ray.models.vllm import VllmConfig
from kohaku_ray.models.vllm_arguments import engine_kwargs

GIB = 1 << 30
SETTING = "deployments.big.engine_kwargs.gpu_memory_utilization"


@pytest.fixture
def nvml(monkeypatch):
    """NVML's memory and energy by GPU, which a test may change."""
    state = {"0": {"free": 79 * GIB, "held": [], "mj": 5000}, "GPU-abc": {"free": 4 * GIB, "held": [(77, 70 * GIB)]}}
    module = types.ModuleType("vllm.third_party.pynvml")
    module.nvmlInit = lambda: None
    module.nvmlDeviceGetHandleByIndex = lambda number: state[str(number)]
    module.nvmlDeviceGetHandleByUUID = lambda uuid: state[uuid]
    module.nvmlDeviceGetMemoryInfo = lambda gpu: SimpleNamespace(free=gpu["free"], total=80 * GIB)
    module.nvmlDeviceGetComputeRunningProcesses = lambda gpu: [
        SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in gpu["held"]
    ]
    module.nvmlDeviceGetName = lambda gpu: "NVIDIA H100 80GB HBM3"
    module.nvmlDeviceGetTotalEnergyConsumption = lambda gpu: gpu["mj"]
    parent = types.ModuleType("vllm.third_party")
    parent.pynvml = module
    for name, package in (("vllm", types.ModuleType("vllm")), ("vllm.third_party", parent)):
        monkeypatch.setitem(sys.modules, name, package)
    monkeypatch.setattr(cards, "FREED_S", 0.5)
    return state


def test_a_gpu_that_another_process_holds_is_named_with_both_sizes_before_the_engine_starts(nvml):
    asyncio.run(wait_for_room(["0"], 0.92, SETTING))
    with pytest.raises(
        ConfigError,
        match=r"GPU GPU-abc \(NVIDIA H100 80GB HBM3\) has 4\.0 GiB of 80\.0 GiB free but the engine takes 0\.92 of it, "
        r"73\.6 GiB; it is held \(process 77: 70\.0 GiB\): .*gpu_memory_utilization below 0\.05",
    ):
        asyncio.run(wait_for_room(["0", "GPU-abc"], 0.92, SETTING))


async def test_a_gpu_that_an_ended_process_still_gives_back_is_waited_for(nvml):
    waiting = asyncio.create_task(wait_for_room(["GPU-abc"], 0.92, SETTING))
    await asyncio.sleep(0.1)
    nvml["GPU-abc"]["free"] = 79 * GIB
    await waiting


def test_a_replica_that_does_not_know_which_gpu_it_shares_does_not_start():
    """On a slow node Ray's task was not up in time, and the lock was lost without a word (findings/gpu5.md, G11)."""
    with pytest.raises(ConfigError, match=r"did not say within 60 s which GPU this replica has 0\.5 of.*big\.start_tr"):
        check_gpus_known([], 0.5, "deployments.big")
    check_gpus_known(["0"], 0.5, "deployments.big")
    check_gpus_known([], 1, "deployments.big")


def test_energy_is_read_beside_the_engine_and_a_gpu_without_a_counter_has_none(nvml):
    assert read_joules(["0", "GPU-abc"]) == [5.0, None]


def test_without_a_driver_nothing_is_known_and_nothing_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm.third_party", None)
    assert read_cards(["0"]) == []
    assert read_joules(["0"]) == [None]
    asyncio.run(wait_for_room(["0"], 0.92, SETTING))


async def test_engines_of_other_processes_wait_to_start_on_a_shared_gpu(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    program = (
        "import asyncio\nfrom kohaku_ray.engine.serving.cards import alone_on\n"
        "async def run():\n    async with alone_on(['{gpu}']):\n        print('in', flush=True)\nasyncio.run(run())"
    )
    async with alone_on(["0"]):
        mine, other = (
            subprocess.Popen([sys.executable, "-c", program.format(gpu=gpu)], stdout=subprocess.PIPE, text=True)
            for gpu in ("0", "1")
        )
        assert other.communicate(timeout=60)[0] == "in\n", "another GPU"
        with pytest.raises(subprocess.TimeoutExpired):
            mine.wait(1)
    assert mine.communicate(timeout=60)[0] == "in\n"


def test_the_memory_an_engine_takes_is_the_configurations_or_vllms_own():
    assert (
        VllmConfig(model="m", gpus=0.5).memory_share
        == engine_kwargs(VllmConfig(model="m", gpus=0.5))["gpu_memory_utilization"]
    )
    assert VllmConfig(model="m", engine_kwargs={"gpu_memory_utilization": 0.3}).memory_share == 0.3
    cache = pytest.importorskip("vllm.config.cache")
    assert (
        VllmConfig(model="m").memory_share
        == cache.CacheConfig.__dataclass_fields__["gpu_memory_utilization"].default.default
    )
