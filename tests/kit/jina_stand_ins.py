"""Stand-ins of Jina v3 and v4: folders that sentence-transformers loads, as the published ones are loaded.

Their code has the signatures of the real modules (``custom_st.py``), imports from other packages what the real files
import, and gets its model by ``AutoModel``, from a class of the real structure. ``BREAKS`` names what of that structure
does not load here; without it a stand-in is what mended code would be. Its weights are a random embedding per token and
task; every call's arguments are recorded in ``model[0].calls``.

The real files were read in public copies: xlm-roberta-flash-implementation of 2024, jina-embeddings-v4 of 2025.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

DIMS = {"v3": 1024, "v4": 2048}
PROMPTS = {
    "v3": {
        "retrieval.query": "Represent the query for retrieving evidence documents: ",
        "retrieval.passage": "Represent the document for retrieval: ",
    },
    "v4": {"query": "Query: ", "passage": "Passage: "},
}
TASKS = {"v3": ["retrieval.query", "retrieval.passage", "text-matching"], "v4": ["retrieval", "text-matching", "code"]}

_COMMON = """
import json
import os
from io import BytesIO
from pathlib import Path

import torch
from torch import nn
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedTokenizerFast

NAMES = {names}
DIM = {dim}


def mean_by_task(ids, mask, task):
    generator = torch.Generator().manual_seed(NAMES.index(task) if task in NAMES else 99)
    table = torch.randn(600, DIM, generator=generator)
    return table[ids], mask.unsqueeze(-1)
"""

_CONFIGURATION = """
from transformers import PretrainedConfig


class Config(PretrainedConfig):
    model_type = "{model_type}"

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
"""

_IMPORTS = {
    "v3": """
import importlib.util
import math
import re
from functools import partial

import numpy as np
import torch
import torch.nn.utils.parametrize as parametrize
from einops import rearrange, repeat
from torch import nn
from transformers import AutoTokenizer, PretrainedConfig
from transformers.modeling_outputs import MaskedLMOutput, SequenceClassifierOutput
from transformers.modeling_utils import PreTrainedModel
from transformers.models.bert.modeling_bert import (
    BaseModelOutputWithPoolingAndCrossAttentions,
    BertForPreTrainingOutput,
)
from transformers.models.xlm_roberta.modeling_xlm_roberta import XLMRobertaLMHead
""",
    "v4": """
import math
from functools import partial

import numpy as np
import requests
import torch
from huggingface_hub import snapshot_download
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader
from tqdm import tqdm
from transformers import BatchFeature
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache, DynamicCache, SlidingWindowCache, StaticCache
from transformers.configuration_utils import PretrainedConfig
from transformers.feature_extraction_utils import BatchFeature
from transformers.generation import GenerationMixin
from transformers.image_utils import ImageInput
from transformers.modeling_attn_mask_utils import AttentionMaskConverter
from transformers.modeling_flash_attention_utils import flash_attn_supports_top_left_mask, is_flash_attn_available
from transformers.modeling_outputs import BaseModelOutputWithPast, ModelOutput
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS, dynamic_rope_update, rope_config_validation
from transformers.modeling_utils import PreTrainedModel
from transformers.utils import (
    auto_docstring,
    can_return_tuple,
    is_flash_attn_2_available,
    is_torch_flex_attn_available,
    logging,
)
from transformers.processing_utils import ImagesKwargs, ProcessingKwargs, ProcessorMixin, Unpack, VideosKwargs
from transformers.tokenization_utils_base import PreTokenizedInput, TextInput
from transformers.video_utils import VideoInput
""",
}

_PEFT = """
from peft import LoraConfig, PeftModel
from peft.tuners.lora import LoraLayer
"""

_MODELS = {
    "v3": """
class Inner(PreTrainedModel):
    config_class = Config

    def __init__(self, config):
        super().__init__(config)
        self.weight = nn.Parameter(torch.zeros(1))
        self.post_init()


