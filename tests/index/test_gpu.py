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
    """A FAISS index with a GPU's limits: 2,048 neighbours, sums in another order, perhaps rounded vectors."""

    def __init__(self, index, float16):
        self.vectors = index.reconstruct_n(0, index.ntotal)
        self.float16, self.asked = float16, []

    def search(self, queries, n):
        if n > 2048:
            raise RuntimeError("k must be <= 2048")
        self.asked.append(n)
        dtype = np.float16 if self.float16 else np.float32
        left, right = queries.astype(dtype).astype(np.float32), self.vectors.astype(dtype).astype(np.float32)
        scores = left[:, ::-1] @ right[:, ::-1].T
        places = np.argsort(-scores, axis=1, kind="stable")[:, ::-1][:, -n:][:, ::-1]
        return np.take_along_axis(scores, places, axis=1), places


@pytest.fixture(params=["stand-in", pytest.param("real", marks=pytest.mark.gpu)])
def a_gpu(request, monkeypatch):
    made = []
    if request.param == "stand-in":

        def clone(resources, device, index, options=None):
            made.append(LimitedIndex(index, options is not None and options.useFloat16))
            return made[-1] if options is not None else index

        monkeypatch.setattr(faiss, "StandardGpuResources", SimpleNamespace, raising=False)
        monkeypatch.setattr(faiss, "GpuClonerOptions", SimpleNamespace, raising=False)
        monkeypatch.setattr(faiss, "get_num_gpus", lambda: 1)
        monkeypatch.setattr(faiss, "index_cpu_to_gpu", clone, raising=False)
        monkeypatch.setattr(gpu, "_free_bytes", lambda: 1 << 30)
    elif gpu.missing():
        pytest.skip(gpu.missing())
    return made


