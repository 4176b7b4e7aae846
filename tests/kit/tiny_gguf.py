"""A model of tiny_llama as a GGUF file, as llama.cpp's converter writes one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "post_attention_layernorm": "ffn_norm",
    "input_layernorm": "attn_norm",
    "model.layers": "blk",
}


def write(directory: str | Path, file: Path, *, architecture: str = "llama", template: bool = True) -> Path:
    """Write the model of a directory into a GGUF file; returns the file."""
    from gguf import GGUFWriter, TokenType
    from safetensors.numpy import load_file

    config, tokenizer, settings = (
        json.loads(Path(directory, name).read_text())
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json")
    )
    writer = GGUFWriter(file, architecture)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_vocab_size(config["vocab_size"])

    vocabulary = tokenizer["model"]["vocab"]
    special = {item["content"] for item in tokenizer["added_tokens"]}
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")  # how llama.cpp divides a text before merges: as ByteLevel does
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL if token in special else TokenType.NORMAL for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_eos_token_id(vocabulary[settings["eos_token"]])
    if template:
        writer.add_chat_template(Path(directory, "chat_template.jinja").read_text())

    for name, weight in load_file(Path(directory, "model.safetensors")).items():
        for ours, theirs in _NAMES.items():
            name = name.replace(ours, theirs)
        if "attn_q" in name or "attn_k" in name:  # llama.cpp turns neighbours, transformers halves
            halves = weight.reshape(-1, 2, config["head_dim"] // 2, weight.shape[1])
            weight = halves.swapaxes(1, 2).reshape(weight.shape)
        writer.add_tensor(name, np.ascontiguousarray(weight, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file
