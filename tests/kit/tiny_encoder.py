"""A random sentence encoder of two layers and 32 dimensions: loads and encodes at once, without weights of its own.

Texts that share words are near one another: token vectors are hardly more than random word vectors, and their mean is
the text's. Its files are written as those of the hub are, by no library of models: torch and transformers take seconds.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np

DIM, WINDOW = 32, 256
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
BERT = {
    "architectures": ["BertModel"],
    "dtype": "float32",
    "hidden_act": "gelu",
    "hidden_size": DIM,
    "initializer_range": 0.1,
    "intermediate_size": 2 * DIM,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": WINDOW,
    "model_type": "bert",
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "pad_token_id": 0,
    "type_vocab_size": 2,
}
TOKENIZER = {
    **{f"{token.strip('[]').lower()}_token": token for token in SPECIAL},
    "do_lower_case": True,
    "model_max_length": WINDOW,
    "tokenizer_class": "BertTokenizer",
}
MODULES = [
    {"idx": idx, "name": str(idx), "path": path, "type": f"sentence_transformers.models.{kind}"}
    for idx, (path, kind) in enumerate([("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")])
]


def build(path: Path, texts: Iterable[str], *, n_words: int = 2000) -> str:
    """Save a model whose vocabulary is the texts' commonest words and every character; returns the path."""
    from safetensors.numpy import save_file

    words = Counter(word for text in texts for word in re.findall(r"\w+", text.lower()))
    common = sorted(sorted(words), key=words.__getitem__, reverse=True)[:n_words]
    characters = sorted({*map(chr, range(33, 127)), *"".join(words)})
    pieces = dict.fromkeys((*SPECIAL, *characters, *("##" + character for character in characters), *common))
    model = path / "model"
    files = {
        "config.json": {**BERT, "vocab_size": len(pieces)},
        "modules.json": MODULES,
        "sentence_bert_config.json": {"max_seq_length": WINDOW, "do_lower_case": False},
        "tokenizer_config.json": TOKENIZER,
        "config_sentence_transformers.json": {"prompts": {}, "default_prompt_name": None},
        "1_Pooling/config.json": {"word_embedding_dimension": DIM, "pooling_mode_mean_tokens": True},
        "2_Normalize/config.json": {},
    }
    for name, content in files.items():
        (model / name).parent.mkdir(parents=True, exist_ok=True)
        (model / name).write_text(json.dumps(content))
    _tokenizer({piece: position for position, piece in enumerate(pieces)}).save(str(model / "tokenizer.json"))
    save_file(_weights(len(pieces)), model / "model.safetensors", metadata={"format": "pt"})
    return str(model)


def _tokenizer(vocabulary: dict[str, int]) -> object:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(*((token, vocabulary[token]) for token in ("[SEP]", "[CLS]")))
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


def _weights(n_pieces: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)

    def dense(name: str, n_out: int, n_in: int) -> dict[str, np.ndarray]:
        # Not so little that quantised and exact layers give the same.
        weight = 0.1 * random.standard_normal((n_out, n_in))
        return {f"{name}.weight": weight, f"{name}.bias": np.zeros(n_out)}

    def norm(name: str) -> dict[str, np.ndarray]:
        return {f"{name}.LayerNorm.weight": np.ones(DIM), f"{name}.LayerNorm.bias": np.zeros(DIM)}

    tensors = {
        "embeddings.word_embeddings.weight": random.standard_normal((n_pieces, DIM)),
        "embeddings.position_embeddings.weight": 0.1 * random.standard_normal((WINDOW, DIM)),
        "embeddings.token_type_embeddings.weight": 0.1 * random.standard_normal((2, DIM)),
        **norm("embeddings"),
        **dense("pooler.dense", DIM, DIM),
    }
    for layer in ("encoder.layer.0", "encoder.layer.1"):
        for part in ("query", "key", "value"):
            tensors |= dense(f"{layer}.attention.self.{part}", DIM, DIM)
        tensors |= dense(f"{layer}.attention.output.dense", DIM, DIM) | norm(f"{layer}.attention.output")
        tensors |= dense(f"{layer}.intermediate.dense", 2 * DIM, DIM)
        tensors |= dense(f"{layer}.output.dense", DIM, 2 * DIM) | norm(f"{layer}.output")
    return {name: tensor.astype(np.float32) for name, tensor in tensors.items()}
