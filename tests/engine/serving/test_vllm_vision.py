"""The real engine with eyes: a tiny random Idefics3 behind Ray Serve, on one CPU, sent images as a run sends them."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit import tiny_idefics
from kit.installed import needs
from kit.model_server import ON_CPUS
from kit.replies import reply_of
from kit.tiny_job import SAMPLE_TEXTS
from PIL import Image

from kohaku_ray.errors import ModelError
from kohaku_ray.models.request import ChatRequest, PromptImage
from kohaku_ray.models.vllm import VllmConfig

pytestmark = [needs("vllm"), pytest.mark.ray, pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(600)]

MOST = 2
LIMIT = {"limit_mm_per_prompt": {"image": MOST}}
SQUARE = 5 * tiny_idefics.IMAGE_TOKENS
"""Tokens of a square image's pixels, without those around its tiles."""


@pytest.fixture(scope="module")
def handle(cluster, tmp_path_factory) -> Iterator:
    from ray import serve

    from kohaku_ray.engine.serving.applications import serving

    model = tiny_idefics.build(tmp_path_factory.mktemp("eyes"), SAMPLE_TEXTS, window=2048)
    engine = {"model": model, "cpus": 1, "window_tokens": 2048, "engine_kwargs": LIMIT, "env": ON_CPUS}
    eyes = VllmConfig(**engine, vision=True, start_timeout_s=400)
    with serving({"eyes": eyes}) as names:
        yield serve.get_app_handle(names["eyes"].name)


def kept(folder: Path, colour: str) -> PromptImage:
    """A square of one colour, named by its hash as an index keeps it."""
    written = io.BytesIO()
    Image.new("RGB", (200, 200), colour).save(written, "PNG")
    path = folder / f"{hashlib.sha256(written.getvalue()).hexdigest()[:32]}.png"
    path.write_bytes(written.getvalue())
    return PromptImage(str(path), 1_000_000)


def send(handle, *images: PromptImage, question: str = "What does the figure show?", seed: int = 0):
    messages = (("system", "You read figures. " * 20), ("user", question))
    request = ChatRequest("eyes", messages, 1.0, 1.0, 48, seed, session_id="q", images=images)
    return handle.options(session_id="q").ask.remote([request])


def ask(handle, *images: PromptImage, question: str = "What does the figure show?"):
    return reply_of(send(handle, *images, question=question))


@pytest.mark.usefixtures("cluster")  # binding starts a Ray where there is none, of as many CPUs as the machine has
def test_the_limit_is_an_argument_of_the_bound_engine():
    from kohaku_ray.engine.serving.vllm import bind_vllm

    bound = bind_vllm("eyes", VllmConfig(model="m", cpus=1, vision=True))
    assert bound._bound_deployment.init_kwargs["llm_config"].engine_kwargs["limit_mm_per_prompt"] == {"image": 16}


def test_the_engine_sees_the_images_it_is_sent(handle, tmp_path):
    red, blue = kept(tmp_path, "red"), kept(tmp_path, "blue")
    blind, of_red, of_blue, both = (ask(handle, *images) for images in ((), (red,), (blue,), (red, blue)))
    # Random eyes move a token's odds by a tenth at most, so one draw may well come out alike for two colours.
    sent = [[send(handle, *images, seed=seed) for seed in range(8)] for images in ((), (red,), (blue,))]
    assert len({tuple(reply_of(response).text for response in draws) for draws in sent}) == 3
    assert ask(handle, red).text == of_red.text
    n_image = of_red.prompt_tokens - blind.prompt_tokens
    assert n_image >= SQUARE
    assert of_blue.prompt_tokens == of_red.prompt_tokens
    assert both.prompt_tokens >= blind.prompt_tokens + 2 * SQUARE


def test_the_images_before_a_question_are_a_prefix_that_the_next_one_shares(handle, tmp_path):
    green, grey = kept(tmp_path, "green"), kept(tmp_path, "grey")
    first = ask(handle, green, question="The first question, which nobody has asked before. " * 8)
    second = ask(handle, green, question="Another one, in words of its own, of which none is shared. " * 8)
    third = ask(handle, grey, question="A third one about another image, and so with another prefix. " * 8)
    assert first.prompt_tokens > 0
    assert second.cached_tokens > third.cached_tokens, "the images, beside the system's message"


def test_more_images_than_the_limit_are_refused_by_the_engine(handle, tmp_path):
    colours = ("red", "green", "blue")
    with pytest.raises(ModelError, match=rf"(?i)at most {MOST} image"):
        ask(handle, *(kept(tmp_path, colour) for colour in colours))
    assert ask(handle, kept(tmp_path, "red")).text
