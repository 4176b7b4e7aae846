"""How an encoder makes its batches: each text tokenised once, the next batches made while one is computed."""

import dataclasses
import json
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from kit import jina_stand_ins

from kohaku_ray import sample
from kohaku_ray.index.encoder import BATCHES_AHEAD, SentenceEncoder
from kohaku_ray.index.identity import passage_tokenizer
from tests.index.test_encoder import MODEL

SIDES = ("passage", "query")


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


def tokenised_again(encoder: SentenceEncoder) -> SentenceEncoder:
    """Let an encoder's batches be made by sentence-transformers, from texts."""
    for side in SIDES:
        setattr(encoder, f"_{side}", dataclasses.replace(getattr(encoder, f"_{side}"), beside=None))
    return encoder


def recorded(encoder: SentenceEncoder) -> list[dict]:
    """Let an encoder record the features of each batch."""
    made, features = [], encoder._features
    encoder._features = lambda *given: made.append(features(*given)) or made[-1]
    return made


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("prompt", [None, "Represent this: "])
@pytest.mark.parametrize(
    "kind", [pytest.param("package", marks=pytest.mark.slow), "left", "no types", "without prompt", "small window"]
)
def test_batches_made_of_tokens_are_those_of_sentence_transformers(models, texts, kind, prompt):
    prompts = {"query_prompt": prompt, "passage_prompt": prompt}
    ours, library = (SentenceEncoder(models[kind], device="cpu", **prompts) for _ in range(2))
    assert ours._passage.beside is not None
    tokenised_again(library)
    ours._model.loaded.preprocess = None  # nobody calls it
    for encode in ("encode_passages", "encode_queries"):
        got, expected = recorded(ours), recorded(library)
        vectors, reference = getattr(ours, encode)(texts), getattr(library, encode)(texts)
        assert len(got) == len(expected) > 5
        for one, other in zip(got, expected, strict=True):
            assert one.keys() == other.keys()
            for key, value in other.items():
                if torch.is_tensor(value):
                    assert one[key].dtype == value.dtype
                    assert torch.equal(one[key], value), key
                else:
                    assert one[key] == value
        assert vectors.tobytes() == reference.tobytes()
    assert ("prompt_length" in got[0]) == (prompt is not None)
    assert ("token_type_ids" in got[0]) == (kind != "no types")
    assert any((one["attention_mask"][:, 0] == 0).any() for one in got) == (kind == "left")


def test_each_text_is_tokenised_once_but_those_that_are_cut(texts):
    encoder = SentenceEncoder(MODEL, device="cpu")
    seen, tokenise = [], encoder._model._tokenizer._encode_plus
    encoder._model._tokenizer._encode_plus = lambda text, **given: seen.extend(text) or tokenise(text=text, **given)
    short = [text for text in dict.fromkeys(texts) if len(text) < 500]
    encoder.encode_passages(short)
    assert sorted(seen) == sorted(short)


@pytest.mark.parametrize("version", ["v3", "v4"])
def test_a_model_with_code_of_its_own_tokenises_with_it(version, tmp_path):
    folder = jina_stand_ins.build(tmp_path / version, version, ["Water"])
    task = {"v3": "retrieval.passage", "v4": "retrieval"}[version]
    encoder = SentenceEncoder(folder, device="cpu", passage_task=task, query_task=task, trust_remote_code=True)
    assert encoder._passage.beside is encoder._query.beside is None


@pytest.fixture
def alone(tiny_encoder):
    """An encoder on one device, as on a GPU: no pool, and some batches."""
    encoder = SentenceEncoder(tiny_encoder, device="cpu", batch_tokens=256)
    encoder._pool = None
    return encoder


def test_the_next_batches_are_made_by_one_thread_while_one_is_computed(alone, texts, tiny_encoder):
    expected = tokenised_again(SentenceEncoder(tiny_encoder, device="cpu", batch_tokens=256)).encode_passages(texts)
    events, features, embed = [], alone._features, alone._model.embed

    def makes(*given):
        events.append(("made", threading.current_thread()))
        return features(*given)

    def starts(given, **task):
        number = sum(event == "started" for event, _ in events)
        events.append(("started", threading.current_thread()))
        wait = embed(given, **task)
        return lambda: events.append((f"fetched {number}", None)) or wait()

    alone._features, alone._model.embed = makes, starts
    np.testing.assert_allclose(alone.encode_passages(texts), expected, atol=1e-5)
    names = [event for event, _ in events]
    starts_at = [at for at, event in enumerate(names) if event == "started"]
    n = len(starts_at)
    assert names.count("made") == n > 10
    assert len({thread for event, thread in events if event == "made"} - {threading.current_thread()}) == 1
    assert {thread for event, thread in events if event == "started"} == {threading.current_thread()}
    for number, at in enumerate(starts_at):
        assert names[:at].count("made") <= number + 1 + BATCHES_AHEAD
        fetched = names.index(f"fetched {number}")
        assert number + 1 == n or starts_at[number + 1] < fetched, "the next pass runs while these are waited for"


