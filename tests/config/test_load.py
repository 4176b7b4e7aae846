"""Configuration: bases, overrides, environment, and what is said when something does not fit."""

from __future__ import annotations

from typing import get_args

import pytest
from kit.rows import check_rows

from kohaku_ray.config import Config, keys_of, load, load_config
from kohaku_ray.config.load import parse_file
from kohaku_ray.config.paths import preset_names
from kohaku_ray.ensemble.settings import VoteRule
from kohaku_ray.errors import ConfigError
from kohaku_ray.models.vllm import VllmConfig
from kohaku_ray.settings import Settings, read_meanings
from kohaku_ray.sweep import load as sweep
from kohaku_ray.systems.registry import find_system, system_names


@check_rows("preset", [name for name in preset_names() if "/" not in name])
def test_every_preset_loads(preset):
    systems = ("hybrid", "narrative")
    assert load_config(preset).system == next((name for name in systems if name in preset), "kohaku")


def test_presets_hold_the_papers_numbers():
    paper, local, ours = load_config("paper"), load_config("local_hf"), load_config("default")

    def numbers(config):
        r = config.settings
        return (r.queries, r.top_k, r.top_k_final, r.rerank, r.normalise, r.alpha, r.dedup, r.bm25_top_k), (
            r.prompt_order,
            r.max_retries,
            config.ensemble.members,
        )

    assert numbers(ours) == ((4, 16, 32, "combined", "max", 0.4, "tree", 4), ("context_first", 2, 5))
    assert numbers(paper) == ((4, 16, 32, "combined", "minmax", 0.5, "node", 0), ("context_first", 0, 1))
    assert numbers(local) == ((3, 8, 10, "combined", "max", 0.4, "node", 0), ("question_first", 3, 5))
    # A.2: 4 × 16 = 64 raw matches; a retry widens top_k alone.
    assert paper.settings.queries * paper.settings.top_k == 64
    assert not paper.settings.widen_final
    assert (paper.settings.section_tokens, paper.settings.max_context_tokens) == (None, None)
    assert [config.settings.replan for config in (paper, local, ours)] == [False, True, False]
    assert [config.settings.spare_query for config in (paper, local, ours)] == [False, False, True]
    assert local.settings.retrieval_threshold == 0.25
    [(name, backend)] = local.used_deployments.items()
    assert (name, backend.kind, backend.max_ongoing) == ("local", "transformers", 5)


def test_override_beats_file_beats_base(tmp_path):
    (tmp_path / "below.yaml").write_text("base: paper\nkohaku: {top_k: 5, top_k_final: 9}\nseed: 3\n")
    (tmp_path / "top.yaml").write_text("base: below.yaml\nkohaku: {top_k: 6}\n")
    config = load_config(str(tmp_path / "top.yaml"), ["kohaku.top_k=7", "index.encoder.dim=64"])
    assert (config.settings.top_k, config.settings.top_k_final, config.seed) == (7, 9, 3)
    assert config.settings.normalise == "minmax"
    assert config.index.encoder.dim == 64


def test_a_base_that_many_files_name_is_read_once(tmp_path, monkeypatch):
    """attack6.md, B14: of twenty files each names the next twice, and one names a preset 3,000 times."""
    reads = []
    monkeypatch.setattr(load, "parse_file", lambda *of: reads.append(of[0]) or parse_file(*of))
    for n in range(20):
        base = f"[f{n + 1}.yaml, f{n + 1}.yaml]" if n < 19 else "[" + ", ".join(["demo"] * 3000) + "]"
        (tmp_path / f"f{n}.yaml").write_text(f"base: {base}\nseed: {n}\nkohaku: {{top_k: {n + 1}}}\n")
    config = load_config(str(tmp_path / "f0.yaml"), ["kohaku.top_k_final=3"])
    assert (config.seed, config.settings.top_k, config.settings.top_k_final) == (0, 1, 3)
    assert len(reads) == len(set(reads)) < 30


