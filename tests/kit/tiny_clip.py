"""A CLIP with random weights behind sentence-transformers' own class: texts and images in one space."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def build(
    folder: Path,
    texts: Sequence[str],
    *,
    dim: int = 16,
    width: int = 32,
    layers: int = 1,
    side: int = 32,
    patch: int = 8,
    heads: int = 4,
) -> str:
    """Save one of a vocabulary from texts, of the given sizes."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules.transformer import Transformer
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
    from transformers import CLIPConfig, CLIPModel, CLIPProcessor, PreTrainedTokenizerFast
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["[PAD]", "[UNK]", "[BOS]", "[EOS]"]
    tokenizer.train_from_iterator(texts, trainers.WordLevelTrainer(special_tokens=special, vocab_size=500))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[BOS] $A [EOS]", special_tokens=[("[BOS]", 2), ("[EOS]", 3)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        bos_token="[BOS]",
        eos_token="[EOS]",
        model_max_length=64,
    )
    sizes = {"hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": layers}
    sizes |= {"num_attention_heads": heads, "projection_dim": dim}
    torch.manual_seed(0)
    config = CLIPConfig(
        text_config={
            **sizes,
            "vocab_size": 500,
            "max_position_embeddings": 64,
            "bos_token_id": 2,
            "eos_token_id": 3,
            "pad_token_id": 0,
        },
        vision_config={**sizes, "image_size": side, "patch_size": patch},
        projection_dim=dim,
    )
    size = {"size": {"shortest_edge": side}, "crop_size": {"height": side, "width": side}}
    plain = folder / "plain"
    CLIPModel(config).save_pretrained(plain)
    CLIPProcessor(CLIPImageProcessorPil(**size), fast).save_pretrained(plain)
    model = SentenceTransformer(modules=[Transformer(str(plain))], device="cpu")
    model.save(str(folder / "model"))
    return str(folder / "model")
