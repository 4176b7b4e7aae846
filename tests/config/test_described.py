"""`validate --settings`: every setting with its meaning, as YAML that gives the same configuration."""

from __future__ import annotations

import pytest
import yaml

from kohaku_ray.config import as_yaml, load_config
from kohaku_ray.config.described import write_settings


@pytest.mark.parametrize("preset", ["demo", "hybrid_vllm", "narrative", "paper_best"])
def test_what_is_printed_is_the_configuration_with_a_meaning_above_each_key(preset, monkeypatch):
    monkeypatch.setenv("OPENROUTER_API_KEY", "sk-secret-0123456789")
    config = load_config(preset)
    text = write_settings(config)
    assert yaml.safe_load(text) == yaml.safe_load(as_yaml(config))
    assert "secret" not in text
    lines = text.splitlines()
    bare = [
        line.strip()
        for before, line in zip(["", *lines], lines, strict=False)
        if line.endswith(": null") and not before.lstrip().startswith("#")
    ]
    assert bare == [], "keys without a meaning"
    assert max(map(len, [line for line in lines if line.lstrip().startswith("#")])) <= 110


def test_types_and_bounds_are_told():
    text = write_settings(load_config("demo"))
    assert "# Base of every seed. (integer)\nseed: 0\n" in text
    assert "(number > 0)\n  timeout_s: 60.0\n" in text
    assert "(chars, tokens, uniform)\n  weights: chars\n" in text
