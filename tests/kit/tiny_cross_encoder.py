"""A random cross-encoder of two layers: a real sentence-transformers CrossEncoder that loads at once."""

from __future__ import annotations

from pathlib import Path

from kit.tiny_encoder import DIM, WINDOW


def build(path: Path, tokenizer: str, *, n_heads: int = 2) -> str:
    """Save a model that gives each (query, text) pair one score, with the tokenizer of another; returns the path."""
    import torch
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

    pieces = AutoTokenizer.from_pretrained(tokenizer)
    pieces.save_pretrained(path)
    config = BertConfig(
        vocab_size=len(pieces),
        hidden_size=DIM,
        intermediate_size=2 * DIM,
        num_hidden_layers=2,
        num_attention_heads=n_heads,
        max_position_embeddings=WINDOW,
        num_labels=1,
        initializer_range=0.5,  # scores far enough apart that an order is one
    )
    torch.manual_seed(1)
    BertForSequenceClassification(config).save_pretrained(path)
    return str(path)
