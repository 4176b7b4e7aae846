"""FAISS and the encoder on a GPU: on a real one where there is one, else on stand-ins with a GPU's limits."""

import os
import subprocess
import sys
from types import SimpleNamespace

import faiss
import numpy as np
import pytest
from kit.installed import OnDemand
from kit.rows import check_rows

from kohaku_ray.errors import ConfigError
from kohaku_ray.index import gpu
from kohaku_ray.index.encoder import SentenceEncoder
from kohaku_ray.index.settings import EncoderConfig
from kohaku_ray.index.vectors import VectorIndex
from tests.index.test_encoder import MODEL

torch = OnDemand("torch")


class LimitedIndex:
    """A flat FAISS index with a GPU's limits: 2,048 neighbours, sums in another order."""

    made = []

    def __init__(self, resources, d, metric):
        assert metric == faiss.METRIC_INNER_PRODUCT
        self.vectors = None
        self.made.append(self)

    def add(self, vectors):
        assert self.vectors is None, "memory is reserved by the first call alone"
        self.vectors = vectors.copy()

    def search(self, queries, n):
        if n > 2048:
            raise RuntimeError("k must be <= 2048")
        scores = queries[:, ::-1] @ self.vectors[:, ::-1].T
        places = np.argsort(-scores, axis=1, kind="stable")[:, ::-1][:, -n:][:, ::-1]
        return np.take_along_axis(scores, places, axis=1), places


