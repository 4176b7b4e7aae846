"""Models of Hugging Face transformers in this process: settings, loading, and replies by the library's ``generate``.

Calls run one after the other: a batch of ``generate`` has one seed and one length for all its rows.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol
from unittest import mock

import numpy as np
from jinja2.exceptions import TemplateError
from pydantic import Field, model_validator

from kohaku_ray.errors import ConfigError, ContextOverflowError, ModelError
from kohaku_ray.index.cuda import unusable_gpus
from kohaku_ray.index.identity import GGUF, model_files
from kohaku_ray.models.backend import WeightsConfig, check_window, find_model_config
from kohaku_ray.models.request import ChatRequest, check_finished
from kohaku_ray.records import CUT, WHOLE, Reply, canonical_json
from kohaku_ray.settings import PositiveInt
from kohaku_ray.values.read import clean_text

if TYPE_CHECKING:
    import torch

PACKAGES = {
    "llguidance": "kohaku-ray[transformers]",
    "gguf": "kohaku-ray[transformers]",
    "bitsandbytes": "kohaku-ray[bitsandbytes]",
    "accelerate": "kohaku-ray[bitsandbytes]",
}
"""Optional packages, with the extra that installs each."""


class TransformersConfig(WeightsConfig):
    """A causal language model of Hugging Face transformers, where vLLM is not."""

    kind: Literal["transformers"] = "transformers"
    max_ongoing: PositiveInt = 32
    """Requests in flight per replica, which answers one after the other."""
    gpus: Annotated[float, Field(ge=0)] = 0
    """GPUs per replica, such as 0.5; above 1 the model is spread over them (accelerate); 0: runs on CPUs."""
    cpus: PositiveInt = 1
    """CPUs per replica; without GPUs, the threads that compute."""
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    """Number format of the weights; auto: the model's own on a GPU, bfloat16 on CPUs that have it, else float32."""
    load_in_4bit: bool = False
    """Quantise the weights to 4 bits (NF4) by bitsandbytes, which is installed separately."""
    window_tokens: PositiveInt | None = None
    """Longest prompt plus answer, in tokens; None: what the model's config.json says."""
    reasoning_end: str | None = None
    """Text that ends the model's reasoning, such as </think>: the reply and its schema begin after it."""

    @property
    def window(self) -> int:
        """Longest prompt plus reply, in tokens.

        Raises:
            ConfigError: It is not set and the model's config.json does not say, or it is set to more than that.
        """
        file = find_model_config(self.model, self.revision)
        longest = None if file is None else check_window(self.window_tokens, file)
        if self.window_tokens is None and longest is None:
            why = f"{file} does not say it" if file is not None else "its config.json cannot be read here"
            raise ConfigError(
                f"window_tokens is not set and the window of {self.model} is unknown ({why}): set window_tokens, "
                "correct the name, or download the model"
            )
        return self.window_tokens or longest or 0

    @property
    def model_identity(self) -> str:
        """The model's name, and what else changes its replies."""
        changing = ("revision", "dtype", "load_in_4bit", "chat_template_kwargs", "reasoning_end", "reasoning_tokens")
        extra = canonical_json({name: getattr(self, name) for name in changing})
        return f"transformers:{self.identity or self.model} {extra}"

    def check(self, here: bool) -> None:
        """Check packages and window; see ``BackendConfig.check``."""
        if here and self.application is None:
            self._require_packages()
        _ = self.window

    def make_backend(self, limiter: Any = None, *, with_key: bool = True) -> Any:
        """Load the model; see ``BackendConfig.make_backend``."""
        self._require_packages()
        window_tokens = self.window
        try:
            files = model_files(self.model, self.revision)
        except ConfigError:
            from huggingface_hub import snapshot_download

            try:
                files = {"pretrained_model_name_or_path": snapshot_download(self.model, revision=self.revision)}
            except Exception as error:  # the hub's client raises many types
                raise ConfigError(
                    f"model is {self.model!r} but it is neither a directory nor can it be downloaded ({error}): "
                    "correct the name, or download it first"
                ) from error
        return LocalBackend(*load_model(files, self), self, window_tokens)

    def _require_packages(self) -> None:
        needed = {"llguidance": "kind is transformers"}
        if self.model.endswith(GGUF):
            needed["gguf"] = f"model is {self.model}, a GGUF file,"
        if self.load_in_4bit:
            needed |= dict.fromkeys(("bitsandbytes", "accelerate"), "load_in_4bit is true")
        if self.gpus > 1:
            needed["accelerate"] = f"gpus is {self.gpus:g}"
        for package, reason in needed.items():
            if importlib.util.find_spec(package) is None:
                raise ConfigError(f"{reason} but the package {package} is missing: pip install '{PACKAGES[package]}'")

    @model_validator(mode="after")
    def _settings_agree(self) -> TransformersConfig:
        if self.vision:
            raise ValueError("vision is true but kind transformers sends no images: use kind vllm or openai")
        if self.gpus > 1 and self.gpus != int(self.gpus):
            raise ValueError(f"gpus is {self.gpus:g}: above 1 it must be a whole number")
        if self.reasoning_end and not self.reasoning_tokens:
            raise ValueError(
                f"reasoning_end is {self.reasoning_end} but reasoning_tokens is 0: set the tokens the model may reason "
                "for, such as 2048"
            )
        return self


