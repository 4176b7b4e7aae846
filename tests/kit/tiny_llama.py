"""A random Llama of two layers and its tokenizer, made in seconds: a real model for a real engine, without weights."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>\n{{ message.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
SPECIAL = ("<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
QUOTE_LOGIT = 6.0
"""Head start of the tokens that close a string: random text would else go on for hundreds of tokens."""


def build(path: Path, texts: Iterable[str], *, window: int = 8192, hidden: int = 64, layers: int = 2) -> str:
    """Train a byte-level BPE on the texts and save it with a random model; returns the path."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=2048, special_tokens=list(SPECIAL), initial_alphabet=alphabet)
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=SPECIAL[0], chat_template=CHAT_TEMPLATE)
    tokenizer.save_pretrained(path)

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        head_dim=32,  # the least that the CPU attention kernel takes
        num_attention_heads=hidden // 32,
        num_key_value_heads=1,
        max_position_embeddings=window,
        eos_token_id=tokenizer.eos_token_id,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        # One dimension of the residual stream is large whatever the text, so that one weight is a logit's bias.
        model.model.embed_tokens.weight[:, 0] = 4.0
        model.lm_head.weight.normal_(0.0, 0.5)
        model.lm_head.weight[:, 0] = 0.0
        for token, token_id in tokenizer.get_vocab().items():
            if token.startswith('"'):
                model.lm_head.weight[token_id, 0] = QUOTE_LOGIT / hidden**0.5
    # What no engine may take from a model: members would all write the same.
    model.generation_config.update(do_sample=True, top_k=1)
    model.save_pretrained(path)
    return str(path)
