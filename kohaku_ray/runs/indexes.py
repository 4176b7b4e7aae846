"""The index that a configuration asks for: its settings, its encoder, its views."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kohaku_ray.config import Config
from kohaku_ray.index.build import IndexSettings
from kohaku_ray.index.encoder import SentenceEncoder
from kohaku_ray.index.identity import encoder_identity


def make_encoder(config: Config, **overrides: Any) -> SentenceEncoder:
    """Load the configured encoder."""
    kept = {"cache_dir": str(exports_directory(config))}
    return SentenceEncoder(**(config.index.encoder.model_dump() | kept | overrides))


def exports_directory(config: Config) -> Path:
    """Where models exported for ``onnx`` and ``openvino`` are kept: beside the index."""
    return Path(config.index.path).parent / "encoders"


def encoder_settings(config: Config) -> dict[str, Any]:
    """Name the configured encoder without loading it."""
    encoder = config.index.encoder
    return encoder_identity(**encoder.model_dump(exclude={"device", "batch_tokens", "trust_remote_code"}))


def index_settings(config: Config) -> IndexSettings:
    """Collect what an index's fingerprint is made of."""
    index = config.index
    return IndexSettings(
        encoder=encoder_settings(config),
        weights=index.weights,
        paragraph_vectors=index.paragraph_vectors,
        factory=index.factory,
        k1=index.bm25.k1,
        b=index.bm25.b,
        language=index.bm25.language,
    )
