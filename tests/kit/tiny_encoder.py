"""A random sentence encoder of two layers and 32 dimensions: loads and encodes at once, without weights of its own.

Texts that share words are near one another: token vectors are hardly more than random word vectors, and their mean is
the text's.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

DIM, WINDOW = 32, 256
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def build(path: Path, texts: Iterable[str], *, n_words: int = 2000) -> str:
    """Save a model whose vocabulary is the texts' commonest words and every character; returns the path."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Normalize, Pooling, Transformer
    from transformers import BertConfig, BertModel, BertTokenizerFast
    from transformers.utils import logging

    logging.disable_progress_bar()
    words = Counter(word for text in texts for word in re.findall(r"\w+", text.lower()))
    common = sorted(sorted(words), key=words.__getitem__, reverse=True)[:n_words]
    characters = sorted({*map(chr, range(33, 127)), *"".join(words)})
    pieces = dict.fromkeys((*SPECIAL, *characters, *("##" + character for character in characters), *common))
    bare = path / "transformer"
    BertTokenizerFast(vocab={piece: position for position, piece in enumerate(pieces)}).save_pretrained(bare)

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(pieces),
        hidden_size=DIM,
        intermediate_size=2 * DIM,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=WINDOW,
        initializer_range=0.1,  # not so little that quantised and exact layers give the same
    )
    model = BertModel(config)
    torch.nn.init.normal_(model.embeddings.word_embeddings.weight)
    model.save_pretrained(bare)
    transformer = Transformer(str(bare), max_seq_length=WINDOW)
    SentenceTransformer(modules=[transformer, Pooling(DIM), Normalize()], device="cpu").save(str(path / "model"))
    return str(path / "model")
