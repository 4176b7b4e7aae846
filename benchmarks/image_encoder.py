"""The index job's encoding of images against the bare model: what decoding and resizing cost on the path to it.

The model is a CLIP of ViT-B/32's size, random weights, through sentence-transformers' own class; `--patch 16` makes it
ViT-B/16. The bare model computes features that are ready. The library is sentence-transformers' own `encode` of the
same files, read and decoded one by one. All take turns on the same files, half of them charts and half photographs.

On a CPU decoding and the model share the cores, so that the best possible is the model's share of the processor time.
With `--model-ms` a wait of that many milliseconds per image stands for the model: a GPU, which leaves the CPU alone.

    python benchmarks/image_encoder.py [--images 64] [--rounds 5] [--patch 32] [--layers 12] [--model-ms MS]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from images import chart, photograph

from kohaku_ray.collection.image_encoding import EncodeImages, images_to_encode
from kohaku_ray.config import load_config
from kohaku_ray.documents.images import as_image
from kohaku_ray.index.encoder import IMAGE_BATCH, decoded
from kohaku_ray.index.images import write_image
from kohaku_ray.index.torch_model import TorchModel
from kohaku_ray.store.storage import Directory

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from kit import tiny_clip

LEAST = 0.9
"""Least share of the bare model's images per second."""
BASE = {"dim": 512, "width": 768, "heads": 12, "side": 224}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--patch", type=int, default=32, help="pixels of a patch's side: 32, 16 or 14")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--model-ms", type=float, help="milliseconds per image of a GPU that is only waited for")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return report(arguments, Path(folder))


def report(arguments: argparse.Namespace, folder: Path) -> int:
    name = tiny_clip.build(folder / "clip", ["a chart"], patch=arguments.patch, layers=arguments.layers, **BASE)
    overrides = [f"index.path={folder}/index", "index.images=true", "index.image_vectors=image"]
    overrides += [f"index.encoder.model={name}", f"index.encoder.device={arguments.device}"]
    config = load_config("default", overrides)
    directory = Directory(config.index.path)
    digests, megapixels, n_bytes = [], 0.0, 0
    for number in range(arguments.images):
        image = as_image((chart if number % 2 else photograph)(number).convert("RGB"))
        write_image(directory, image)
        digests.append(image.digest)
        megapixels, n_bytes = megapixels + image.width * image.height / 1e6, n_bytes + len(image.data)
    stage = EncodeImages(config, gpu=config.index.encoder.device != "cpu")
    encoder = stage._encoder
    model = encoder._model
    files = {digest: Path(config.index.path, "images", f"{digest}.png").read_bytes() for digest in digests}
    blocks = [digests[first : first + IMAGE_BATCH] for first in range(0, len(digests), IMAGE_BATCH)]
    pixels = [[decoded(digest, files[digest]) for digest in block] for block in blocks]
    features = [model.image_features(block) for block in pixels]
    new = images_to_encode([pa.table({"digest": digests})], config)
    batch = pa.table({name: [[image[name] for image in new]] for name in ("digest", "key")})
    if arguments.model_ms is not None:
        wait_instead(model, arguments.model_ms / 1000)
    pool = encoder._pool if arguments.model_ms is None else None
    ways: dict[str, Callable[[], object]] = {
        "bare model": lambda: [model.embed(batch)() for batch in features],
        "decode alone": lambda: [[decoded(digest, files[digest]) for digest in block] for block in blocks],
        "resize alone": lambda: [model.image_features(block) for block in pixels],
        "library": lambda: library(model.loaded, config.index.path, digests),
        "index job's stage": lambda: list(stage(batch)),
    }
    if pool is not None:
        ways["bare model, one thread per pass"] = lambda: list(pool.map(model.embed, features))
    best = measured(ways, arguments.rounds)
    n = len(digests)
    print(
        f"{n} images of {megapixels / n:.2f} megapixels and {n_bytes / n / 1024:.0f} KiB, patches of "
        f"{arguments.patch}, on {model.loaded.device}, {len(os.sched_getaffinity(0))} CPUs"
    )
    print(f"{f'best of {arguments.rounds}':<34}{'images/s':>10}{'CPU ms each':>13}")
    for way, (cpu, wall) in best.items():
        print(f"{way:<34}{n / wall:>10.1f}{1000 * cpu / n:>13.2f}")
    bare = min(wall for way, (_, wall) in best.items() if way.startswith("bare"))
    stage_cpu, stage_wall = best["index job's stage"]
    cpu = min(cpu for way, (cpu, _) in best.items() if way.startswith("bare"))
    print(
        f"the stage keeps {bare / stage_wall:.2f} of the faster bare model's images per second (wanted: at least "
        f"{LEAST}); {cpu / stage_cpu:.2f} of its processor time is the model's; "
        f"{best['library'][1] / stage_wall:.2f} × the library"
    )
    return 0 if bare / stage_wall >= LEAST else 1


def wait_instead(model: TorchModel, seconds: float) -> None:
    """Let a wait per image stand for a model's forward pass."""
    vectors = np.ones((IMAGE_BATCH, model.dim), np.float32)

    def forward(features: dict[str, Any]) -> dict[str, Any]:
        n = len(features["pixel_values"])
        time.sleep(seconds * n)
        return {**features, "sentence_embedding": torch.from_numpy(vectors[:n])}

    model.loaded.forward = forward


def library(loaded: Any, index: str, digests: list[str]) -> np.ndarray:
    """What a script would do: open the files, and let the library encode them."""
    from PIL import Image

    images = [Image.open(Path(index, "images", f"{digest}.png")).convert("RGB") for digest in digests]
    return loaded.encode(images, batch_size=IMAGE_BATCH, normalize_embeddings=True, show_progress_bar=False)


def measured(ways: dict[str, Callable[[], object]], rounds: int) -> dict[str, tuple[float, float]]:
    """The least CPU and wall seconds of each way; the ways take turns."""
    spent: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for _ in range(rounds + 1):
        for way, work in ways.items():
            wall, cpu = time.perf_counter(), time.process_time()
            work()
            spent[way].append((time.process_time() - cpu, time.perf_counter() - wall))
    return {way: (min(cpu for cpu, _ in times[1:]), min(wall for _, wall in times[1:])) for way, times in spent.items()}


if __name__ == "__main__":
    sys.exit(main())