def load_model(files: Mapping[str, str], settings: TransformersConfig) -> tuple[Any, Any]:
    """Load a model from its files, as ``model_files`` names them, on its device, and its tokenizer.

    Raises:
        ConfigError: There is no GPU, or the model or its tokenizer cannot be loaded.
    """
    # Read when torch is loaded. Threads that wait by spinning stand still for minutes where cores are shared.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig, GgufConfig
    from transformers.integrations import sdpa_attention
    from transformers.utils import logging as library

    library.disable_progress_bar()

    if settings.gpus and not torch.cuda.is_available():
        reason = unusable_gpus() or "torch sees no GPU: install a torch with CUDA"
        raise ConfigError(f"gpus is {settings.gpus:g} but {reason}; or set gpus to 0")
    if not settings.gpus:
        torch.set_num_threads(settings.cpus)
        # On a CPU, torch's own handling of grouped heads takes ten times as long per token as the library's packing.
        sdpa_attention.use_gqa_in_sdpa = lambda *_: False
    chosen: Any = "auto"
    if settings.dtype != "auto":
        chosen = getattr(torch, settings.dtype)
    elif not settings.gpus:
        has = torch.cpu.get_capabilities()
        chosen = torch.bfloat16 if has.get("avx512_bf16") or has.get("amx_bf16") else torch.float32
    code = {"trust_remote_code": settings.trust_remote_code}
    kwargs: dict[str, Any] = {"dtype": chosen}
    if settings.load_in_4bit:
        kwargs["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_compute_dtype=torch.bfloat16 if chosen == "auto" else chosen,
        )
    elif "gguf_file" in files:  # packed weights are unpacked for every token
        kwargs["quantization_config"] = GgufConfig(dequantize=True)
    if settings.gpus > 1:
        kwargs["device_map"] = "auto"
    elif settings.load_in_4bit:
        kwargs["device_map"] = {"": "cuda:0" if settings.gpus else "cpu"}
    try:
        tokenizer = AutoTokenizer.from_pretrained(**files, **code)
        # The library asks for accelerate where it reads a GGUF file, and then does not use it for a model on a CPU.
        with mock.patch("transformers.modeling_utils.is_accelerate_available", return_value=True):
            model = AutoModelForCausalLM.from_pretrained(**files, **code, **kwargs)
    except Exception as error:  # a GGUF file that is torn raises whatever its bytes lead to
        raise ConfigError(
            f"{settings.model} cannot be loaded as a causal language model ({type(error).__name__}: {error}): correct "
            "its name, fetch its files again, or serve it by vLLM, llama.cpp or Ollama"
        ) from error
    if not tokenizer.is_fast:
        raise ConfigError(
            f"{settings.model} has no fast tokenizer (tokenizer.json), which a schema needs: name another model"
        )
    if "device_map" not in kwargs and settings.gpus:
        model = model.to("cuda:0")
    return model, tokenizer


class DecodingSettings(Protocol):
    """What a deployment says of how its model replies."""

    model: str
    chat_template_kwargs: dict[str, Any]
    reasoning_end: str | None
    reasoning_tokens: int