def units(n, dim, seed=0):
    rows = np.random.default_rng(seed).standard_normal((n, dim)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize("float16", [False, True])
@pytest.mark.parametrize("top_k", [1, 16, 1500, 2500])
def test_hits_on_a_gpu_are_those_on_the_cpu_ties_included(a_gpu, float16, top_k):
    vectors = units(1500, 32)[np.random.default_rng(0).integers(0, 1500, 4000)]
    index, queries = VectorIndex.build(vectors, np.arange(4000) // 2), units(5, 32, 1)
    there = index.on_gpu(float16)
    for got, expected in zip(there.search(queries, top_k), index.search(queries, top_k), strict=True):
        assert got.rows.tolist() == expected.rows.tolist()
        assert got.scores.tobytes() == expected.scores.tobytes()
    assert there.exact
    if a_gpu:
        assert bool(a_gpu[0].asked) == (top_k < 1500), "a search of more than 2,048 neighbours runs on the CPU"


def test_inverted_lists_are_trained_on_a_gpu(a_gpu):
    vectors = units(3000, 16)
    on_gpu = VectorIndex.build(vectors, np.arange(3000), "IVF16,Flat", train_on_gpu=True)
    on_cpu = VectorIndex.build(vectors, np.arange(3000), "IVF16,Flat")
    queries = units(50, 16, 1)
    same = [
        len(set(a.rows.tolist()) & set(b.rows.tolist())) / 5
        for a, b in zip(on_gpu.search(queries, 5), on_cpu.search(queries, 5), strict=True)
    ]
    assert np.mean(same) > 0.7
    assert faiss.extract_index_ivf(on_gpu.faiss_index).clustering_index is None, "the GPU's memory would leak"
    assert VectorIndex.build(vectors, np.arange(3000), "Flat", train_on_gpu=True).exact


def test_a_gpu_too_small_is_refused_with_both_sizes(a_gpu, monkeypatch):
    monkeypatch.setattr(gpu, "_free_bytes", lambda: 1000)
    index = VectorIndex.build(units(300_000, 4), np.arange(300_000))
    with pytest.raises(ConfigError, match=r"need 0\.0 GiB but the GPU has 0\.0 GiB free: set index\.search_float16"):
        index.on_gpu()
    with pytest.raises(ConfigError, match=r"GiB free: raise index\.shards .*search_device to cpu"):
        index.on_gpu(float16=True)


def test_faiss_without_a_gpu_says_what_to_do(monkeypatch):
    monkeypatch.delattr(faiss, "StandardGpuResources", raising=False)
    index = VectorIndex.build(units(10, 4), np.arange(10))
    with pytest.raises(ConfigError, match=r"the one for CPUs: pip install 'kohaku-ray\[gpu\]'; or set it to cpu"):
        index.on_gpu()
    with pytest.raises(ConfigError, match=r"index\.build_gpus is set, but .*or set index\.build_gpus to 0"):
        VectorIndex.build(units(10, 4), np.arange(10), train_on_gpu=True)
    monkeypatch.setattr(faiss, "StandardGpuResources", SimpleNamespace, raising=False)
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 0)
    with pytest.raises(ConfigError, match=r"this process sees no GPU: set cluster\.retriever\.gpus"):
        index.on_gpu()


class SmallMemory:
    """The memory of a GPU that takes 600 padded tokens per pass, and estimates too much."""

    def __init__(self):
        self.released = 0

    def tokens_that_fit(self, longest):
        return 4096

    def is_full(self, error):
        return isinstance(error, torch.cuda.OutOfMemoryError)

    def release(self):
        self.released += 1


def limited(encoder, most):
    """Let an encoder compute like one on a GPU that fails above so many padded tokens."""
    embed, passes = encoder._model.embed, []

    def fails(features, **task):
        n_tokens = features["input_ids"].numel()
        passes.append(n_tokens)
        if n_tokens > most:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return embed(features, **task)

    encoder._model.embed, encoder._pool, encoder._memory, encoder._batch_tokens = fails, None, SmallMemory(), None
    return passes


def test_a_full_gpu_halves_the_batch_and_keeps_the_vectors():
    texts = [f"sentence {n} of a text with some words" + " more" * (n % 40) for n in range(60)]
    expected = SentenceEncoder(MODEL, device="cpu").encode_passages(texts)
    encoder = SentenceEncoder(MODEL, device="cpu")
    passes = limited(encoder, 600)
    np.testing.assert_allclose(encoder.encode_passages(texts), expected, atol=1e-5)
    assert passes[0] > 600 >= passes[-1]
    n_before = len(passes)
    np.testing.assert_allclose(encoder.encode_passages(texts), expected, atol=1e-5)
    assert max(passes[n_before:]) <= 600, "later batches are smaller from the start"
    np.testing.assert_allclose(encoder.encode_queries(texts[:3]), expected[:3], atol=1e-5)


def test_a_text_too_long_for_the_gpu_is_named():
    encoder = SentenceEncoder(MODEL, device="cpu")
    limited(encoder, 8)
    with pytest.raises(DataError, match=r"a text of \d+ tokens does not fit the encoder's GPU"):
        encoder.encode_passages(["a text of more than eight tokens in all, of course"])


def test_other_failures_of_a_pass_stay_themselves():
    encoder = SentenceEncoder(MODEL, device="cpu")
    limited(encoder, 600)

    def fails(features, **task):
        raise ZeroDivisionError("the model's own fault")

    encoder._model.embed = fails
    with pytest.raises(ZeroDivisionError):
        encoder.encode_passages(["some text"])


@pytest.mark.gpu
def test_the_batch_size_follows_the_memory_of_a_real_gpu():
    if not torch.cuda.is_available():
        pytest.skip("no GPU here")
    encoder = SentenceEncoder(MODEL, device="cuda", precision="float16")
    assert 4096 <= encoder._memory.tokens_that_fit(256) <= 1 << 18
    expected = SentenceEncoder(MODEL, device="cpu").encode_passages(["one text", "and a longer one " * 40])
    np.testing.assert_allclose(encoder.encode_passages(["one text", "and a longer one " * 40]), expected, atol=5e-3)
