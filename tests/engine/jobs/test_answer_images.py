"""The sample's figures, end to end: questions that only its images answer, and a server that reads what it is sent."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import polars as pl
import pytest
from kit.answers import deployment
from kit.runs_here import index_here, run_here
from kit.vision_server import VisionServer
from pages import opened

from kohaku_ray.engine.jobs.answer import run_answer
from kohaku_ray.errors import ConfigError
from kohaku_ray.index.images import Images
from kohaku_ray.models import request
from kohaku_ray.pages.report import write_report
from kohaku_ray.sample import path as sample_path

pytestmark = [pytest.mark.ray, pytest.mark.slow]

SENDS = ("kohaku.image_top_k=8", "kohaku.send_images=true", "kohaku.max_context_tokens=24000")


@pytest.fixture
def config_of(small_config):
    def make(server, run: str, *overrides: str):
        eyes = json.dumps(deployment(server, vision=True, max_tries=1))
        defaults = [f"deployments.eyes={eyes}", "model=eyes", "ensemble.members=1"]
        return small_config("demo_figures", *defaults, "kohaku.max_retries=0", "kohaku.queries=1", *overrides, run=run)

    return make


def values(config) -> dict[str, str]:
    table = pl.read_csv(f"{config.run}/submission.csv", infer_schema_length=0)
    return dict(table.select("id", "answer_value").iter_rows())


def test_images_answer_what_text_does_not(cluster, config_of):
    """All with images, none without; an image that is gone is one answer's error."""
    table = pl.read_csv(sample_path("figures/questions.csv"), infer_schema_length=0)
    gold = dict(table.select("id", "answer_value").iter_rows())
    with VisionServer() as server:
        config = config_of(server, "with", *SENDS)
        index_here(config)
        run_answer(config)
        assert values(config) == gold
        sent = [received.images for received in server.log if received.images]
        assert len(sent) == len(gold)
        assert all(image.before_text for images in sent for image in images)
        stored = {row["digest"] for row in Images.open(config.index.path).rows}
        assert {image.digest for images in sent for image in images} <= stored

        page = Path(write_report(config.run)).read_text(encoding="utf-8")
        n_pictures = len({image.digest for images in sent for image in images})
        assert page.count("background-image:url(data:image/png;base64,") == n_pictures  # each once, however often sent
        assert opened(page).count('class="pic pic-') >= len(gold)

        blind = config_of(server, "without", "kohaku.send_images=false")
        run_here(blind)
        assert set(values(blind).values()) == {"is_blank"}

        narrow = (*SENDS, "kohaku.image_top_k=1", "kohaku.images=search")
        asked = len(server.log)
        run_here(config_of(server, "narrow", *narrow))
        sent_to = Counter(image.digest for received in server.log[asked:] for image in received.images)
        assert sent_to.total() == len(gold)
        digest, n_requests = sent_to.most_common()[-1]
        assert n_requests < len(gold)

        gone = f"{config.index.path}/images/{digest}.png"
        os.remove(gone)
        missing = config_of(server, "missing", *narrow, f"ledger.path={config.run}/other")
        request._data_uri.cache_clear()  # as in a process that has not read the image before
        run_here(missing)
        errors = pl.read_parquet(f"{missing.run}/answers.parquet")["error"].drop_nulls().to_list()
        assert len(errors) == n_requests
        assert all(gone in error and "index again" in error for error in errors)


def test_a_model_without_vision_is_refused_before_anything_starts(config_of):
    with VisionServer() as server:
        config = config_of(server, "run", *SENDS, "deployments.eyes.vision=false")
        with pytest.raises(ConfigError, match=r"role answer sends images but deployments\.eyes\.vision is false"):
            run_answer(config)
        assert not server.log