class LocalBackend:
    """A causal language model with its tokenizer, which answers one call after the other.

    A call is seeded by itself, so that its reply does not depend on which other calls there are.
    """

    def __init__(self, model: Any, tokenizer: Any, settings: DecodingSettings, window_tokens: int) -> None:
        """Take over a causal language model of transformers, on its device, with its fast tokenizer."""
        import torch
        from llguidance.hf import from_tokenizer
        from transformers import GenerationConfig

        self._model, self._tokenizer, self._name = model.eval(), tokenizer, settings.model
        self._window_tokens, self._template_kwargs = window_tokens, settings.chat_template_kwargs
        self._reasoning_tokens, end = settings.reasoning_tokens, settings.reasoning_end
        self._reasoning_end = _encode(tokenizer, end) if end else []
        ends = model.generation_config.eos_token_id if model.generation_config is not None else None
        listed = (*(ends if isinstance(ends, list) else [ends]), tokenizer.eos_token_id)
        self._end_ids = sorted({int(token) for token in listed if token is not None})
        # The model's own settings, such as a top_k of 1, would be added to a request's.
        model.generation_config = GenerationConfig(eos_token_id=self._end_ids, pad_token_id=self._end_ids[0])
        n_vocabulary = max(tokenizer.get_vocab().values()) + 1
        self._grammar_tokenizer = from_tokenizer(tokenizer, n_vocab=n_vocabulary, eos_token=self._end_ids)
        if tokenizer.chat_template is None:
            logging.getLogger(__name__).warning(
                "%s has no chat template: messages are joined by line breaks", self._name
            )
        # One thread: torch's threads and random numbers belong to one call at a time.
        threads = torch.get_num_threads()
        self._thread = ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(threads,))

    async def chat(self, request: ChatRequest) -> Reply:
        """Answer one request when those before it are answered.

        Raises:
            ContextOverflowError: The prompt and the longest reply do not fit the window.
            UnfinishedReplyError: The model generated no token.
            ModelError: The schema does not compile, or the model broke on this request.
        """
        prompt = self._prompt(request.messages)
        if len(prompt) + request.max_tokens > self._window_tokens:
            raise ContextOverflowError(
                f"{self._name}: the prompt has {len(prompt)} tokens and the reply may have {request.max_tokens}, but "
                f"window_tokens is {self._window_tokens}: lower the context budget or max_tokens"
            )
        grammar = None if request.schema is None else matcher(self._grammar_tokenizer, request.schema)
        constraint = _Constraint(len(prompt), grammar, self._reasoning_end, self._reasoning_tokens)
        reply = await asyncio.get_running_loop().run_in_executor(
            self._thread, self._generate, request, prompt, constraint
        )
        check_finished(reply)
        return reply

    async def close(self) -> None:
        """Wait until the requests in flight are answered."""
        await asyncio.to_thread(self._thread.shutdown)

    def _generate(self, request: ChatRequest, prompt: list[int], constraint: _Constraint) -> Reply:
        import torch
        from transformers import LogitsProcessorList, StoppingCriteriaList

        ids = torch.tensor([prompt], device=self._model.device)
        sampling = {"temperature": request.temperature, "top_p": request.top_p, "top_k": 0}
        torch.manual_seed(request.seed)
        try:
            tokens = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=request.max_tokens,
                do_sample=request.temperature > 0,
                logits_processor=LogitsProcessorList([constraint.mask]),
                stopping_criteria=StoppingCriteriaList([constraint.ends]),
                **(sampling if request.temperature > 0 else {}),
            )[0, len(prompt) :].tolist()
        except torch.OutOfMemoryError as error:
            torch.cuda.empty_cache()
            raise ModelError(
                f"{self._name}: a prompt of {len(prompt)} tokens does not fit the GPU's memory: lower window_tokens, "
                "or load the model in 4 bits"
            ) from error
        except ModelError:
            raise
        except Exception as error:
            raise ModelError(f"{self._name}: {type(error).__name__}: {error}") from error
        is_whole = tokens[-1] in self._end_ids or constraint.is_complete
        tokens = tokens[:-1] if tokens[-1] in self._end_ids else tokens
        begin = len(tokens) if constraint.reply_at is None else constraint.reply_at - len(prompt)
        return Reply(
            text=clean_text(self._tokenizer.decode(tokens[begin:], skip_special_tokens=True)),
            prompt_tokens=len(prompt),
            completion_tokens=len(tokens),
            finish_reason=WHOLE if is_whole else CUT,
        )

    def _prompt(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        """Render the chat template; a template that refuses a system message gets it before the user's."""
        if self._tokenizer.chat_template is None:
            return list(self._tokenizer("\n".join(content for _, content in messages))["input_ids"])
        try:
            text = self._rendered(messages)
        except TemplateError:
            told = "\n\n".join(content for role, content in messages if role == "system")
            rest = [message for message in messages if message[0] != "system"]
            if not told or not rest:
                raise
            text = self._rendered([(rest[0][0], f"{told}\n\n{rest[0][1]}"), *rest[1:]])
        return _encode(self._tokenizer, text)

    def _rendered(self, messages: Sequence[tuple[str, str]]) -> str:
        turns = [{"role": role, "content": content} for role, content in messages]
        text: str = self._tokenizer.apply_chat_template(
            turns, tokenize=False, add_generation_prompt=True, **self._template_kwargs
        )
        return text


def _encode(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


class _Constraint:
    """What ``generate`` may write in one call: reasoning of bounded length, then what the grammar allows.

    Attributes:
        reply_at: Where the reply begins among all tokens; None while the model reasons.
        is_complete: Whether the grammar takes no further token.
    """

    def __init__(self, n_prompt: int, grammar: Any, reasoning_end: list[int], reasoning_tokens: int) -> None:
        self._grammar, self._reasoning_end = grammar, reasoning_end
        self._forced_at = n_prompt + reasoning_tokens
        self.reply_at = None if reasoning_end else n_prompt
        self.is_complete = False

    def mask(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Forbid what may not come next; a ``ModelError`` says why nothing may."""
        import torch

        if not torch.isfinite(scores.max()) or torch.isnan(scores).any():
            raise ModelError("the model's logits are not numbers: set dtype to bfloat16 or float32")
        n_over = input_ids.shape[1] - self._forced_at
        allowed = np.zeros(scores.shape[-1], np.bool_)
        if self.reply_at is None:
            if not 0 <= n_over < len(self._reasoning_end):
                return scores
            allowed[self._reasoning_end[n_over]] = True
        elif self._grammar is None:
            return scores
        else:  # a model's vocabulary may be padded
            bits = np.unpackbits(np.frombuffer(self._grammar.compute_bitmask(), np.uint8), bitorder="little")
            allowed[: len(bits)] = bits[: len(allowed)]
            if not allowed.any():
                reason = self._grammar.get_error() or "it ended"
                raise ModelError(f"the grammar of the reply allows no token: {reason}")
        return scores.masked_fill(~torch.from_numpy(allowed).to(scores.device), -torch.inf)

    def ends(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        """Take the token that was chosen last, and tell whether the reply ends with it."""
        import torch

        if self.reply_at is None:
            n_end = len(self._reasoning_end)
            if input_ids[0, -n_end:].tolist() == self._reasoning_end:
                self.reply_at = input_ids.shape[1]
        elif self._grammar is not None:
            if not self._grammar.consume_token(int(input_ids[0, -1])):
                raise ModelError(f"the grammar of the reply broke: {self._grammar.get_error()}")
            self.is_complete = self._grammar.is_stopped()
        return torch.tensor([self.is_complete], device=input_ids.device)


_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def matcher(tokenizer: Any, schema: Mapping[str, Any]) -> Any:
    """Compile a schema to a matcher of JSON with a space after each colon and comma, as vLLM's xgrammar writes it.

    Models have read it so: without these spaces Qwen2.5-Coder-0.5B left 17 of 30 answers without a reference, with them
    3. No space is optional: a weak model may repeat white space without end.

    Raises:
        ModelError: The schema is not one that the library supports.
    """
    from llguidance import LLMatcher

    try:
        grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=_SPACING)
        compiled = LLMatcher(tokenizer, grammar)
    except ValueError as error:
        raise ModelError(f"the schema of the reply does not compile: {error}") from error
    if compiled.is_error():
        raise ModelError(f"the schema of the reply does not compile: {compiled.get_error()}")
    return compiled
