"""Share GPUs among vLLM engines: one engine starts at a time, once there is room, and its energy is read.

NVML sees every GPU of this machine; Ray tells which of them a replica holds.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import get_current_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from kohaku_ray.errors import ConfigError

LOOK_S = 60.0
"""Longest wait for Ray to say which GPUs a replica holds: it starts a process for that."""

FREED_S = 20.0
"""Longest time in which a driver gives back the memory of a process that has just ended."""


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU as NVML sees it.

    Attributes:
        gpu: Ray's id of it.
        name: The product's name.
        free: Free bytes.
        total: All bytes.
        holders: Bytes by process that holds some.
    """

    gpu: str
    name: str
    free: int
    total: int
    holders: tuple[tuple[int, int], ...] = ()


async def gpus_held() -> list[str]:
    """Return Ray's ids of the GPUs of this machine that this replica's bundles hold; none where Ray does not say."""
    group = get_current_placement_group()
    if group is None:
        return []
    # Set for an engine of a data-parallel group, whose bundles are those of all its engines.
    bundle_indices = os.environ.get("VLLM_RAY_BUNDLE_INDICES")
    numbers = map(int, bundle_indices.split(",")) if bundle_indices else range(group.bundle_count)
    bundles = [number for number in numbers if group.bundle_specs[number].get("GPU")]
    task = ray.remote(num_cpus=0, num_gpus=0.001, max_retries=0)(_gpus_here)
    refs = [
        task.options(
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number)
        ).remote()
        for number in bundles
    ]
    here = ray.get_runtime_context().get_node_id()
    try:
        seen = await asyncio.wait_for(asyncio.gather(*refs), LOOK_S)
    except (RayError, TimeoutError):
        return []
    return [gpu for node, gpus in seen if node == here for gpu in gpus]


def check_gpus_known(gpus: Sequence[str], share: float, deployment: str) -> None:
    """Check that a replica with a share of a GPU knows which one: else it would not wait for those it shares it with.

    Raises:
        ConfigError: It does not.
    """
    if share < 1 and not gpus:
        raise ConfigError(
            f"Ray did not say within {LOOK_S:.0f} s which GPU this replica has {share:g} of, as its node was busy: it "
            f"cannot wait for the engines beside it ({deployment}.start_tries says how often it starts again)"
        )


def _gpus_here() -> tuple[str, list[str]]:
    return ray.get_runtime_context().get_node_id(), list(map(str, ray.get_gpu_ids()))


@asynccontextmanager
async def alone_on(gpus: Sequence[str]) -> AsyncIterator[None]:
    """Hold these GPUs of this machine while the block runs, so that other engines of this user wait to start on them.

    vLLM measures what it takes of a GPU by the whole card's free memory: what another engine takes or gives back
    meanwhile would count.
    """
    with ExitStack() as files:
        for gpu in sorted(gpus):
            name = os.path.join(tempfile.gettempdir(), f"kohaku_ray-{os.getuid()}-gpu-{gpu}.lock")
            file = files.enter_context(open(name, "a", encoding="utf-8"))
            await asyncio.to_thread(fcntl.flock, file, fcntl.LOCK_EX)
            files.callback(fcntl.flock, file, fcntl.LOCK_UN)  # a child process may have the file open, too
        yield


async def wait_for_room(gpus: Sequence[str], share: float, setting: str) -> None:
    """Wait until each GPU has the free memory that an engine will take, ``share`` of all its memory.

    Raises:
        ConfigError: After ``FREED_S`` one has not; the message says what holds it, and names the ``setting``.
    """
    until = asyncio.get_running_loop().time() + FREED_S
    while problem := lacks_room(read_cards(gpus), share, setting):
        if asyncio.get_running_loop().time() > until:
            raise ConfigError(problem)
        await asyncio.sleep(1.0)


def lacks_room(cards: Sequence[Card], share: float, setting: str) -> str:
    """Say which GPU has less free memory than ``share`` of it, and what holds it; empty: each has enough."""
    for card in cards:
        if card.free >= share * card.total:
            continue
        held = ", ".join(f"process {pid}: {_gib(size)}" for pid, size in card.holders)
        by = held or "by processes that this container does not see"
        return (
            f"GPU {card.gpu} ({card.name}) has {_gib(card.free)} of {_gib(card.total)} free but the engine takes "
            f"{share:g} of it, {_gib(share * card.total)}; it is held ({by}): end that, give the job other GPUs, or "
            f"set {setting} below {card.free / card.total:.2f}"
        )
    return ""


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"


def read_cards(gpus: Sequence[str]) -> list[Card]:
    """Read the memory of GPUs of this machine; those that NVML does not know are left out."""
    cards = []
    with suppress(Exception):  # no driver, or any error of NVML's
        nvml = _nvml()
        for gpu in gpus:
            handle = _handle(nvml, gpu)
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            processes = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
            holders = tuple((int(process.pid), int(process.usedGpuMemory or 0)) for process in processes)
            name = nvml.nvmlDeviceGetName(handle)
            cards.append(Card(gpu, str(name), int(memory.free), int(memory.total), holders))
    return cards


def read_joules(gpus: Sequence[str]) -> list[float | None]:
    """Read the energy that GPUs of this machine have used since their driver was loaded; None: NVML does not tell."""
    energies: list[float | None] = []
    for gpu in gpus:
        joules = None
        with suppress(Exception):
            nvml = _nvml()
            joules = float(nvml.nvmlDeviceGetTotalEnergyConsumption(_handle(nvml, gpu))) / 1000.0
        energies.append(joules)
    return energies


def _nvml() -> Any:
    from vllm.third_party import pynvml as untyped

    nvml: Any = untyped
    nvml.nvmlInit()
    return nvml


def _handle(nvml: Any, gpu: str) -> Any:
    """Find a GPU by Ray's id of it: its number, or its UUID where CUDA_VISIBLE_DEVICES names GPUs so."""
    return nvml.nvmlDeviceGetHandleByIndex(int(gpu)) if gpu.isdecimal() else nvml.nvmlDeviceGetHandleByUUID(gpu)