def limit(encoder: SentenceEncoder, most: int) -> list[int]:
    """Let the model itself fail above so many padded tokens; returns the sizes of its passes as they come."""
    forward, passes = encoder._model.loaded.forward, []

    def fails(features, **task):
        passes.append(features["input_ids"].numel())
        if passes[-1] > most:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return forward(features, **task)

    encoder._model.loaded.forward = fails
    return passes


@pytest.mark.parametrize("own_code", [False, True])
def test_a_model_that_runs_out_of_memory_gets_halves(alone, texts, own_code):
    expected = alone.encode_passages(texts)
    if own_code:
        tokenised_again(alone)
    alone._batch_tokens = 4096
    makers, features = set(), alone._features
    alone._features = lambda *given: makers.add(threading.current_thread()) or features(*given)
    passes = limit(alone, 600)
    np.testing.assert_allclose(alone.encode_passages(texts), expected, atol=1e-5)
    assert sum(n_tokens > 600 for n_tokens in passes) > 5
    assert makers == set(alone._maker._threads), "halves are made where the next batches are: a tokenizer is not shared"
    n_before = len(passes)
    alone.encode_passages(texts)
    assert max(passes[n_before:]) <= 600, "later batches are smaller from the start"


def test_batches_depend_on_a_gpus_memory_and_not_on_what_is_free(monkeypatch):
    model = SentenceEncoder(MODEL, device="cpu")._model
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
    expected = SentenceEncoder(MODEL, device="cpu").encode_passages(texts)
    encoder = SentenceEncoder(MODEL, device="cuda", batch_tokens=512)
    features = recorded(encoder)
    first = encoder.encode_passages(texts)
    np.testing.assert_allclose(first, expected, atol=5e-3)
    assert len(features) > 10
    assert all(one["input_ids"].is_pinned() for one in features)
    assert encoder.encode_passages(texts).tobytes() == first.tobytes()


def rows_of(found) -> list[np.ndarray]:
    return [np.array(row, np.int32) for row in found.to_pylist()]


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("prompt", [None, "Represent this: ", "named"])
@pytest.mark.parametrize("kind", ["left", "no types", "small window"])
def test_tokens_from_elsewhere_make_the_same_batches_and_no_text_is_tokenised_again(
    models, texts, kind, prompt, tmp_path
):
    model = models[kind]
    if prompt == "named":
        settings = {"prompts": {"named": "A prompt by name: "}, "default_prompt_name": "named"}
        model, prompt = changed(model, tmp_path / "m", "config_sentence_transformers.json", **settings), None
    encoder = SentenceEncoder(model, device="cpu", passage_prompt=prompt)
    tokenise = passage_tokenizer(model, None, prompt)
    assert encoder.tokenises_as(tokenise)
    expected = encoder.encode_passages(texts)
    ids = rows_of(tokenise(texts))
    short = [at for at, row in enumerate(ids) if len(row) <= encoder._model.window]
    assert len(short) < len(texts), "some are cut"
    assert encoder.encode_passages(texts, ids).tobytes() == expected.tobytes()
    few = encoder.encode_passages([texts[at] for at in short])
    encoder._model._tokenizer = Silent(encoder._model._tokenizer)
    assert encoder.encode_passages([texts[at] for at in short], [ids[at] for at in short]).tobytes() == few.tobytes()


class Silent:
    """A tokenizer that tells of itself and tokenises nothing."""

    def __init__(self, own) -> None:
        self._own = own

    def __getattr__(self, name: str):
        return getattr(self._own, name)

    def __call__(self, *given, **named):
        raise AssertionError("a text was tokenised")


def test_tokens_that_are_not_the_encoders_own_are_not_taken(models, tiny_encoder):
    encoder = SentenceEncoder(tiny_encoder, device="cpu", passage_prompt="Represent this: ")
    assert not encoder.tokenises_as(passage_tokenizer(tiny_encoder, None, "Represent that: "))
    assert not encoder.tokenises_as(passage_tokenizer(MODEL, None, "Represent this: "))
    assert passage_tokenizer(str(Path(sample.path("documents")))) is None