def set_memory(monkeypatch, free):
    """Let torch see a GPU of 16 GiB with so many bytes free."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, 16 << 30))


@pytest.fixture(params=["stand-in", pytest.param("real", marks=pytest.mark.gpu)])
def a_gpu(request, monkeypatch):
    gpu._resources.cache_clear()
    monkeypatch.setattr(LimitedIndex, "made", [])
    if request.param == "stand-in":

        def clone(resources, device, index, options=None):
            if type(index).__name__.startswith("IndexHNSW"):
                raise RuntimeError("Error in clone_Index:\nThis index type is not implemented on GPU.")
            if isinstance(index, faiss.IndexIVFPQ):  # as verifyPQSettings_ of faiss 1.15 without cuVS
                if index.pq.nbits != 8:
                    raise RuntimeError(f"Bits per code must be 8 (passed {index.pq.nbits})")
                if index.pq.M * 256 * (2 if options.useFloat16 else 4) > 48 << 10:
                    raise RuntimeError("Device 0 has 49152 bytes of shared memory. Consider useFloat16LookupTables")
            return index

        monkeypatch.setattr(faiss, "StandardGpuResources", SimpleNamespace, raising=False)
        monkeypatch.setattr(faiss, "GpuIndexFlat", LimitedIndex, raising=False)
        monkeypatch.setattr(faiss, "get_num_gpus", lambda: 1)
        monkeypatch.setattr(faiss, "GpuClonerOptions", SimpleNamespace, raising=False)
        monkeypatch.setattr(faiss, "index_cpu_to_gpu", clone, raising=False)
        set_memory(monkeypatch, 8 << 30)
    elif gpu.missing():
        pytest.skip(gpu.missing())
    yield LimitedIndex.made
    gpu._resources.cache_clear()


def units(n, dim, seed=0):
    rows = np.random.default_rng(seed).standard_normal((n, dim)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize("top_k", [1, 16, 1500, 2500])
def test_hits_on_a_gpu_are_those_on_the_cpu_ties_included(a_gpu, top_k):
    vectors = units(1500, 32)[np.random.default_rng(0).integers(0, 1500, 4000)]
    index, queries = VectorIndex.build(vectors, np.arange(4000) // 2), units(5, 32, 1)
    gpu_index = index.on_gpu()
    for got, expected in zip(gpu_index.search(queries, top_k), index.search(queries, top_k), strict=True):
        assert got.rows.tolist() == expected.rows.tolist()
        assert got.scores.tobytes() == expected.scores.tobytes()
    assert gpu_index.exact


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


PQ = [("IVF16,PQ8", 16), ("IVF16,PQ64", 1024), ("IVF16,PQ96", 96)]
"""PQ64 at 1,024 dimensions is the usual choice: its tables fit a GPU in 16 bits alone (findings/gpu5.md, G4)."""


@check_rows(("factory", "dim"), PQ)
def test_quantised_lists_are_taken_by_a_gpu(a_gpu, factory, dim):
    gpu.Clone(faiss.index_factory(dim, factory, faiss.METRIC_INNER_PRODUCT))


@pytest.mark.gpu
@pytest.mark.parametrize(("factory", "dim"), PQ)
def test_quantised_lists_give_nearly_the_hits_of_the_cpu(factory, dim):
    if gpu.missing():
        pytest.skip(gpu.missing())
    index, queries = VectorIndex.build(units(3000, dim), np.arange(3000), factory), units(64, dim, 1)
    index.probe(4)
    pairs = list(zip(index.on_gpu().search(queries, 5), index.search(queries, 5), strict=True))
    assert np.mean([len(set(got.rows.tolist()) & set(expected.rows.tolist())) / 5 for got, expected in pairs]) >= 0.9


@check_rows(
    ("factory", "dim", "message"),
    [
        ("IVF16,PQ4x4", 16, r"the index has PQ4x4, 4 codes of 4 bits, but on a GPU FAISS takes 8 bits and 1, 2, "),
        ("IVF16,PQ6", 24, r"the index has PQ6x8, 6 codes of 8 bits, .* set index\.factory to an IVF with PQ"),
        ("IVF16,PQ128", 128, r"the index has PQ128x8"),
    ],
)
def test_codes_that_no_gpu_takes_are_refused_with_their_number_and_bits(a_gpu, factory, dim, message):
    with pytest.raises(ConfigError, match=message):
        gpu.Clone(faiss.index_factory(dim, factory, faiss.METRIC_INNER_PRODUCT))


@pytest.mark.parametrize("factory", ["IVF16,Flat", "IVF16,SQ8"])
def test_inverted_lists_on_a_gpu_give_the_hits_of_the_cpu(a_gpu, factory):
    index, queries = VectorIndex.build(units(3000, 16), np.arange(3000), factory), units(64, 16, 1)
    index.probe(4)
    gpu_index = index.on_gpu()
    for got, expected in zip(gpu_index.search(queries, 5), index.search(queries, 5), strict=True):
        assert got.rows.tolist() == expected.rows.tolist()
        assert got.scores.tobytes() == expected.scores.tobytes()


@pytest.mark.parametrize("factory", ["IVF16,Flat"])
def test_a_gpu_searches_inverted_lists_for_all_queries_in_one_call(a_gpu, factory, monkeypatch):
    clone, calls = faiss.index_cpu_to_gpu, []

    def counting(*arguments):
        on_gpu = clone(*arguments)
        return SimpleNamespace(search=lambda queries, n: calls.append(len(queries)) or on_gpu.search(queries, n))

    monkeypatch.setattr(faiss, "index_cpu_to_gpu", counting)
    index = VectorIndex.build(units(3000, 16), np.arange(3000), factory).on_gpu()
    assert [len(hits) for hits in index.search(units(64, 16, 1), 5)] == [5] * 64
    assert calls == [64]


@check_rows("factory", ["IVF16,Flat", "PCA8,IVF16,Flat", "IVF16_HNSW8,Flat"])
def test_an_index_built_on_a_gpu_is_whole_on_the_cpu(a_gpu, factory):
    built = VectorIndex.build(units(3000, 16), np.arange(3000), factory, train_on_gpu=True).faiss_index
    lists = faiss.extract_index_ivf(built)
    assert isinstance(faiss.downcast_index(lists.quantizer), faiss.IndexHNSW if "HNSW" in factory else faiss.IndexFlat)
    assert built.ntotal == sum(lists.invlists.list_size(number) for number in range(16)) == 3000
    assert len(faiss.serialize_index(built)) > 3000 * 8, "the index on the CPU has its own centroids again"


def test_a_gpu_too_small_is_refused_with_both_sizes(a_gpu, monkeypatch):
    index = VectorIndex.build(units(30_000, 4), np.arange(30_000))
    need = 30_000 * (4 * 4 + 8)
    set_memory(monkeypatch, (1536 << 20) + need - 1)
    expected = r"need 0\.0 GiB beside 1\.5 GiB of temporary memory but the GPU has 1\.5 GiB free: raise index\.shards"
    with pytest.raises(ConfigError, match=expected):
        index.on_gpu()
    assert not a_gpu, "nothing is copied first"
    set_memory(monkeypatch, (1536 << 20) + need)
    index.on_gpu()
    set_memory(monkeypatch, need - 1)
    with pytest.raises(ConfigError, match=r"need 0\.0 GiB but the GPU"):  # the temporary memory is there by now
        index.on_gpu()
    set_memory(monkeypatch, 1000)
    lists = VectorIndex.build(units(3000, 4), np.arange(3000), "IVF16,Flat")
    with pytest.raises(ConfigError, match=r"GiB free: raise index\.shards .*search_device to cpu"):
        lists.on_gpu()


def test_an_index_that_no_gpu_holds_is_refused(a_gpu):
    with pytest.raises(ConfigError, match=r"cannot put this index of 50 vectors on the GPU \(.*factory to Flat"):
        VectorIndex.build(units(50, 4), np.arange(50), "HNSW8").on_gpu()


@pytest.mark.parametrize(
    ("factory", "bytes_each"),
    [("Flat", 384 * 4 + 8), ("SQfp16", 384 * 2 + 8)],
)
def test_a_flat_index_takes_its_codes_and_norms(factory, bytes_each):
    index = faiss.index_factory(384, factory, faiss.METRIC_INNER_PRODUCT)
    vectors = units(100, 384)
    index.train(vectors)
    index.add(vectors)
    assert gpu.bytes_on_gpu(index) == 100 * bytes_each


def rounded(n):
    return -(-n // 256) * 256


@pytest.mark.parametrize(
    ("factory", "each", "block", "d"),
    [
        ("IVF16,Flat", 64, 32, 16),
        ("IVF16,SQ8", 16, 32, 16),
        ("IVF16,PQ4x4", 2, 1, 16),
        ("PCA8,IVF16,Flat", 32, 32, 8),
    ],
)
def test_inverted_lists_take_codes_and_ids_by_blocks(factory, each, block, d):
    vectors = units(4000, 16)
    index = faiss.index_factory(16, factory, faiss.METRIC_INNER_PRODUCT)
    index.train(vectors)
    index.add(vectors)
    lists = faiss.extract_index_ivf(index).invlists
    sizes = [lists.list_size(number) for number in range(16)]
    expected = sum(rounded(-(-size // block) * block * each) + rounded(size * 8) for size in sizes)
    assert gpu.bytes_on_gpu(index) == expected + 16 * (d * 4 + 8)
    assert gpu.bytes_on_gpu(index) >= 4000 * (each + 8)


@pytest.mark.parametrize(("total_gib", "mib"), [(4, 512), (8, 1024), (16, 1536), (80, 1536)])
def test_faiss_takes_temporary_memory_by_the_size_of_the_gpu(total_gib, mib):
    assert gpu.temporary_bytes(total_gib << 30) == mib << 20


LISTS = """
calls = [type(index).__name__]
clone = faiss.index_cpu_to_gpu
# What it clones and the resources are real; without a GPU it stays on the CPU.
def counted(resources, device, index, *options):
    calls.append(type(index).__name__)
    try:
        clone(resources, device, index, *options)
    except RuntimeError as error:
        assert "Invalid GPU device 0" in str(error), error
    return index
