"""Images in requests: what a server is sent, what the ledger's key holds, what a missing file does."""

from __future__ import annotations

import hashlib
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.fake_openai import FakeOpenAI
from PIL import Image
from test_openai import ask, request

from kohaku_ray.errors import ModelError
from kohaku_ray.models.request import PromptImage, fitting_size, request_key


def kept(folder, width, height, colour="red"):
    """A PNG named by its hash, as an index keeps it."""
    written = io.BytesIO()
    Image.new("RGB", (width, height), colour).save(written, "PNG")
    path = folder / f"{hashlib.sha256(written.getvalue()).hexdigest()[:32]}.png"
    path.write_bytes(written.getvalue())
    return str(path)


def test_images_stand_before_the_text_in_their_order_and_fit_their_pixels(tmp_path):
    small, large = kept(tmp_path, 90, 70), kept(tmp_path, 1200, 300, "blue")
    images = (PromptImage(large, 40_000), PromptImage(small, 40_000))
    with FakeOpenAI() as server:
        (reply,) = ask(server, request(images=images))
    assert not isinstance(reply, Exception), reply
    first, second = server.log[0].images
    assert (first.width, first.height) == (400, 100)
    assert (second.width, second.height) == (90, 70)
    assert f"{second.digest}.png" in small  # sent as it is kept
    assert first.before_text
    assert second.before_text
    system, user = server.log[0].body["messages"]
    assert system["content"] == "Cite ref_id."
    assert user["content"][-1] == {"type": "text", "text": "[ref_id=a] text\nQuestion: ?"}


def test_the_key_holds_hash_and_size_and_no_path(tmp_path):
    path = kept(tmp_path, 80, 80)
    plain, shown = request(), request(images=(PromptImage(path, 10_000),))
    moved = request(images=(PromptImage(f"s3://bucket/index/images/{path.rpartition('/')[2]}", 10_000),))
    larger = request(images=(PromptImage(path, 20_000),))
    assert request_key(shown) == request_key(moved)
    assert len({request_key(item) for item in (plain, shown, larger)}) == 3


@pytest.mark.parametrize("what", ["missing", "html"])
def test_an_image_that_cannot_be_sent_fails_its_request_alone(tmp_path, what):
    path = tmp_path / "0123456789abcdef0123456789abcdef.png"
    if what == "html":
        path.write_text("<html><body>404</body></html>")
    bad = request(images=(PromptImage(str(path), 10_000),))
    with FakeOpenAI() as server:
        failure, reply = ask(server, bad, request(seed=2))
    assert isinstance(failure, ModelError)
    assert str(path) in str(failure)
    assert "index again" in str(failure)
    assert not isinstance(reply, Exception)
    assert server.n_requests == 1


@given(st.integers(1, 20_000), st.integers(1, 20_000), st.integers(1, 2_000_000))
def test_a_size_fits_keeps_its_shape_and_never_grows(width, height, max_pixels):
    wide, high = fitting_size(width, height, max_pixels)
    assert 1 <= wide <= width
    assert 1 <= high <= height
    assert wide * high <= max_pixels
    if width * height <= max_pixels:
        assert (wide, high) == (width, height)
    elif min(wide, high) >= 20:
        assert abs(wide / high - width / height) <= 0.1 * width / height
