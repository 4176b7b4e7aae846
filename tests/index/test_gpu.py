"""FAISS and the encoder on a GPU: on a real one where there is one, else on stand-ins with a GPU's limits."""

from types import SimpleNamespace

import faiss
import numpy as np
import pytest
import torch

from kohaku_ray.errors import ConfigError, DataError
from kohaku_ray.index import gpu
from kohaku_ray.index.encoder import SentenceEncoder
from kohaku_ray.index.vectors import VectorIndex
from tests.index.test_encoder import MODEL


class LimitedIndex:
    """A flat FAISS index with a GPU's limits: 2,048 neighbours, sums in another order."""

    def __init__(self, resources, index):
        self.vectors, self.resources, self.asked = index.reconstruct_n(0, index.ntotal), resources, []

    def search(self, queries, n):
        if n > 2048:
            raise RuntimeError("k must be <= 2048")
        self.asked.append(n)
        scores = queries[:, ::-1] @ self.vectors[:, ::-1].T
        places = np.argsort(-scores, axis=1, kind="stable")[:, ::-1][:, -n:][:, ::-1]
        return np.take_along_axis(scores, places, axis=1), places


@pytest.fixture(params=["stand-in", pytest.param("real", marks=pytest.mark.gpu)])
def a_gpu(request, monkeypatch):
    gpu._resources.cache_clear()
    made = []
    if request.param == "stand-in":

        def clone(resources, device, index):
            if not type(index).__name__.startswith("IndexFlat"):
                raise RuntimeError("Error in clone_Index:\nThis index type is not implemented on GPU.")
            made.append(LimitedIndex(resources, index))
            return made[-1]

        monkeypatch.setattr(faiss, "StandardGpuResources", SimpleNamespace, raising=False)
        monkeypatch.setattr(faiss, "get_num_gpus", lambda: 1)
        monkeypatch.setattr(faiss, "index_cpu_to_gpu", clone, raising=False)
        monkeypatch.setattr(gpu, "_memory", lambda: 8 << 30)
    elif gpu.missing():
        pytest.skip(gpu.missing())
    yield made
    gpu._resources.cache_clear()


def units(n, dim, seed=0):
    rows = np.random.default_rng(seed).standard_normal((n, dim)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize("top_k", [1, 16, 1500, 2500])
def test_hits_on_a_gpu_are_those_on_the_cpu_ties_included(a_gpu, top_k):
    vectors = units(1500, 32)[np.random.default_rng(0).integers(0, 1500, 4000)]
    index, queries = VectorIndex.build(vectors, np.arange(4000) // 2), units(5, 32, 1)
    there, again = index.on_gpu(), index.on_gpu()
    for got, expected in zip(there.search(queries, top_k), index.search(queries, top_k), strict=True):
        assert got.rows.tolist() == expected.rows.tolist()
        assert got.scores.tobytes() == expected.scores.tobytes()
    assert there.exact
    assert again.exact
    if a_gpu:
        assert bool(a_gpu[0].asked) == (top_k < 1500), "a search of more than 2,048 neighbours runs on the CPU"
        assert a_gpu[0].resources is a_gpu[1].resources, "indexes of a process share the temporary memory"


def test_an_index_that_no_gpu_holds_is_refused(a_gpu, monkeypatch):
    with pytest.raises(ConfigError, match=r"cannot put this index of 50 vectors on the GPU \(.*factory to Flat"):
        VectorIndex.build(units(50, 4), np.arange(50), "HNSW8").on_gpu()
    monkeypatch.setattr(gpu, "_memory", lambda: gpu.TEMPORARY_BYTES + 30_000 * (4 * 4 + 8) - 1)
    said = r"need 0\.0 GiB beside 1\.5 GiB of temporary memory but the GPU has 1\.5 GiB free: raise index\.shards"
    with pytest.raises(ConfigError, match=said):
        VectorIndex.build(units(30_000, 4), np.arange(30_000)).on_gpu()
    assert not a_gpu, "nothing is copied first"


def test_faiss_without_a_gpu_says_what_to_do(monkeypatch):
    monkeypatch.delattr(faiss, "StandardGpuResources", raising=False)
    index = VectorIndex.build(units(10, 4), np.arange(10))
    with pytest.raises(ConfigError, match=r"the one for CPUs: pip install 'kohaku-ray\[gpu\]'; or set it to cpu"):
        index.on_gpu()
    monkeypatch.setattr(faiss, "StandardGpuResources", SimpleNamespace, raising=False)
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 0)
    with pytest.raises(ConfigError, match=r"this process sees no GPU: set cluster\.retriever\.gpus"):
        index.on_gpu()


def test_a_text_too_long_for_the_gpu_is_named():
    def full(features, **task):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    encoder = SentenceEncoder(MODEL, device="cpu")
    encoder._model.embed, encoder._pool = full, None
    with pytest.raises(DataError, match=r"a text of \d+ tokens does not fit the encoder's GPU"):
        encoder.encode_passages(["a text of more than eight tokens in all, of course"])


@pytest.mark.gpu
def test_the_batch_size_follows_the_memory_of_a_real_gpu():
    if not torch.cuda.is_available():
        pytest.skip("no GPU here")
    encoder = SentenceEncoder(MODEL, device="cuda", precision="float16")
    assert 4096 <= encoder._model.tokens_that_fit(256) <= 1 << 18
    expected = SentenceEncoder(MODEL, device="cpu").encode_passages(["one text", "and a longer one " * 40])
    np.testing.assert_allclose(encoder.encode_passages(["one text", "and a longer one " * 40]), expected, atol=5e-3)