faiss.index_cpu_to_gpu = counted
VectorIndex.build(vectors, np.arange(900), "IVF8,Flat", train_on_gpu=True)
assert calls[1:] == ["IndexFlat", "IndexFlat"], calls
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "refused"),
    [
        ("index = faiss.IndexFlatIP(8); index.add(vectors); gpu.Clone(index, True)", True),
        ("index = VectorIndex.build(vectors, np.arange(900), 'IVF8,Flat').on_gpu()", True),
        ("index = VectorIndex.build(vectors, np.arange(900), 'IVF8,PQ4').on_gpu()", True),
        ("index = faiss.IndexFlat(8)" + LISTS, False),
    ],
)
def test_faiss_for_gpus_takes_these_calls(program, refused):
    """KOHAKU_FAISS_GPU: a directory with the wheels of faiss-gpu and its three nvidia libraries, unpacked."""
    if not (wheels := os.environ.get("KOHAKU_FAISS_GPU")):
        pytest.skip("KOHAKU_FAISS_GPU names no FAISS for GPUs")
    program = (
        "import faiss, numpy as np; from kohaku_ray.index import gpu; faiss.get_num_gpus = lambda: 1\n"
        "from kohaku_ray.index.vectors import VectorIndex; vectors = np.random.rand(900, 8).astype('f4')\n"
        f"assert hasattr(faiss, 'StandardGpuResources')\n{program}"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([wheels, os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    # So far every call had the arguments it takes.
    if not refused or "Invalid GPU device 0" not in done.stderr:
        assert done.returncode == 0, done.stderr


def test_faiss_without_a_gpu_says_what_to_do(monkeypatch):
    monkeypatch.delattr(faiss, "StandardGpuResources", raising=False)
    index = VectorIndex.build(units(10, 4), np.arange(10))
    with pytest.raises(ConfigError, match=r"one for CPUs: pip uninstall .* 'kohaku-ray\[gpu\]'.* to cpu"):
        index.on_gpu()
    with pytest.raises(ConfigError, match=r"no lists on a GPU: the FAISS that is installed is the one for CPUs"):
        VectorIndex.build(units(200, 4), np.arange(200), "IVF4,Flat", train_on_gpu=True)
    monkeypatch.setattr(faiss, "StandardGpuResources", SimpleNamespace, raising=False)
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 0)
    with pytest.raises(ConfigError, match=r"this process sees no GPU; set cluster\.retriever\.gpus"):
        index.on_gpu()


@pytest.mark.gpu
def test_the_batch_size_follows_the_memory_of_a_real_gpu():
    if not torch.cuda.is_available():
        pytest.skip("no GPU here")
    encoder = SentenceEncoder(EncoderConfig(model=MODEL, device="cuda", precision="float16"))
    assert 4096 <= encoder._model.tokens_that_fit(256) <= 1 << 18
    expected = SentenceEncoder(EncoderConfig(model=MODEL, device="cpu")).encode_passages(
        ["one text", "and a longer one " * 40]
    )
    np.testing.assert_allclose(encoder.encode_passages(["one text", "and a longer one " * 40]), expected, atol=5e-3)
