"""Batches change no vector: whatever the model pads, however full the GPU is, whoever tokenised the texts."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from kit import jina_stand_ins
from kit.installed import OnDemand

from kohaku_ray import sample
from kohaku_ray.errors import DataError
from kohaku_ray.index.encoder import SentenceEncoder
from kohaku_ray.index.identity import locate_model, passage_tokenizer
from kohaku_ray.index.settings import EncoderConfig
from kohaku_ray.index.torch_model import load_model
from tests.index.test_encoder import MODEL

sentence_transformers, torch, transformers = (
    OnDemand("sentence_transformers"),
    OnDemand("torch"),
    OnDemand("transformers"),
)


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """Lines of the sample's documents and whole documents, longer than any window, and texts that are not plain."""
    files = [file for file in sorted(Path(sample.path("documents")).iterdir()) if file.suffix in (".md", ".txt")]
    documents = [file.read_text(encoding="utf-8") for file in files]
    lines = [line for document in documents for line in document.splitlines() if line]
    odd = ["", " two  spaces\t", "ÉCLAIR 각 🙂 \0", "https://example.org/a.png", "x" * 2000]
    return [*lines[::20], *sorted(documents, key=len)[:2], *odd]


def changed(path: str, folder: Path, file: str, **settings: object) -> str:
    """A copy of a model with other settings in one of its files."""
    shutil.copytree(path, folder)
    read = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps(read | settings))
    return str(folder)


@pytest.fixture(scope="module")
def models(tiny_encoder, tmp_path_factory) -> dict[str, str]:
    """Models whose features differ in some way."""
    made, tokenizer = tmp_path_factory.mktemp("models"), "tokenizer_config.json"
    names = ["input_ids", "attention_mask"]
    return {
        "package": MODEL,
        "left": changed(tiny_encoder, made / "left", tokenizer, padding_side="left"),
        "no types": changed(tiny_encoder, made / "no types", tokenizer, model_input_names=names),
        "without prompt": changed(tiny_encoder, made / "mean", "1_Pooling/config.json", include_prompt=False),
        "small window": changed(tiny_encoder, made / "small", "sentence_bert_config.json", max_seq_length=64),
    }


