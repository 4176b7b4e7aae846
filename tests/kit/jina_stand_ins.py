"""Stand-ins of Jina v3 and v4: folders that sentence-transformers loads, with module code of the real ones' signatures.

The weights are a random embedding per token and task; every call's arguments are recorded in ``model[0].calls``.
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
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedTokenizerFast

NAMES = {names}
DIM = {dim}


def mean_by_task(ids, mask, task):
    generator = torch.Generator().manual_seed(NAMES.index(task) if task in NAMES else 99)
    table = torch.randn(600, DIM, generator=generator)
    return table[ids], mask.unsqueeze(-1)
"""

_V3 = """
class Transformer(nn.Module):
    save_in_root = True

    def __init__(self, model_name_or_path, max_seq_length=None, model_args=None, tokenizer_args=None, config_args=None,
                 cache_dir=None, do_lower_case=False, tokenizer_name_or_path=None, **kwargs):
        super().__init__()
        self.given, self.calls = dict(model_args or {}), []
        self.tokenizer = PreTrainedTokenizerFast.from_pretrained(model_name_or_path)
        self.max_seq_length = max_seq_length or 8192
        self.weight = nn.Parameter(torch.zeros(1))

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
        self.default_task = self.given.pop("default_task", None)
        self.processor = Processor(model_name_or_path)
        self.max_seq_length = max_seq_length or 8192
        self.weight = nn.Parameter(torch.zeros(1))

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


def build(folder: Path, version: str, texts: Sequence[str]) -> str:
    """Write one of a version, ``v3`` or ``v4``, with the vocabulary of some texts; returns its path."""
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
    (folder / "config.json").write_text(json.dumps({"model_type": "bert"}))
    return str(folder)
