"""kohaku with images: which are chosen, what the prompt shows, what they cost, what is recorded."""

from __future__ import annotations

import asyncio
import importlib
import json
import re

import numpy as np
import pyarrow as pa
import pytest
from kit.scripted_tools import ScriptedTools
from pydantic import ValidationError

from kohaku_ray.documents.model import Attachment, Document, Paragraph, Section, Sentence
from kohaku_ray.errors import ContextOverflowError
from kohaku_ray.index.flatten import flatten
from kohaku_ray.index.nodes import NodeTable
from kohaku_ray.models.request import PromptImage
from kohaku_ray.records import Question
from kohaku_ray.systems.base import Depth
from kohaku_ray.systems.kohaku import SYSTEM
from kohaku_ray.systems.kohaku.settings import KohakuSettings

QUESTION = Question("q1", "How high was the tide at the harbour in May?")
ANSWER = {"explanation": "", "answer": "2 m", "answer_value": "2", "answer_unit": "m", "ref_id": [], "is_blank": False}


@pytest.fixture(autouse=True)
def image_tokens(monkeypatch):
    """Let a test say what an image takes; by default as little as the small documents here need."""

    def set_tokens(n_tokens):
        module = importlib.import_module("kohaku_ray.systems.kohaku.answer")  # the package's name is the function
        monkeypatch.setattr(module, "IMAGE_TOKENS", n_tokens)

    set_tokens(20)
    return set_tokens


def text(words):
    return Paragraph(words, (Sentence(0, len(words)),))


def image(name, caption=""):
    spans = (Sentence(0, len(caption)),) if caption else ()
    return Paragraph(caption, spans, page=2, attachment=Attachment("image", f"images/{name}.png", caption or None))


def nodes():
    granite, walls = text("Its walls are of granite."), image("walls")
    harbour = (text("The harbour was rebuilt in May."), image("crane", "Crane at work."), granite, walls)
    tide = image("tide", "Tide at the harbour, May.")
    gauges = (text("Gauges stand at the pier."), tide, image("crane", "Crane at work."))
    rain = (text("It rained."), image("rain", "Rain per month, in mm."))
    documents = [
        Document("sea", "Sea", (Section("Harbour", harbour), Section("Gauges", gauges))),
        Document("rain", "Rain", (Section("Rain", rain),)),
    ]
    table = NodeTable(pa.concat_tables(map(flatten, documents)))
    return table.with_tokens(np.array([len(table.text_of(row).split()) for row in range(len(table))], np.int64))


INDEX = nodes()
IMAGES = np.array([row for row in range(len(INDEX)) if INDEX.attachment_kind(row) == "image"])


def answered(script=None, window_tokens=None, **changed):
    """One answer; returns it and the tools."""
    fields = {"queries": 1, "bm25_top_k": 0, "top_k": 2, "top_k_final": None, "max_retries": 0, "image_top_k": 2}
    config = KohakuSettings(**{**fields, **changed})
    tools = ScriptedTools(INDEX, script or (lambda call: json.dumps(ANSWER)), SYSTEM, window_tokens=window_tokens)

    async def run():
        return await SYSTEM.answer(await SYSTEM.prepare(QUESTION, tools, config), tools, config)

    return asyncio.run(run()), tools


def sent(call):
    return [image.path for image in call.prompt.images]


def test_images_nearest_to_the_queries_join_the_context_once_each():
    answer, tools = answered(image_top_k=3)
    assert ("search", "images", 1, 3) in tools.asked
    rows = [row for row in answer.trace if row.step == "image"]
    assert [row.text for row in rows] == ["Tide at the harbour, May.", "Crane at work."]  # the crane stands twice
    assert [(row.rank, row.note) for row in rows] == [(0, "dense"), (1, "dense")]
    assert rows[0].scores["similarity"] > rows[1].scores["similarity"]
    assert answer.measures["images"] == 2
    prompt = tools.sent[-1].prompt
    assert "[ref_id=sea] Tide at the harbour, May." in prompt.user
    assert prompt.images == ()


def test_sent_images_stand_in_rank_order_and_each_line_says_which():
    _, tools = answered(send_images=True)
    prompt = tools.sent[-1].prompt
    assert prompt.images == tuple(PromptImage(f"/index/images/{name}.png", 1 << 20) for name in ("tide", "crane"))
    lines = [line for line in prompt.user.split("\n") if "Image " in line or "Crane" in line]
    assert lines == ["[ref_id=sea] Image 1: Tide at the harbour, May.", "[ref_id=sea] Image 2: Crane at work."]


def test_near_adds_the_images_in_the_sections_of_the_matches_those_without_a_caption_too():
    alone, _ = answered(image_top_k=1, send_images=True)
    both, tools = answered(top_k=6, image_top_k=4, images="near", send_images=True)
    assert [row.text for row in alone.trace if row.step == "image"] == ["Tide at the harbour, May."]
    assert set(tools.sent[-1].schema["properties"]["ref_id"]["items"]["enum"]) == {"sea", "rain"}
    names = ("tide", "crane", "walls", "rain")
    assert set(sent(tools.sent[-1])) == {f"/index/images/{name}.png" for name in names}
    rows = {row.node_id: row for row in both.trace if row.step == "image"}
    walls = rows["sea:sec0:p3"]
    assert (walls.note, walls.kind, walls.scores, walls.text) == ("near, sent", "image", {}, "")
    number = sent(tools.sent[-1]).index("/index/images/walls.png") + 1
    assert re.search(rf"^\[ref_id=sea\] Image {number}:$", tools.sent[-1].prompt.user, re.MULTILINE)


@pytest.mark.parametrize(("sends", "n_images"), [(False, 2), (True, 1)])
def test_images_take_their_tokens_of_the_budget_and_at_most_half_of_it(image_tokens, sends, n_images):
    image_tokens(10)
    limited, whole = (
        answered(image_top_k=2, send_images=sends, max_context_tokens=tokens, top_k=9)[0].measures
        for tokens in (30, None)
    )
    assert limited["images"] == n_images
    assert limited["context_tokens"] <= 30 < whole["context_tokens"]


def test_a_refused_length_drops_an_image():
    def script(call):
        return ContextOverflowError("too long") if len(call.prompt.images) > 1 else json.dumps(ANSWER)

    answer, tools = answered(script, send_images=True, top_k=8)
    assert [len(call.prompt.images) for call in tools.sent] == [2, 1]
    assert answer.measures["overflowed"] == 1


def test_a_retry_sends_more_images():
    blank = ANSWER | {"is_blank": True, "answer_value": "is_blank"}
    _, tools = answered(lambda call: json.dumps(blank), send_images=True, image_top_k=1, max_retries=1)
    assert [len(call.prompt.images) for call in tools.sent] == [1, 2]


def test_the_declaration_says_what_images_need():
    none, sends = SYSTEM.uses(KohakuSettings()), SYSTEM.uses(KohakuSettings(image_top_k=2, send_images=True))
    assert (none.images, sends.images) == ((), ("answer",))
    assert "images" not in none.views
    assert sends.views["images"] == Depth(dense=6)
    with pytest.raises(ValidationError, match="image_top_k is 0"):
        KohakuSettings(send_images=True)
