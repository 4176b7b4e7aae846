"""An encoder's actor: two blocks in hand, so that a GPU waits neither for the next texts nor for the last vectors."""

from __future__ import annotations

import json
import threading
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest
from kit.endpoint_server import EndpointServer
from kit.installed import OnDemand

from kohaku_ray.collection.indexes import encoder_settings, make_encoder
from kohaku_ray.collection.indexing import TEXT_SCHEMA, Encode, new_texts, sorted_window
from kohaku_ray.config import load_config
from kohaku_ray.errors import ModelError
from kohaku_ray.index.identity import vector_keys
from kohaku_ray.index.known import KnownVectors
from kohaku_ray.index.pending import PendingVectors, without_vectors
from kohaku_ray.index.torch_model import TorchModel

transformers = OnDemand("transformers")

SOON_S = 30.0


@pytest.fixture
def config(tiny_encoder, tmp_path):
    return load_config("demo", [f"index.encoder.model={tiny_encoder}", f"index.path={tmp_path}/index"])


def blocks(config, *groups: list[str]) -> list[pa.Table]:
    """A block of each group of texts, as the stage before makes it."""
    made = []
    for texts in groups:
        keys = [key.tobytes() for key in vector_keys(encoder_settings(config), texts)]
        table = pa.table([keys, [9] * len(texts), texts, [0] * len(texts)], names=TEXT_SCHEMA.names[:4])
        table = table.cast(pa.schema(list(TEXT_SCHEMA)[:4]))
        made.append(sorted_window(new_texts([{"texts": table}], config), 1).slice(0, 1))
    return made


def test_vectors_from_tokens_of_a_cpu_stage_are_the_encoders(config, monkeypatch):
    encode, texts = Encode(config, gpu=False), ["One hall.", "Two halls draw 4 MW.", "One hall."]
    [block] = blocks(config, texts)
    assert block["ids"].to_pylist()[0]
    assert sorted(block["text"].to_pylist()[0]) == ["One hall.", "Two halls draw 4 MW."]
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(
            transformers.PreTrainedTokenizerFast, "__call__", Mock(side_effect=AssertionError("tokenised again"))
        )
        encode(block)
    keys = vector_keys(encoder_settings(config), texts[:2])
    _, vectors = PendingVectors(config.index.path).load(encoder_settings(config), keys, 0)
    expected = make_encoder(config).encode_passages(texts[:2])
    np.testing.assert_allclose(np.sort(vectors, 0), np.sort(expected, 0), atol=1e-6)


def test_an_encoder_that_asked_for_no_gpu_computes_on_the_cpu_of_a_node_that_has_some(config, monkeypatch):
    """Ray hides no GPU from such an actor."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert config.index.encoder.device == "auto"
    [block] = blocks(config, ["One hall."])
    assert Encode(config, gpu=False)(block)["n_texts"].to_pylist() == [1]


def in_threads(*calls) -> list[threading.Thread]:
    threads = [threading.Thread(target=call, daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    return threads


def test_a_gpu_computes_the_next_block_while_the_last_is_written(config, monkeypatch):
    encode, writing, computed = Encode(config, gpu=True), threading.Event(), threading.Event()
    write, embed = PendingVectors.write, TorchModel.embed
    first, second = blocks(config, ["First block."], ["Second block."])

    def slow_write(*given, **named):
        if not writing.is_set():
            writing.set()
            assert computed.wait(SOON_S), "the second block waits for the first one's file"
        return write(*given, **named)

    def noted(*given, **named):
        if writing.is_set():
            computed.set()
        return embed(*given, **named)

    monkeypatch.setattr(PendingVectors, "write", slow_write)
    monkeypatch.setattr(TorchModel, "embed", noted)
    threads = in_threads(lambda: encode(first))
    assert writing.wait(SOON_S)
    threads += in_threads(lambda: encode(second))
    for thread in threads:
        thread.join(2 * SOON_S)
    assert computed.is_set()
    assert len(PendingVectors(config.index.path).keys(encoder_settings(config))) == 2


@pytest.mark.parametrize("gpu", [True, False])
def test_a_cpu_computes_one_block_at_a_time_and_a_gpu_has_the_next_ones_batches_queued(config, gpu, monkeypatch):
    encode = Encode(config, gpu=gpu)
    together, embed, n_inside, most = threading.Barrier(2), TorchModel.embed, 0, 0
    lock = threading.Lock()

    def noted(*given, **named):
        nonlocal n_inside, most
        with lock:
            n_inside += 1
            most = max(most, n_inside)
        if gpu:
            together.wait(SOON_S)
        vectors = embed(*given, **named)
        with lock:
            n_inside -= 1
        return vectors

    monkeypatch.setattr(TorchModel, "embed", noted)
    calls = [lambda block=block: encode(block) for block in blocks(config, ["First block."], ["Second block."])]
    for thread in in_threads(*calls):
        thread.join(2 * SOON_S)
    assert most == (2 if gpu else 1)


def test_a_server_has_requests_of_two_blocks_and_what_it_answered_is_not_sent_again(tmp_path):
    both, fails = threading.Barrier(2), {"Second block."}

    def script(number, body):
        both.wait(SOON_S)
        return 400 if fails & set(body["input"]) else None

    with EndpointServer(script=script) as server:
        encoder = {"kind": "openai", "base_url": server.base_url, "model": "m", "api_key_env": None}
        config = load_config("demo", [f"index.encoder={json.dumps(encoder)}", f"index.path={tmp_path}/index"])
        encode = Encode(config, gpu=False)
        encode._encoder._is_checked = True  # the probe is no block's
        errors = []

        def call(block):
            try:
                encode(block)
            except ModelError as error:
                errors.append(str(error))

        texts = ["First block.", "Second block."]
        for thread in in_threads(*(lambda block=block: call(block) for block in blocks(config, texts[:1], texts[1:]))):
            thread.join(2 * SOON_S)
    assert [error.endswith("check index.encoder.extra_body") for error in errors] == [True]
    identity = encoder_settings(config)
    left = PendingVectors(config.index.path).keys(identity)
    assert list(without_vectors(texts, identity, KnownVectors(), left)) == ["Second block."]
