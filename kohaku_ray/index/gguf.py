"""GGUF files, as llama.cpp's models come: converted once into a directory that transformers loads."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kohaku_ray.errors import ConfigError
from kohaku_ray.records import digest

SUFFIX = ".gguf"

SOURCE = "gguf.json"
"""File in a converted directory: the hash of the GGUF file."""

BYTES_PER_WEIGHT = 2
"""Converted weights are bfloat16."""

_ELSEWHERE = "serve it by llama.cpp or Ollama (models/openai, models/ollama), or name another model"


def is_gguf(model: str) -> bool:
    """Tell whether a model's name is that of a GGUF file."""
    return model.endswith(SUFFIX) and not os.path.isdir(model)


def gguf_identity(file: Path) -> str:
    """Return the identity of a GGUF file's content, wherever it is; arguments and errors as of ``converted``."""
    return f"gguf:{json.loads((converted(file) / SOURCE).read_text())['sha256']}"


def converted(file: Path) -> Path:
    """Return the directory of a GGUF file's model: config.json, weights, tokenizer; converted at the first call.

    A changed file is another model.

    Raises:
        ConfigError: It is not there, torn, or of an architecture that transformers does not read; the package gguf is
            missing; the cache has no room.
    """
    try:
        stat = file.stat()
    except OSError as error:
        raise ConfigError(f"model is {file} and cannot be read: {error.strerror or error}") from error
    return _converted(file.resolve(), stat.st_size, stat.st_mtime_ns)


@functools.lru_cache(maxsize=16)
def _converted(file: Path, size: int, mtime_ns: int) -> Path:
    cache = cache_directory() / "gguf"
    target = cache / f"{file.stem}-{digest([str(file), size, mtime_ns], 8)}"
    if (target / SOURCE).is_file():
        return target
    if importlib.util.find_spec("gguf") is None:
        raise ConfigError(
            f"model is {file}, a GGUF file, but the package gguf is missing: pip install 'kohaku-ray[transformers]'"
        )
    from gguf import GGUFReader

    try:
        tensors = GGUFReader(file).tensors
    except Exception as error:  # the reader checks nothing: a torn file raises whatever its bytes lead to
        raise ConfigError(
            f"{file} cannot be read as a GGUF file ({type(error).__name__}: {error}): it may be torn; fetch it again"
        ) from error
    needed = sum(int(tensor.n_elements) for tensor in tensors) * BYTES_PER_WEIGHT + size // 10  # and the tokenizer
    with _room(cache, needed):
        cache.mkdir(parents=True, exist_ok=True)
        if (free := shutil.disk_usage(cache).free) < needed:
            raise OSError(f"{_mb(free)} are free")
        logging.getLogger(__name__).warning("%s is converted once, into %s (%s)", file, target, _mb(needed))
        half = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=cache))
        try:
            _convert(file, half)
            with file.open("rb") as data:
                sha256 = hashlib.file_digest(data, "sha256").hexdigest()
            (half / SOURCE).write_text(json.dumps({"sha256": sha256, "file": str(file)}))
            half.rename(target)
        except OSError:
            if not (target / SOURCE).is_file():  # else another process was faster
                raise
        finally:
            shutil.rmtree(half, ignore_errors=True)
    return target


def cache_directory() -> Path:
    """Return where converted models are kept: ``KOHAKU_CACHE``, or ``kohaku_ray`` in the user's cache directory."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("KOHAKU_CACHE") or f"{home}/kohaku_ray").expanduser().absolute()


@contextmanager
def _room(cache: Path, needed: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"the converted model takes {_mb(needed)} in {cache}, which cannot be written "
            f"({error.strerror or error}): free some, or set KOHAKU_CACHE to another directory"
        ) from error


def _mb(n_bytes: int) -> str:
    return f"{n_bytes / 1e6:,.0f} MB"


def _convert(file: Path, directory: Path) -> None:
    from unittest import mock

    import torch
    from tqdm import tqdm
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging as library

    library.disable_progress_bar()
    library.set_verbosity_error()
    where: dict[str, Any] = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    try:
        # transformers asks for accelerate here and then does not use it for a model on a CPU.
        with (
            mock.patch("transformers.modeling_utils.is_accelerate_available", return_value=True),
            mock.patch("transformers.modeling_gguf_pytorch_utils.tqdm", functools.partial(tqdm, disable=None)),
        ):
            model = AutoModelForCausalLM.from_pretrained(dtype=torch.bfloat16, **where)
        tokenizer = AutoTokenizer.from_pretrained(**where)
    except (ValueError, KeyError, NotImplementedError, ImportError) as error:
        raise ConfigError(f"{file} cannot be converted ({error}): {_ELSEWHERE}") from error
    # The weights are plain numbers now.
    model.hf_quantizer, model.is_quantized = None, False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
