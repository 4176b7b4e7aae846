import pytest

from kohaku_ray.config import load_config
from kohaku_ray.errors import ConfigError
from kohaku_ray.index.build import IndexSettings
from kohaku_ray.run.indexes import index_settings
from kohaku_ray.run.validate import validate

EYES = [
    "deployments.eyes.kind=openai",
    "deployments.eyes.base_url=http://127.0.0.1:1/v1",
    "deployments.eyes.model=eyes",
    "deployments.eyes.vision=true",
]
MODEL = ["index.images=true", "index.captions=model"]


def test_captions_need_a_model_that_sees():
    with pytest.raises(ConfigError, match=r"roles\.caption\.model is 'extractive', which sees no images: name a"):
        load_config("demo", MODEL)
    with pytest.raises(ConfigError, match=r"roles\.caption\.model is 'nobody' but deployments has"):
        load_config("demo", [*MODEL, "roles.caption.model=nobody"])


def test_images_join_the_identity_of_an_index_only_when_they_are_on(tmp_path):
    plain = index_settings(load_config("demo")).as_mapping()
    assert set(plain) == set(IndexSettings(encoder={}).as_mapping())
    assert index_settings(load_config("demo", ["index.images=true"])).as_mapping()["images"] == {"captions": "printed"}
    own = [*EYES, *MODEL, "roles.caption.model=eyes"]
    described = index_settings(load_config("demo", own)).as_mapping()["images"]
    assert described["captions"] == "model"
    assert described["caption"]["model"].startswith("openai:eyes")
    (tmp_path / "caption.j2").write_text(
        "{% block system %}{% endblock %}{% block user %}See {{ printed }}{% endblock %}"
    )
    other = index_settings(load_config("demo", [*own, f"prompts={tmp_path}"])).as_mapping()["images"]
    assert other["caption"]["prompt"] != described["caption"]["prompt"]


def test_validate_checks_what_captions_need(tmp_path):
    own = [*EYES, *MODEL, "roles.caption.model=eyes", f"documents.images={tmp_path}/none"]
    found = validate(load_config("demo", own))
    problems = " ".join(map(str, found.problems))
    assert "deployments.eyes: openai, eyes" in found.lines
    assert "OPENAI_API_KEY" in problems
    assert f"documents.images is {tmp_path}/none, where there is no directory" in problems