@pytest.fixture
def one_thread():
    """MKL on several threads does not give the same bits each time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("prompt", [None, "Represent this: "])
@pytest.mark.parametrize(
    "kind", [pytest.param("package", marks=pytest.mark.slow), "left", "no types", "without prompt", "small window"]
)
def test_vectors_of_batches_are_those_of_sentence_transformers(models, texts, kind, prompt):
    prompts = {"query_prompt": prompt, "passage_prompt": prompt}
    encoder = SentenceEncoder(EncoderConfig(model=models[kind], device="cpu", batch_tokens=1 << 20, **prompts))
    reference = sentence_transformers.SentenceTransformer(locate_model(models[kind]), device="cpu")
    n_tokens = [len(reference.tokenizer((prompt or "") + text)["input_ids"]) for text in texts]
    short = [text for text, n in zip(texts, n_tokens, strict=True) if n <= reference.max_seq_length]
    assert 5 < len(short) < len(texts), "some are cut"
    expected = reference.encode(short, prompt=prompt, normalize_embeddings=True, batch_size=len(short))
    np.testing.assert_allclose(encoder.encode_passages(short), expected, atol=1e-5)
    if kind != "left":  # padding on the left moves positions, and queries are padded to other lengths
        np.testing.assert_allclose(encoder.encode_queries(short), expected, atol=1e-5)


def test_each_text_is_tokenised_once_but_those_that_are_cut(texts, monkeypatch):
    encoder = SentenceEncoder(EncoderConfig(model=MODEL, device="cpu"))
    seen, tokenise = [], transformers.PreTrainedTokenizerFast._encode_plus
    monkeypatch.setattr(
        transformers.PreTrainedTokenizerFast,
        "_encode_plus",
        lambda self, text, **given: seen.extend(text) or tokenise(self, text=text, **given),
    )
    short = [text for text in dict.fromkeys(texts) if len(text) < 500]
    encoder.encode_passages(short)
    assert sorted(seen) == sorted(short)


def limit(monkeypatch, most: int) -> list[int]:
    """Let a model fail above so many padded tokens; returns the sizes of its passes as they come."""
    forward, passes = sentence_transformers.SentenceTransformer.forward, []

    def fails(self, features, **task):
        passes.append(next(value.numel() for key, value in features.items() if key.endswith("input_ids")))
        if passes[-1] > most:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return forward(self, features, **task)

    monkeypatch.setattr(sentence_transformers.SentenceTransformer, "forward", fails)
    return passes


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("own_code", [False, True])
def test_a_model_that_runs_out_of_memory_gets_halves(tiny_encoder, texts, own_code, tmp_path, monkeypatch):
    model, given, texts = tiny_encoder, {}, [text for text in texts if len(text) < 400]
    if own_code:
        model = jina_stand_ins.build(tmp_path / "v3", "v3", ["Water"])
        given = {"passage_task": "retrieval.passage", "query_task": "retrieval.query", "trust_remote_code": True}
    expected = SentenceEncoder(EncoderConfig(model=model, device="cpu", batch_tokens=256, **given)).encode_passages(
        texts
    )
    encoder = SentenceEncoder(EncoderConfig(model=model, device="cpu", batch_tokens=4096, **given))
    passes = limit(monkeypatch, 600)
    np.testing.assert_allclose(encoder.encode_passages(texts), expected, atol=1e-5)
    assert sum(n_tokens > 600 for n_tokens in passes) > 0
    n_before = len(passes)
    encoder.encode_passages(texts)
    assert max(passes[n_before:]) <= 600, "later batches are smaller from the start"
    np.testing.assert_allclose(encoder.encode_queries(texts[:3]), encoder.encode_queries(texts)[:3], atol=1e-5)


@pytest.mark.usefixtures("one_thread")
def test_a_text_too_long_for_the_gpu_is_named(tiny_encoder, monkeypatch):
    encoder = SentenceEncoder(EncoderConfig(model=tiny_encoder, device="cpu"))
    limit(monkeypatch, 8)
    with pytest.raises(DataError, match=r"a text of \d+ tokens does not fit the encoder's GPU"):
        encoder.encode_passages(["a text of more than eight tokens in all, of course"])


def test_batches_depend_on_a_gpus_memory_and_not_on_what_is_free(monkeypatch):
    model = load_model(EncoderConfig(model=MODEL, device="cpu"))
    model.on_cpu, gib = False, 1 << 30
    sizes = {}
    for total in (1, 2, 80):
        for free in (0.01, 0.5, 1):
            monkeypatch.setattr("torch.cuda.mem_get_info", lambda _, given=(free, total): tuple(x * gib for x in given))
            sizes.setdefault(total, set()).add(model.tokens_that_fit(256))
    # A quarter of 1 GiB, of 16 hidden states of 384 values and 12 heads' 256 scores, 4 bytes each, per token.
    assert sizes == {1: {7281}, 2: {14563}, 80: {1 << 15}}


@pytest.mark.gpu
def test_a_real_gpu_gives_the_vectors_of_the_cpu(texts):
    if not torch.cuda.is_available():
        pytest.skip("no GPU here")
    expected = SentenceEncoder(EncoderConfig(model=MODEL, device="cpu")).encode_passages(texts)
    encoder = SentenceEncoder(EncoderConfig(model=MODEL, device="cuda", batch_tokens=512))
    first = encoder.encode_passages(texts)
    np.testing.assert_allclose(first, expected, atol=5e-3)
    assert encoder.encode_passages(texts).tobytes() == first.tobytes()


def rows_of(token_ids) -> list[np.ndarray]:
    return [np.array(row, np.int32) for row in token_ids.to_pylist()]


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("prompt", [None, "Represent this: ", "named"])
@pytest.mark.parametrize("kind", ["left", "no types", "small window"])
def test_tokens_from_elsewhere_make_the_same_batches_and_no_text_is_tokenised_again(
    models, texts, kind, prompt, tmp_path, monkeypatch
):
    model = models[kind]
    if prompt == "named":
        settings = {"prompts": {"named": "A prompt by name: "}, "default_prompt_name": "named"}
        model, prompt = changed(model, tmp_path / "m", "config_sentence_transformers.json", **settings), None
    encoder = SentenceEncoder(EncoderConfig(model=model, device="cpu", passage_prompt=prompt))
    tokenise = passage_tokenizer(model, None, prompt)
    assert encoder.tokenises_as(tokenise)
    expected = encoder.encode_passages(texts)
    ids = rows_of(tokenise(texts))
    window = sentence_transformers.SentenceTransformer(locate_model(model), device="cpu").max_seq_length
    short = [position for position, row in enumerate(ids) if len(row) <= window]
    assert len(short) < len(texts), "some are cut"
    assert encoder.encode_passages(texts, ids).tobytes() == expected.tobytes()
    texts, ids = [texts[position] for position in short], [ids[position] for position in short]
    few = encoder.encode_passages(texts)

    def refuse(self, *given, **named):
        raise AssertionError("a text was tokenised")

    monkeypatch.setattr(transformers.PreTrainedTokenizerFast, "__call__", refuse)
    assert encoder.encode_passages(texts, ids).tobytes() == few.tobytes()


def test_tokens_that_are_not_the_encoders_own_are_not_taken(models, tiny_encoder):
    encoder = SentenceEncoder(EncoderConfig(model=tiny_encoder, device="cpu", passage_prompt="Represent this: "))
    assert not encoder.tokenises_as(passage_tokenizer(tiny_encoder, None, "Represent that: "))
    assert not encoder.tokenises_as(passage_tokenizer(MODEL, None, "Represent this: "))
    assert passage_tokenizer(str(Path(sample.path("documents")))) is None