class Model(PreTrainedModel):
    config_class = Config
    base_model_prefix = "roberta"

    def __init__(self, config):
        super().__init__(config)
        self.roberta = Inner(config)
        {post_init}
""",
    "v4": """
class Model(PreTrainedModel):
    config_class = Config

    def __init__(self, config):
        super().__init__(config)
        self.weight = nn.Parameter(torch.zeros(1))
        self.rope_init = {rope}
        self.post_init()
""",
}
BREAKS = {"v3": ("post_init",), "v4": ("peft", "rope")}
"""What published code does that transformers 5 does not load: no ``post_init`` for the adapters' class; PEFT, which is
a package of its own; and rotary positions looked up as "default", which left the table of them."""

_V3 = """
class Transformer(nn.Module):
    save_in_root = True

    def __init__(self, model_name_or_path, max_seq_length=None, model_args=None, tokenizer_args=None, config_args=None,
                 cache_dir=None, do_lower_case=False, tokenizer_name_or_path=None, **kwargs):
        super().__init__()
        self.given, self.calls = dict(model_args or {}), []
        self.config = AutoConfig.from_pretrained(model_name_or_path, **(config_args or {}))
        self.auto_model = AutoModel.from_pretrained(model_name_or_path, config=self.config, **self.given)
        self.tokenizer = PreTrainedTokenizerFast.from_pretrained(model_name_or_path)
        self.max_seq_length = max_seq_length or 8192

    def get_word_embedding_dimension(self):
        return DIM

    def tokenize(self, texts, padding=True):
        self.calls.append(("tokenize", list(texts)))
        return dict(self.tokenizer(list(texts), padding=padding, truncation=True, max_length=self.max_seq_length,
                                   return_tensors="pt"))

    def forward(self, features, task=None):
        if task and task not in NAMES:
            raise ValueError(f"Unsupported task {task}")
        self.calls.append(("forward", task))
        tokens, _ = mean_by_task(features["input_ids"], features["attention_mask"], task)
        return {**features, "token_embeddings": tokens}

    @classmethod
    def load(cls, input_path):
        return cls(model_name_or_path=input_path)
"""

_V4 = """
class Processor:
    def __init__(self, path):
        self.tokenizer = PreTrainedTokenizerFast.from_pretrained(path)

    def process_texts(self, texts, max_length=None):
        return self.tokenizer(list(texts), padding=True, truncation=True, max_length=max_length, return_tensors="pt")

    def process_images(self, images):
        return {"pixel_values": torch.stack([torch.tensor([image.width, image.height]) for image in images])}


