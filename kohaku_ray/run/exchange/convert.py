"""Turn a configuration of KohakuRAG or of the hybrid pipeline into one of ours, once: ``kohaku-ray init --from FILE``.

KohakuRAG's ``.py`` files are parsed, never run: they may hold assignments of literals, docstrings, plain imports and
the ``def config_gen(): return Config.from_globals()`` that KohakuEngine asks for. A key that the file lacks gets its
program's own default; a file that names no models gets the package's encoder and the extractive backend. Whatever is
not taken over as written is named with its reason; values are not, for they may be secrets.

Sources: github.com/KohakuBlueleaf/KohakuRAG (scripts/wattbot_answer.py, src/kohakurag/pipeline.py),
github.com/qualiaMachine/KohakuRAG_UI (hf_local, retrieval_threshold, no_overlap, bm25_top_k), and the hybrid pipeline's
``config.py`` and ``defaults.py``.
"""

from __future__ import annotations

import ast
import os
import posixpath
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kohaku_ray.config import build_config
from kohaku_ray.config.load import parse_file, put
from kohaku_ray.errors import ConfigError, did_you_mean
from kohaku_ray.storage import is_uri
from kohaku_ray.systems.registry import find_system

Values = dict[str, Any]

_SECRET = re.compile(r"key|token$|secret|password", re.IGNORECASE)
_NO_SECRETS = "a key stands in the environment variable that deployments.*.api_key_env names"
_OWN_CODE = "runs code of its own, which only you can allow: index.encoder.trust_remote_code=true"
_NO_VISION = (
    "the model that answers here reads no images, so that their captions alone are shown: serve one by kind vllm or "
    "openai with vision: true, and set kohaku.send_images"
)
_ENV_LINE = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)\s*=\s*(.*)")
_FROM_GLOBALS = "return Config.from_globals()"
_PATHS = ("documents.paths", "documents.metadata", "questions.path", "index.path", "run")


@dataclass(frozen=True, slots=True)
class Converted:
    """Values by our dotted keys, made from a program's; and why a name of its file is not taken over as written."""

    program: str
    values: Values
    left_out: dict[str, str]

    def text(self, source: str, directory: str) -> str:
        """Write it as YAML whose relative paths, so far relative to the working directory, are relative to one."""
        nested: Values = {}
        for key, value in self.values.items():
            put(nested, key, value, source)
        build_config(nested, source)
        for key in _PATHS:
            if (value := self.values.get(key)) is not None:
                put(nested, key, _relative(value, directory), source)
        head = [f"Made from {os.path.basename(source)}, a configuration of {self.program}."]
        head += [f"Not taken over as written: {name} ({reason})" for name, reason in self.left_out.items()]
        comment = "".join(f"# {' '.join(line.split())}\n" for line in head)
        return comment + yaml.safe_dump(nested, sort_keys=False, allow_unicode=True)


def convert(file: str) -> Converted:
    """Read another program's configuration: ``.py``, ``.env``, YAML or JSON.

    Raises:
        ConfigError: It cannot be read, would have to be run, holds no name that is known, or a value of another kind.
    """
    path = Path(file)
    read = _read_python if path.suffix == ".py" else _read_env if path.name.endswith(".env") else parse_file
    values = read(path)
    names = {str(name).lower(): value for name, value in values.items()} if isinstance(values, Mapping) else {}
    hybrid = {*_HYBRID_RENAMED, *_HYBRID_OTHERS.split(), *find_system("hybrid").settings.model_fields}
    programs: dict[str, tuple[set[str], Callable[[_Given], Values]]] = {
        "KohakuRAG": ({*_RENAMED, *_OTHERS.split()}, _kohakurag),
        "the hybrid pipeline": (hybrid, _hybrid),
    }
    program, (known, translate) = max(programs.items(), key=lambda item: len(names.keys() & item[1][0]))
    if known.isdisjoint(names):
        raise ConfigError(
            f"{file} holds no name of a configuration of KohakuRAG, such as top_k, or of the hybrid pipeline, such as "
            "mmr_top_k: name such a file"
        )
    given = _Given(names)
    try:
        translated = translate(given)
    except (TypeError, AttributeError, KeyError) as error:
        raise ConfigError(f"{file} holds a value of another kind than {program} takes ({error}): correct it") from None
    return Converted(program, translated, given.left_out(known))


def _relative(path: Any, directory: str) -> Any:
    if isinstance(path, list):
        return [_relative(item, directory) for item in path]
    elsewhere = is_uri(path) or os.path.isabs(path) or path.startswith(("~", "sample:"))
    return path if elsewhere else os.path.relpath(path, directory)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from None


