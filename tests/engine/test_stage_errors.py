"""An error of ours that a stage of Ray Data raises says what it said there, and nothing else."""

from __future__ import annotations

import pytest
from ray.data._internal.util import iterate_with_retry

from kohaku_ray.engine.errors import unwrapped
from kohaku_ray.errors import ConfigError, message_of

TEXT = "no tokenizer (one of:\n(1) this\n(2) that): name a model with one"


def stage():
    raise ConfigError(TEXT)


def test_the_note_that_ray_data_adds_is_taken_off():
    with pytest.raises(ConfigError) as caught, unwrapped():
        list(iterate_with_retry(stage, "apply UDF transform", max_attempts=1))
    assert str(caught.value) == TEXT


def test_a_message_of_several_lines_is_shown_whole():
    assert message_of(ConfigError(TEXT)) == "no tokenizer (one of: (1) this (2) that): name a model with one"
