"""Fixtures shared by all rooms: the sample data's place, and one Ray cluster a test run."""

from __future__ import annotations

import asyncio
import functools
import inspect
import ipaddress
import os
import socket
import sys
import warnings
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Any

import kit.properties  # noqa: F401  loads the hypothesis profile
import psutil
import pytest
from kit import s3_server as s3_server_process
from kit.answers import KEY
from kit.durations import Durations
from kit.installed import IMPORTED, SLOW_TO_IMPORT
from kit.s3_server import FaultyS3

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_enable_metrics_collection", "1")  # test_prometheus reads them
os.environ.setdefault("RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S", "0")  # a node that is stopped would wait 30 s
os.environ.setdefault("RAY_metrics_report_interval_ms", "2000")  # ... and would wait 10 s for each
# Keys for the local S3 server and a model's, set before Ray's workers start; no test reaches another one.
os.environ |= {
    "OUR_KEY": KEY,
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_ENDPOINT_URL": "http://127.0.0.1:9",  # nobody answers there: a test that names no server of its own asks none
}

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # workers share the cores; threads of each would crowd them

BESIDE_ENGINES = ("ignore::ResourceWarning",)
"""Ray and the engines leave sockets and files to the garbage collector, which meets them in any later test."""

DATA = Path(os.environ.get("KOHAKU_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))


@pytest.fixture(scope="session")
def data_path() -> Path:
    """Real data that is no part of the project; tests that read it are skipped where it is not there."""
    if not DATA.is_dir():
        pytest.skip(f"no real data at {DATA}: set KOHAKU_DATA")
    return DATA


@pytest.fixture(scope="session")
def tiny_encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Path of a random encoder that knows the sample's words: for tests to which the vectors' quality is nothing."""
    from kit import tiny_encoder

    from kohaku_ray import sample

    files = [file for file in Path(sample.path("documents")).iterdir() if file.suffix != ".pdf"]
    texts = [file.read_text(encoding="utf-8") for file in files]
    return tiny_encoder.build(tmp_path_factory.mktemp("tiny_encoder"), texts)


@pytest.fixture(scope="session")
def sample_here(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Path of the sample collection's index, built in this process: for tests with a Ray of their own."""
    from kit.runs_here import index_here

    from kohaku_ray.config import load_config

    path = str(tmp_path_factory.mktemp("sample_here") / "index")
    index_here(load_config("demo", [f"index.path={path}"]))
    return path


@pytest.fixture(scope="session")
def news_index(tiny_encoder, tmp_path_factory) -> str:
    """Path of the index of the news sample, for system hybrid, by an encoder that loads at once."""
    from kit.runs_here import index_here

    from kohaku_ray.config import load_config

    path = str(tmp_path_factory.mktemp("news") / "index")
    index_here(load_config("hybrid", [f"index.path={path}", f"index.encoder.model={tiny_encoder}"]))
    return path


@pytest.fixture(scope="session")
def s3_server() -> Iterator[FaultyS3]:
    """A local S3 server with a bucket."""
    pytest.importorskip("moto")
    with s3_server_process.serving() as server:
        yield server


@pytest.fixture
def s3(s3_server: FaultyS3) -> FaultyS3:
    """The S3 server, without faults; its bucket keeps what other tests wrote."""
    s3_server.faults.clear()
    s3_server.met.clear()
    s3_server.requests.clear()
    return s3_server


@pytest.fixture(autouse=True)
def impatient(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two attempts per request to an object store: one that stays down is waited for in ``patient`` tests."""
    if "patient" not in request.fixturenames:
        monkeypatch.setattr("kohaku_ray.store.storage.ATTEMPTS", 2)


@pytest.fixture
def patient() -> Iterator[None]:
    """As many attempts per request to an object store as a job makes."""
    from kohaku_ray.store import storage

    storage._patient.cache_clear()
    yield
    storage._patient.cache_clear()


@pytest.fixture(autouse=True)
def on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse connections of this process to other machines."""
    connect = socket.socket.connect

    def connect_here(self: socket.socket, address: Any) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6) and address[0] != "localhost":
            host = ipaddress.ip_address(address[0])
            assert host.is_loopback or host in own_addresses(), f"a test asks {host}: serve here what it needs"
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", connect_here)


@functools.cache
def own_addresses() -> set[IPv4Address | IPv6Address]:
    """Addresses of this machine: Ray takes one of them where it is started by its own command."""
    families = (socket.AF_INET, socket.AF_INET6)
    cards = [address for card in psutil.net_if_addrs().values() for address in card if address.family in families]
    return {ipaddress.ip_address(address.address.partition("%")[0]) for address in cards}


@pytest.fixture(scope="session")
def cluster() -> Iterator[str]:
    """One local Ray cluster for the whole test run; yields the address other drivers join it by."""
    import ray

    from kohaku_ray.config.schema import ClusterConfig
    from kohaku_ray.engine.cluster import connect

    # Declared, not there: actors that wait need no core.
    with connect(ClusterConfig(num_cpus=6, object_store_gib=0.5)):
        yield ray.get_runtime_context().gcs_address


def pytest_configure(config: pytest.Config) -> None:
    """Sum what a tier's tests take, in the process that hears of all."""
    if (tier := os.environ.get("TIER")) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Durations(tier))


@pytest.hookimpl(tryfirst=True)
def pytest_unconfigure() -> None:
    """Show what threads and the garbage collector meet after the last test; it is no test's failure."""
    for kind in (pytest.PytestUnraisableExceptionWarning, pytest.PytestUnhandledThreadExceptionWarning):
        warnings.simplefilter("default", kind)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is ``async`` in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Note which file's import brought a package that takes seconds, by whatever chain: kit/test_suite.py reads it."""
    for package in SLOW_TO_IMPORT:
        if package in sys.modules:
            IMPORTED.setdefault(package, report.nodeid)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what uses the cluster: an unmarked test would start one in every parallel worker."""
    for item in items:
        if "cluster" in getattr(item, "fixturenames", ()):
            item.add_marker("ray")
        if any(map(item.get_closest_marker, ("ray", "slow", "vllm", "chaos"))):
            item.add_marker(pytest.mark.filterwarnings(*BESIDE_ENGINES))
