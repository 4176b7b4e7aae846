"""llama.cpp's server behind the endpoint encoder: its vectors are the model's, whatever a batch holds."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
from kit import tiny_gguf, tiny_llama
from kit.installed import needs
from kit.model_server import started_server

from kohaku_ray.errors import ModelError
from kohaku_ray.index.endpoint import EndpointEncoder
from kohaku_ray.index.settings import EndpointConfig
from kohaku_ray.models.endpoint import Endpoint

PROGRAM = shutil.which("llama-server")
pytestmark = [
    needs("gguf"),
    pytest.mark.skipif(PROGRAM is None, reason="no llama-server in PATH"),
    pytest.mark.slow,
    pytest.mark.timeout(300),
]

TEXTS = [f"Hall {n} of the data center drew {n * 7} kW{' of power' * (n % 9)}." for n in range(60)]
DIM, WINDOW = 64, 128


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    import torch
    from transformers import LlamaForCausalLM

    path = tiny_llama.build(tmp_path_factory.mktemp("llama"), TEXTS * 5, hidden=DIM)
    llama = LlamaForCausalLM.from_pretrained(path)
    with torch.no_grad():
        llama.model.embed_tokens.weight.normal_()  # vectors far enough apart that an order is one
    llama.save_pretrained(path)
    return path


def llama_server(model: str, folder: Path, n_slots: int) -> AbstractContextManager[str]:
    file = tiny_gguf.write(model, folder / "tiny.gguf")
    command = [str(PROGRAM), "-m", str(file), "--embedding", "--pooling", "mean", "--no-repack", "--no-webui"]
    return started_server([*command, "-c", str(n_slots * WINDOW), "-np", str(n_slots), "-t", "2"], folder / "log")


@pytest.fixture(scope="module")
def base_url(model, tmp_path_factory) -> Iterator[str]:
    with llama_server(model, tmp_path_factory.mktemp("server"), 1) as url:
        yield url


def encoder(base_url: str, path: str = "", **given: object) -> EndpointEncoder:
    settings = EndpointConfig(kind="openai", base_url=base_url, model="tiny", api_key_env=None, **given)
    return EndpointEncoder(settings, Endpoint.of_encoder(settings), path)


@pytest.fixture(scope="module")
def expected(model) -> np.ndarray:
    """The mean of the last layer's states, by transformers."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer, llama = AutoTokenizer.from_pretrained(model), AutoModel.from_pretrained(model).eval()
    with torch.no_grad():
        states = [llama(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0) for text in TEXTS]
    return torch.nn.functional.normalize(torch.stack(states)).numpy()


def test_vectors_are_the_models_in_the_order_asked(base_url, expected):
    encode = encoder(base_url, batch_texts=16).encode_passages
    vectors = encode(TEXTS)
    assert (vectors @ vectors.T - np.eye(len(TEXTS)) < 0.9999).all()
    assert vectors.shape == (len(TEXTS), DIM)
    np.testing.assert_allclose(vectors, expected, atol=1e-3)
    np.testing.assert_allclose(encode([*TEXTS[::-1], TEXTS[0]]), [*vectors[::-1], vectors[0]], atol=1e-4)


def test_a_batch_gives_what_single_requests_give(base_url):
    served = encoder(base_url, batch_texts=16)
    single = np.stack([encoder(base_url, batch_texts=1).encode_passages([text])[0] for text in TEXTS])
    np.testing.assert_allclose(served.encode_passages(TEXTS), single, atol=1e-4)
    np.testing.assert_allclose(served.encode_queries(TEXTS), single, atol=1e-4)


def test_a_text_beyond_the_servers_window_is_encoded_in_parts(base_url):
    [long] = encoder(base_url).encode_passages([" ".join(TEXTS)])
    assert np.linalg.norm(long) == pytest.approx(1, abs=1e-5)


def test_other_dimensions_than_asked_for_are_refused(base_url):
    with pytest.raises(ModelError, match=r"returned a vector of 64 dimensions but 32 were asked for"):
        encoder(base_url, dimensions=32).encode_passages(TEXTS[:2])


def test_vectors_of_several_slots_are_the_models_or_no_index_is_made(model, expected, tmp_path):
    with llama_server(model, tmp_path, 4) as url:
        vectors = encoder(url, batch_texts=16).encode_passages(TEXTS)
        checked = encoder(url, path=str(tmp_path / "index"))
        if np.allclose(vectors, expected, atol=1e-3):
            checked.check(writes=True)
        else:  # ggml-org/llama.cpp#26282
            with pytest.raises(ModelError, match="mixes texts that it encodes together"):
                checked.check(writes=True)