@check_rows(
    ("override", "message"),
    [
        ("kohaku.topk=3", r"no key kohaku\.topk \(did you mean kohaku\.top_k\?\)"),
        ("top_k=3", r"no key top_k \(did you mean kohaku\.top_k\?\)"),
        ("kohaku.top_k=0", r"kohaku\.top_k is 0: input should be greater than or equal to 1"),
        ("ensemble.members=five", r"ensemble\.members is 'five': input should be a valid integer"),
        ("ensemble.vote.strategy=best", r"strategy is 'best': input should be 'answer_priority'"),
        ("roles.answer.model=gpt", r"roles\.answer\.model is 'gpt' but deployments has 'extractive'"),
        ("kohaku=3", r"kohaku is 3: a section is needed$"),
        ("documents=docs/", r"documents is 'docs/': a section is needed, with keys such as paths, "),
        ("documents.paths=docs/", r"documents\.paths is 'docs/': a list is needed, such as \['docs/'\]"),
        ("documents.paths=5", r"documents\.paths is 5: a list is needed$"),
        ("deployments.x=5", r"deployments\.x is 5: a section is needed$"),
        ("deployments.a={kind: openai, model: m, base_urll: x}", r"did you mean deployments\.a\.base_url\?"),
        ("deployments.a={kind: openai, model: m}", r"base_url field required"),
        ("deployments.a={model: m}", r"deployments\.a has no kind: name one"),
        ("seed=true", "seed is true: give a number"),
        ("run=2020-01-01", r"run is datetime\.date\(2020, 1, 1\): input should be a valid string"),
        ("deployments.a={kind: llama}", r"expected tags: 'extractive', 'openai', 'vllm'"),
        ("kohaku.top_k", r"expected KEY=VALUE"),
    ],
)
def test_what_does_not_fit_is_named(override, message):
    with pytest.raises(ConfigError, match=message):
        load_config(None, [override])


def test_a_deployment_that_a_preset_names_otherwise_is_told_from_a_new_one():
    with pytest.raises(ConfigError, match=r"deployments\.openai has no kind: .*; did you mean deployments\.ollama\?"):
        load_config(["demo", "models/ollama"], ["deployments.openai.model=m"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a\n", "holds a list at its top"),
        ("a: [\n", "is not YAML"),
        ("base: me.yaml\n", "is its own base"),
        ("base: nowhere\n", "no such file and no such preset"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(tmp_path, text, message):
    file = tmp_path / "me.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_config(str(file))


def sections_below(section: type[Settings]) -> set[type[Settings]]:
    """A section with all that stand in it, however deep: in a union, a list or a mapping too."""
    inner, classes = [field.annotation for field in section.model_fields.values()], set()
    while inner:
        annotation = inner.pop()
        inner += get_args(annotation)
        if isinstance(annotation, type) and issubclass(annotation, Settings):
            classes |= sections_below(annotation)
    return {section, *classes}


def sections_of(module) -> list[type[Settings]]:
    return [value for value in vars(module).values() if isinstance(value, type) and issubclass(value, Settings)]


def test_every_key_has_a_description():
    sections = {*sections_below(Config), *sections_of(sweep)}
    sections |= {find_system(name).settings for name in system_names()}
    assert {VllmConfig, VoteRule, sweep.TableConfig, find_system("kohaku").settings} <= sections
    told = {"kind"}  # its class says it
    for section in sections:
        assert section.__doc__
        meanings = read_meanings(section)
        for name, field in section.model_fields.items():
            nested = isinstance(field.annotation, type) and issubclass(field.annotation, Settings)
            assert nested or name in told or meanings.get(name), f"{section.__name__}.{name}"
    assert {"kohaku.top_k", "index.encoder.dim", "ensemble.vote.strategy", "prompts"} <= set(keys_of())


def test_presets_are_listed_by_folder():
    with pytest.raises(ConfigError) as caught:
        load_config("demoo")
    message = str(caught.value)
    assert "did you mean demo?" in message
    assert "presets: balanced, default" in message
    assert message.endswith("; 6 encoders/NAME")
    assert "models/ollama" not in message
    with pytest.raises(ConfigError, match=r"presets: encoders/bge_m3, encoders/jina_v3, .*; \d+ models/NAME$"):
        load_config("encoders/nothing_like_it")
    with pytest.raises(ConfigError, match="presets: balanced, default"):
        load_config("not/there")


@pytest.mark.parametrize("key", ["run", "questions.path", "documents.metadata", "index.path", "prompts", "model"])
@pytest.mark.parametrize("text", ["a\\0b", "a\\ud800"])
def test_a_character_that_no_path_can_hold_is_refused(key, text):
    with pytest.raises(ConfigError, match=rf"demo: {key} is 'a\\.*, with a character that no path can hold"):
        load_config("demo", [f'{key}="{text}"'])
