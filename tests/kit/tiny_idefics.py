"""A random Idefics3: the tiny Llama with a vision tower, a real vision-language model for a real engine.

Of the architectures that vLLM serves, it is one of the few that need no torchvision: its pixels are prepared by Pillow.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from kit import tiny_llama

SIDE, PATCH, SCALE = 64, 16, 2
IMAGE_TOKENS = (SIDE // PATCH // SCALE) ** 2
"""Tokens of a tile's pixels in the prompt: a square image is four tiles, and itself as a fifth."""


def build(path: Path, texts: Iterable[str], *, window: int = 8192) -> str:
    """Save one; returns its path."""
    import torch
    from transformers import (
        AutoTokenizer,
        Idefics3Config,
        Idefics3ForConditionalGeneration,
        Idefics3Processor,
        LlamaForCausalLM,
    )
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

    text = tiny_llama.build(path / "text", texts, window=window)
    llama, tokenizer = LlamaForCausalLM.from_pretrained(text), AutoTokenizer.from_pretrained(text)
    tiles = [f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)]
    tokenizer.add_special_tokens({"additional_special_tokens": ["<global-img>", *tiles]})
    # Twice a tile's side: an image that is not cut into tiles has, for Pillow's processor, no part at all.
    size = {"size": {"longest_edge": 2 * SIDE}, "max_image_size": {"longest_edge": SIDE}}
    processor = Idefics3Processor(
        Idefics3ImageProcessorPil(**size),
        tokenizer,
        image_seq_len=IMAGE_TOKENS,
        chat_template=tiny_llama.CHAT_TEMPLATE,
    )
    llama.resize_token_embeddings(len(tokenizer))
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = Idefics3Config(
        vision_config={**sizes, "image_size": SIDE, "patch_size": PATCH},
        text_config=llama.config.to_dict(),
        scale_factor=SCALE,
        image_token_id=processor.image_token_id,
        pad_token_id=tokenizer.eos_token_id,
    )
    model = Idefics3ForConditionalGeneration(config)
    model.model.text_model.load_state_dict(llama.model.state_dict())
    model.lm_head.load_state_dict(llama.lm_head.state_dict())
    with torch.no_grad():  # as loud as words: what it says depends on what it sees
        model.model.connector.modality_projection.proj.weight.normal_(0.0, 0.5)
    model.save_pretrained(path / "model")
    processor.save_pretrained(path / "model")
    return str(path / "model")