def _read_env(file: Path) -> Values:
    """Read ``NAME=value`` per line; a bad line is named by its number alone, for it may hold a secret."""
    values = {}
    for number, line in enumerate(map(str.strip, _text(file).splitlines()), 1):
        if not line or line.startswith("#"):
            continue
        if (assignment := _ENV_LINE.fullmatch(line)) is None:
            raise ConfigError(f"{file}: line {number} is no NAME=value: correct it, or begin it with #")
        name, raw = assignment[1], assignment[2]
        quoted = re.match(r"""(['"])(.*?)\1""", raw)
        bare = quoted[2] if quoted else re.split(r"(?:^|\s)#", raw, maxsplit=1)[0].strip()
        scalar = re.fullmatch(r"(?i)true|false|null|-?\d{1,15}(\.\d+)?", bare)
        values[name] = yaml.safe_load(bare) if scalar else bare
    return values


def _read_python(file: Path) -> Values:
    """Read the literals that a file assigns, without running it."""
    text = _text(file)
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(f"{file} is no Python that can be read: {error or 'nested too deeply'}") from None
    values: Values = {}
    for statement in body:
        match statement:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ):
                try:
                    values[name] = ast.literal_eval(value)
                except (ValueError, TypeError, MemoryError, RecursionError):
                    raise _computed(file, text, statement) from None
            case ast.Expr(value=ast.Constant()) | ast.Import() | ast.ImportFrom(module="kohakuengine"):
                pass
            case ast.FunctionDef(name="config_gen", body=[*_, last]) if ast.unparse(last) == _FROM_GLOBALS:
                pass
            case _:
                raise _computed(file, text, statement)
    return values


def _computed(file: Path, text: str, statement: ast.stmt) -> ConfigError:
    line = " ".join((ast.get_source_segment(text, statement) or "").split())
    return ConfigError(
        f"{file}:{statement.lineno}: `{line if len(line) <= 60 else line[:60] + '…'}` would have to be run, but a "
        "configuration is read and never run: write plain values such as top_k = 16"
    )