class Transformer(nn.Module):
    save_in_root = True

    def __init__(self, model_name_or_path="jinaai/jina-embeddings-v4", max_seq_length=None, config_args=None,
                 model_args=None, tokenizer_args=None, cache_dir=None, backend="torch", **kwargs):
        super().__init__()
        self.given, self.calls = dict(model_args or {}), []
        self.config = AutoConfig.from_pretrained(model_name_or_path, **(config_args or {}))
        self.default_task = self.given.pop("default_task", None)
        self.model = AutoModel.from_pretrained(model_name_or_path, config=self.config, **self.given)
        self.processor = Processor(model_name_or_path)
        self.max_seq_length = max_seq_length or 8192

    def tokenize(self, texts, padding=True):
        found, at = {}, {"text": [], "image": []}
        for place, text in enumerate(texts):
            if isinstance(text, str):
                bare = text
                for prompt in ("Query: ", "Passage: "):
                    bare = bare.removeprefix(prompt)
                if bare.startswith("http"):
                    raise ConnectionError(f"an image is fetched from {bare}")
                try:
                    is_file = Path(bare).is_file()
                except (OSError, ValueError):
                    is_file = False
                if is_file:
                    raise OSError(f"{bare} is opened as an image")
            at["text" if isinstance(text, str) else "image"].append(place)
        self.calls.append(("tokenize", list(texts)))
        for kind, process in (("text", lambda rows: self.processor.process_texts(rows, max_length=self.max_seq_length)),
                              ("image", self.processor.process_images)):
            if at[kind]:
                given = process([texts[place] for place in at[kind]])
                found.update({f"{kind}_{key}": value for key, value in given.items()})
                found[f"{kind}_indices"] = at[kind]
        return found

    def forward(self, features, task=None, truncate_dim=None):
        task = task or self.default_task
        if task not in NAMES:
            raise ValueError("Task must be specified before encoding data.")
        self.calls.append(("forward", task))
        rows = {}
        if "text_indices" in features:
            tokens, mask = mean_by_task(features["text_input_ids"], features["text_attention_mask"], task)
            means = (tokens * mask).sum(1) / mask.sum(1).clamp(min=1)
            rows.update(zip(features["text_indices"], means))
        if "image_indices" in features:
            table = torch.randn(2, DIM, generator=torch.Generator().manual_seed(7))
            rows.update(zip(features["image_indices"], features["image_pixel_values"].float() @ table))
        return {**features, "sentence_embedding": torch.stack([rows[place] for place in sorted(rows)])}

    @classmethod
    def load(cls, input_path):
        return cls(model_name_or_path=input_path)
"""


def build(folder: Path, version: str, texts: Sequence[str], *breaks: str) -> str:
    """Write one of a version, ``v3`` or ``v4``, with the vocabulary of some texts, and some of ``BREAKS``.

    Returns:
        Its path.
    """
    import torch
    from safetensors.torch import save_file
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    words = [*texts, *PROMPTS[version].values()]
    tokenizer.train_from_iterator(words, trainers.WordLevelTrainer(special_tokens=["[PAD]", "[UNK]"], vocab_size=500))
    folder.mkdir(parents=True)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", model_max_length=8192
    ).save_pretrained(folder)
    code = _COMMON.format(names=TASKS[version], dim=DIMS[version]) + {"v3": _V3, "v4": _V4}[version]
    (folder / "custom_st.py").write_text(code)
    kwargs = {"v3": ["task"], "v4": ["task", "truncate_dim"]}[version]
    modules = [{"name": "transformer", "path": "", "type": "custom_st.Transformer", "kwargs": kwargs}]
    if version == "v3":
        modules.append({"name": "pooler", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"})
        (folder / "1_Pooling").mkdir()
        pooling = {"word_embedding_dimension": DIMS["v3"], "pooling_mode_mean_tokens": True}
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    modules.append({"name": "normalizer", "path": "normalize", "type": "sentence_transformers.models.Normalize"})
    (folder / "normalize").mkdir()
    numbered = [{"idx": number, **module} for number, module in enumerate(modules)]
    (folder / "modules.json").write_text(json.dumps(numbered))
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": PROMPTS[version]}))
    model_type = {"v3": "xlm-roberta", "v4": "jina_embeddings_v4"}[version]
    (folder / "configuration.py").write_text(_CONFIGURATION.format(model_type=model_type))
    model = _MODELS[version].format(
        post_init="" if "post_init" in breaks else "self.post_init()",
        rope='ROPE_INIT_FUNCTIONS["default"]' if "rope" in breaks else 'ROPE_INIT_FUNCTIONS["linear"]',
    )
    imports = _IMPORTS[version] + (_PEFT if "peft" in breaks else "")
    (folder / "modeling.py").write_text(f"{imports}\nfrom .configuration import Config\n\n{model}")
    auto = {"AutoConfig": "configuration.Config", "AutoModel": "modeling.Model"}
    (folder / "config.json").write_text(json.dumps({"model_type": model_type, "auto_map": auto}))
    weight = {"v3": "roberta.weight", "v4": "weight"}[version]
    save_file({weight: torch.zeros(1)}, folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)
