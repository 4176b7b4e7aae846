"""Describe an index's images by a vision model: what is asked, and what becomes of the answers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from kohaku_ray.config import Config
from kohaku_ray.config.roles import model_of
from kohaku_ray.config.schema import CAPTION, INDEX_ROLES
from kohaku_ray.documents.figures import images_of, map_images, recaptioned
from kohaku_ray.documents.images import image_name
from kohaku_ray.documents.model import Document
from kohaku_ray.index.images import IMAGE_SCHEMA
from kohaku_ray.models.calls import chat_request
from kohaku_ray.models.captions import MAX_CHARS
from kohaku_ray.models.prompts import Prompts, read_templates
from kohaku_ray.models.request import ChatRequest, PromptImage, request_key, seed_for
from kohaku_ray.models.target import Target
from kohaku_ray.store.storage import join_path


@dataclass(frozen=True, slots=True)
class ImageCaption:
    """What became of one call: the image paragraph's new text (None: the printed caption stays), or an error."""

    text: str | None = None
    error: str | None = None


def caption_prompts(config: Config) -> Prompts:
    """Load the template: ``caption.j2`` of the configured prompts, else the default one."""
    directory = (
        config.prompts if config.prompts and os.path.exists(os.path.join(config.prompts, f"{CAPTION}.j2")) else None
    )
    roles = {name: (role.template, role.examples) for name, role in INDEX_ROLES.items()}
    return Prompts(read_templates(roles, None, directory))


def caption_settings(config: Config) -> dict[str, Any]:
    """Collect what decides the descriptions, for the index's identity."""
    played = config.role(CAPTION)
    return {
        "model": config.models[played.model].model_identity,
        "prompt": caption_prompts(config).digest,
        "temperature": played.temperature,
        "top_p": played.top_p,
        "max_tokens": played.max_tokens,
    }


CAPTION_PIXELS = 1_048_576
"""Most pixels of an image that is sent to be described."""


class CaptionRequests:
    """Makes the model calls for images."""

    def __init__(self, config: Config) -> None:
        self._config, self._prompts = config, caption_prompts(config)
        self.model = model_of(config, dict.fromkeys(config.deployments, Target("")), CAPTION, 0)

    def of(self, row: Mapping[str, Any], title: str) -> tuple[str, ChatRequest]:
        """Return the key and the call that describes an image, a row of ``IMAGE_SCHEMA``, of a document so titled."""
        shown = {"title": title, "printed": row["printed"], "mentions": tuple(row["mentions"])}
        prompt = self._prompts.render(CAPTION, shown)
        image = PromptImage(join_path(self._config.index.path, image_name(row["digest"])), CAPTION_PIXELS)
        seed = seed_for(self._config.seed, row["digest"], 0, 0, CAPTION)
        request = chat_request(self.model, replace(prompt, images=(image,)), seed, None, session_id=row["digest"])
        return request_key(request), replace(request, most_chars=MAX_CHARS)


def with_captions(
    document: Document, rows: Sequence[Mapping[str, Any]], keys: Sequence[str], captions: Mapping[str, ImageCaption]
) -> tuple[Document, pa.Table]:
    """Give a document and the rows of its images (``IMAGE_SCHEMA``) what became of the call with each row's key."""
    caption_of = {row["node_id"]: captions[key] for row, key in zip(rows, keys, strict=True)}
    texts = iter([caption_of[node_id].text for node_id, _, _ in images_of(document)])
    changed = map_images(
        document, lambda paragraph: paragraph if (text := next(texts)) is None else recaptioned(paragraph, text)
    )
    new_rows = []
    for row, key in zip(rows, keys, strict=True):
        caption = caption_of[row["node_id"]]
        new = {} if caption.text is None else {"caption": caption.text, "caption_from": "model"}
        new_rows.append({**row, **new, "caption_key": key, "error": caption.error})
    return changed, pa.Table.from_pylist(new_rows, schema=IMAGE_SCHEMA)