class _Given:
    """The values of one file; what is never taken is left out."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self._taken: set[str] = set()
        self._reasons: dict[str, str] = {}

    def take(self, name: str, default: Any = None) -> Any:
        """Return a value, or the default where there is none."""
        value = self._values.get(name)
        if value is None:
            return default
        self._taken.add(name)
        return value

    def leave(self, name: str, reason: str) -> None:
        """Say why a value is not taken over as written."""
        self._reasons[name] = reason

    def left_out(self, known: Collection[str]) -> dict[str, str]:
        """Return the reason of each name that is not taken over; what asks for nothing is not named."""
        for name, value in self._values.items():
            if value and name not in self._taken:
                unused = "no part of a run here" if name in known else f"no such name{did_you_mean(name, known)}"
                self._reasons.setdefault(name, _NO_SECRETS if _SECRET.search(name) else unused)
        return self._reasons


# KohakuRAG: its name and default, our key, and how the value changes.
_RENAMED: Mapping[str, tuple[Any, str, Callable[[Any], Any]]] = {
    "top_k": (5, "kohaku.top_k", lambda n: n),
    "planner_max_queries": (3, "kohaku.queries", lambda n: max(n, 1)),
    "bm25_top_k": (0, "kohaku.bm25_top_k", lambda n: max(n, 0)),
    "max_retries": (3, "kohaku.max_retries", lambda n: max(n, 0)),
    "retrieval_threshold": (None, "kohaku.retrieval_threshold", lambda n: n),
    "use_reordered_prompt": (False, "kohaku.prompt_order", ["question_first", "context_first"].__getitem__),
    "rerank_strategy": ("none", "kohaku.rerank", str.lower),
    "docs_dir": (None, "documents.paths", lambda path: [path]),
    "metadata": (None, "documents.metadata", str),
    "questions": (None, "questions.path", str),
    "output": (None, "run", lambda path: posixpath.splitext(path)[0]),
    "paragraph_search_mode": (None, "index.paragraph_vectors", str),
}
_OTHERS = """deduplicate_retrieval tree_dedup no_overlap top_k_final with_images top_k_images send_images_to_llm
llm_provider model planner_model base_url max_concurrent hf_model_id hf_dtype hf_max_new_tokens hf_temperature
embedding_model embedding_model_id embedding_dim embedding_task paragraph_embedding_mode db table_prefix
single_run_debug question_id site_url app_name openrouter_api_key openai_api_key api_key bedrock_model bedrock_profile
bedrock_region use_citations pdf_dir inputs ref_mode tiebreak"""
_SERVERS = {
    "openrouter": ("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY", "openai/gpt-5-nano"),
    "openai": ("${OPENAI_BASE_URL:-https://api.openai.com/v1}", "OPENAI_API_KEY", "gpt-4o-mini"),
}
_DTYPES: Mapping[str, Values] = {
    "bf16": {"dtype": "bfloat16"},
    "fp16": {"dtype": "float16"},
    "auto": {"dtype": "auto"},
    "4bit": {"load_in_4bit": True},
}
_JINA = {"jina": "jinaai/jina-embeddings-v3", "jinav4": "jinaai/jina-embeddings-v4"}


def _kohakurag(given: _Given) -> Values:
    # One file is one run there, without a budget for the context; a matched paragraph brings its whole section, a retry
    # widens top_k alone.
    values: Values = {"system": "kohaku", "kohaku.section_tokens": None, "kohaku.max_context_tokens": None}
    values |= {"kohaku.widen_final": False, "ensemble.members": 1}
    for name, (default, key, change) in _RENAMED.items():
        if (value := given.take(name, default)) is not None:
            values[key] = change(value)
    is_tree, drops = given.take("tree_dedup"), given.take("deduplicate_retrieval")
    drops = given.take("no_overlap") or drops  # node, at least, shows a text once
    values["kohaku.dedup"] = "tree" if is_tree else "node" if drops else "none"
    n_hits, final = values["kohaku.top_k"] * values["kohaku.queries"], given.take("top_k_final")
    values["kohaku.top_k_final"] = final if final is not None and 1 <= final <= n_hits else None
    if final is not None and final > n_hits:
        given.leave("top_k_final", f"it cuts nothing: top_k × planner_max_queries is {n_hits}")
    if stored := given.take("paragraph_embedding_mode"):
        # One kind is searched at a time there, whatever is stored.
        values.setdefault("index.paragraph_vectors", "averaged" if stored == "both" else stored)
    root, prefix = given.take("db"), given.take("table_prefix")
    if root or prefix:
        values["index.path"] = "/".join(filter(None, ((root or "runs/index").removesuffix(".db"), prefix)))
    models = _kohakurag_model(given)
    reads_images = models.get(f"deployments.{models.get('roles.answer.model')}", {}).get("vision", False)
    if given.take("with_images"):
        n_images = max(given.take("top_k_images", 0), 0)
        values |= {"index.images": True, "kohaku.images": "near", "kohaku.image_top_k": n_images}
        if given.take("send_images_to_llm") and n_images:
            if reads_images:
                values["kohaku.send_images"] = True
            else:
                given.leave("send_images_to_llm", _NO_VISION)
    return values | models | _kohakurag_encoder(given)


def _kohakurag_model(given: _Given) -> Values:
    provider, model = given.take("llm_provider"), given.take("model")
    if provider is None and model is not None:
        provider = "openrouter" if "/" in model else "openai"  # OpenRouter's names have a slash, OpenAI's have none
    entry: Values
    values: Values = {}
    if provider in _SERVERS:
        address, key, usual = _SERVERS[provider]
        entry = {"kind": "openai", "base_url": given.take("base_url", address), "api_key_env": key}
        entry["model"] = model or usual
    elif provider == "hf_local":
        entry = {"kind": "transformers", "model": given.take("hf_model_id", "Qwen/Qwen2.5-7B-Instruct")}
        entry |= _DTYPES[given.take("hf_dtype", "auto")]
        sampling = {"max_tokens": given.take("hf_max_new_tokens"), "temperature": given.take("hf_temperature")}
        values |= {f"roles.answer.{name}": value for name, value in sampling.items() if value is not None}
    else:
        if provider is not None:
            given.leave(
                "llm_provider", "no such backend here: add one to deployments and name it in roles.answer.model"
            )
        return {}
    if (most := given.take("max_concurrent", 10)) > 0:
        entry["max_ongoing"] = most
    if provider in _SERVERS and given.take("with_images") and given.take("send_images_to_llm"):
        entry["vision"] = True
    values |= {"roles.answer.model": provider, f"deployments.{provider}": entry}
    planner = given.take("planner_model")
    if planner is not None and planner != entry["model"]:
        values |= {"roles.plan.model": "planner", "deployments.planner": entry | {"model": planner}}
    return values


def _kohakurag_encoder(given: _Given) -> Values:
    name = given.take("embedding_model")
    if name is None:
        return {}
    if name == "hf_local":
        return {"index.encoder.model": given.take("embedding_model_id", "BAAI/bge-base-en-v1.5")}
    if name not in _JINA and "/" not in name:
        given.leave("embedding_model", "no such encoder here: name a sentence-transformers model")
        return {}
    values: Values = {"index.encoder.model": _JINA.get(name, name)}
    if name in _JINA:
        given.leave("embedding_model", f"{_JINA[name]} {_OWN_CODE}")
    if name == "jinav4":
        # There, passages are encoded with the query prompt too; the model was trained with one for each.
        values |= {"index.encoder.query_prompt": "query", "index.encoder.passage_prompt": "passage"}
        values["index.encoder.dim"] = given.take("embedding_dim", 1024)
        task = given.take("embedding_task", "retrieval")
        values |= dict.fromkeys(("index.encoder.query_task", "index.encoder.passage_task"), task)
    return values


# The hybrid pipeline: its name and default, and our key (no default: ours is the same); beside these it reads names of
# our own settings of hybrid.
_HYBRID_RENAMED: Mapping[str, tuple[Any, str]] = {
    "temperature": (0.3, "roles.answer.temperature"),
    "max_tokens": (5000, "roles.answer.max_tokens"),
    "top_p": (0.9, "roles.answer.top_p"),
    "question_expansion_temperature": (None, "roles.expand.temperature"),
    "question_expansion_max_tokens": (None, "roles.expand.max_tokens"),
    "question_expansion_top_p": (None, "roles.expand.top_p"),
    "question_expansion_tries": (None, "hybrid.expansion_tries"),
    "cluster_laplace_smoothing": (None, "hybrid.smoothing"),
}
_HYBRID_OTHERS = """generation_model question_expansion_model ollama_base_url ollama_timeout cross_encoder_model
embedding_model data_filepath chroma_persist hdbscan_min_cluster_size top_k verbose model list_models
ollama_connection_timeout"""
_OLLAMA_ENCODERS = {
    "nomic-embed-text": "nomic-ai/nomic-embed-text-v1.5",
    "snowflake-arctic-embed2": "Snowflake/snowflake-arctic-embed-l-v2.0",
}


def _hybrid(given: _Given) -> Values:
    values: Values = {"system": "hybrid", "index.bm25.language": "fr", "ensemble.members": 1}
    for name in find_system("hybrid").settings.model_fields:
        if (value := given.take(name)) is not None:
            values[f"hybrid.{name}"] = value
    for name, (default, key) in _HYBRID_RENAMED.items():
        if (value := given.take(name, default)) is not None:
            values[key] = value
    if path := given.take("data_filepath"):
        values["documents.paths"] = [path]
    if ranker := given.take("cross_encoder_model"):
        values |= {"hybrid.cross_encoder": "ranker", "deployments.ranker": {"kind": "cross_encoder", "model": ranker}}
    if model := given.take("generation_model"):
        address = given.take("ollama_base_url", "http://127.0.0.1:11434").rstrip("/").removesuffix("/v1")
        entry = {"kind": "openai", "base_url": f"{address}/v1", "model": model, "api_key_env": None}
        top_k = given.take("top_k")
        entry["extra_body"] = {"reasoning_effort": "none", "top_k": top_k or 5}  # it does not think there
        if top_k is not None:
            reason = f"Ollama's OpenAI API takes none: set `PARAMETER top_k {top_k}` in the model's Modelfile"
            given.leave("top_k", reason)
        if timeout := given.take("ollama_timeout"):
            entry["timeout_s"] = timeout
        values |= {"roles.answer.model": "llm", "deployments.llm": entry}
        if (expander := given.take("question_expansion_model")) and expander != model:
            values |= {"roles.expand.model": "expander", "deployments.expander": entry | {"model": expander}}
    if encoder := given.take("embedding_model"):
        known = _OLLAMA_ENCODERS.get(encoder.partition(":")[0], encoder if "/" in encoder else None)
        if known is None:
            given.leave("embedding_model", "a model of Ollama: name a sentence-transformers model")
            return values
        values["index.encoder.model"] = known
        if "nomic" in known:
            values["index.encoder.query_prompt"] = "search_query: "
            values["index.encoder.passage_prompt"] = "search_document: "
            given.leave("embedding_model", f"{known} {_OWN_CODE}")
    return values
