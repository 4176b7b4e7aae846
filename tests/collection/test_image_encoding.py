"""The stage that encodes images, without a cluster: how they are divided, and what is written when."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from figure_pdfs import as_bytes, picture
from kit import tiny_clip

from kohaku_ray.collection.image_encoding import EncodeImages, image_vectors, images_to_encode
from kohaku_ray.collection.indexes import index_settings
from kohaku_ray.config import load_config
from kohaku_ray.documents.images import read_image
from kohaku_ray.errors import DataError
from kohaku_ray.index.images import write_image
from kohaku_ray.store.storage import Directory


def block_of(rows):
    """Images as one row of lists: a block that an encoder takes."""
    return pa.table({name: [[row[name] for row in rows]] for name in ("digest", "key")})


def test_vectors_are_written_as_they_are_made_and_those_before_an_error_are_kept(tmp_path):
    clip = tiny_clip.build(tmp_path / "clip", ["a chart"])
    overrides = [f"index.path={tmp_path}/index", f"index.encoder.model={clip}", "index.image_vectors=image"]
    config = load_config("default", [*overrides, "index.images=true"])
    directory, digests = Directory(config.index.path), []
    for seed in range(70):
        image = read_image(as_bytes(picture((64, 80), seed)))
        write_image(directory, image)
        digests.append(image.digest)
    table = pa.table({"digest": digests})
    new, settings = images_to_encode([table], config), index_settings(config)
    last = tmp_path / "index" / "images" / f"{new[-1]['digest']}.png"
    data = last.read_bytes()
    last.unlink()
    rows = EncodeImages(config, gpu=False)(block_of(new))
    assert next(rows)["n_images"].to_pylist() == [64]
    with pytest.raises(DataError, match=rf"{last.name} is missing"):
        next(rows)
    last.write_bytes(data)
    rest = images_to_encode([table], config)
    assert rest == new[64:], "what was written is not encoded again"

    stage = EncodeImages(config, gpu=False)
    assert [row["n_images"].to_pylist() for row in stage(block_of(rest))] == [[6]]
    keys, vectors = image_vectors(config.index.path, settings)
    files = {row["digest"]: directory.read(f"images/{row['digest']}.png").to_pybytes() for row in new}
    wanted = np.concatenate(list(stage._encoder.images().batches(list(files), files.__getitem__)))
    by_key = {row["key"]: vector for row, vector in zip(new, wanted, strict=True)}
    assert sorted(keys.tolist()) == sorted(by_key)
    np.testing.assert_allclose(vectors, [by_key[key] for key in keys.tolist()], atol=1e-5)
