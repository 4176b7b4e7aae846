"""Read KohakuRAG's own configurations: ``.py`` files of assignments, or the same keys flat in YAML, JSON or TOML.

A ``.py`` file is parsed, never run: it may hold assignments of literals, docstrings, plain imports and the
``def config_gen(): return Config.from_globals()`` that KohakuEngine asks for. Anything that would have to be computed
is an error with its line. ``TABLE`` is the whole mapping, one row per key: its new key, how its value changes and why.
The whole mapping is in this module, which is why it is longer than 400 lines.

========================  =============================  ====================================================
KohakuRAG                 here                           how
========================  =============================  ====================================================
top_k                     kohaku.top_k                   as it is
planner_max_queries       kohaku.queries                 at least 1
deduplicate_retrieval     kohaku.dedup                   True: node, False: none
tree_dedup                kohaku.dedup                   True: tree
no_overlap                kohaku.dedup                   True: at least node, which shows a text once
rerank_strategy           kohaku.rerank                  None: none
top_k_final               kohaku.top_k_final             below 1, or more than is found: null
bm25_top_k                kohaku.bm25_top_k              as it is
retrieval_threshold       kohaku.retrieval_threshold     as it is
use_reordered_prompt      kohaku.prompt_order            True: context_first, False: question_first
max_retries               kohaku.max_retries             at least 0
llm_provider              deployments.*.kind, .base_url  openrouter, openai: openai; hf_local: vllm
model                     deployments.*.model            the deployment is called after the provider
planner_model             deployments.planner.model      a deployment of its own unless it is ``model``
max_concurrent            deployments.*.max_ongoing      1 or more; without a bound: ours
hf_model_id, hf_dtype     deployments.hf_local           model, engine_kwargs
hf_max_new_tokens         roles.answer.max_tokens        with hf_local
hf_temperature            roles.answer.temperature       with hf_local
embedding_model           index.encoder.model            jina, jinav4, hf_local, or a model's name
embedding_model_id        index.encoder.model            with hf_local
embedding_dim             index.encoder.dim              with jinav4
embedding_task            index.encoder.query_task, …    with jinav4
paragraph_search_mode     index.paragraph_vectors        as it is
paragraph_embedding_mode  index.paragraph_vectors        both: averaged, unless paragraph_search_mode differs
docs_dir                  documents.paths                one directory
metadata                  documents.metadata             as it is
questions                 questions.path                 as it is
db, table_prefix          index.path                     DB without .db / PREFIX
output                    run                            the file without its suffix becomes a directory
========================  =============================  ====================================================

A key that the file lacks gets KohakuRAG's own default (``DEFAULTS``, ``ALWAYS``), except models: a file that names
none gets the package's encoder and the extractive backend, which need neither a network nor a key. Every key that has
no meaning here, or is not taken over as written, is named in one ``ConfigWarning``.

Source: github.com/KohakuBlueleaf/KohakuRAG (scripts/wattbot_answer.py, src/kohakurag/pipeline.py, docs/dedup_rerank.md)
and github.com/qualiaMachine/KohakuRAG_UI (hf_local, retrieval_threshold, no_overlap, bm25_top_k).
"""

from __future__ import annotations

import ast
import posixpath
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn

from kohaku_ray.config.plain import nested
from kohaku_ray.config.schema import Config
from kohaku_ray.errors import ConfigError, did_you_mean


class ConfigWarning(UserWarning):
    """Part of a configuration was not taken over as written."""


LONGEST_FILE = 1 << 20
"""Most bytes of a ``.py`` configuration; published ones have fewer than 3,000."""

DEEPEST_LITERAL = 20
"""Deepest nesting of lists in a value; no key of ``TABLE`` needs any."""

DEFAULTS: Mapping[str, Any] = {
    "top_k": 5,
    "planner_max_queries": 3,
    "deduplicate_retrieval": False,
    "bm25_top_k": 0,
    "use_reordered_prompt": False,
    "max_retries": 3,
    "max_concurrent": 10,
}
"""KohakuRAG's defaults, in its own keys."""

ALWAYS: Mapping[str, Any] = {
    "kohaku.rerank": "none",
    "kohaku.top_k_final": None,
    "kohaku.max_context_tokens": None,  # KohakuRAG has no budget: all matches kept are shown
    "ensemble.members": 1,  # one file is one run; an ensemble there is several runs
}
"""KohakuRAG's defaults and fixed behaviour, in our keys."""

_OPENAI: Mapping[str, Mapping[str, str]] = {
    "openrouter": {
        "base_url": "https://openrouter.ai/api/v1",
        "api_key_env": "OPENROUTER_API_KEY",
        "model": "openai/gpt-5-nano",
    },
    "openai": {
        "base_url": "${OPENAI_BASE_URL:-https://api.openai.com/v1}",
        "api_key_env": "OPENAI_API_KEY",
        "model": "gpt-4o-mini",
    },
}
_LOCAL = "hf_local"
_LOCAL_MODEL = "Qwen/Qwen2.5-7B-Instruct"
_DTYPES: Mapping[str, Mapping[str, str]] = {
    "bf16": {"dtype": "bfloat16"},
    "fp16": {"dtype": "float16"},
    "auto": {"dtype": "auto"},
    "4bit": {"quantization": "bitsandbytes"},
}
_JINA = {"jina": "jinaai/jina-embeddings-v3", "jinav4": "jinaai/jina-embeddings-v4"}
_JINA_DIM = 1024
_LOCAL_ENCODER = "BAAI/bge-base-en-v1.5"

Kind = Literal["count", "number", "flag", "text", "any"]
_EXPECTED: Mapping[Kind, tuple[tuple[type, ...], str]] = {
    "count": ((int,), "a whole number"),
    "number": ((int, float), "a number"),
    "flag": ((bool,), "True or False"),
    "text": ((str,), "a text in quotes"),
}


class _File:
    """One configuration: its values, and the keys not taken over."""

    def __init__(self, given: Mapping[str, Any], where: str) -> None:
        self.given, self.where = given, where
        self.reasons: dict[str, list[str]] = {}
        for key, value in given.items():
            if key in TABLE and value is not None:
                self._check(key, value)

    def get(self, key: str) -> Any:
        """Return the value as written, else KohakuRAG's default; None: neither."""
        value = self.given.get(key)
        return DEFAULTS.get(key) if value is None else value

    def leave(self, key: str, reason: str) -> None:
        """Record why a key of the file is not taken over as written."""
        if key in self.given:
            self.reasons.setdefault(reason, []).append(key)

    def _check(self, key: str, value: Any) -> None:
        kind = TABLE[key].kind
        if kind == "any":
            return
        types, expected = _EXPECTED[kind]
        if not isinstance(value, types) or (isinstance(value, bool) and kind != "flag"):
            raise ConfigError(f"{self.where}: {key} is {_short(repr(value))}, expected {expected}")


class Row(NamedTuple):
    """How one of KohakuRAG's keys is translated.

    Attributes:
        ours: Our key; empty: none.
        kind: Kind of its value; None is always accepted as unset.
        change: Turns its value and the file into values by our dotted keys.
        why: Its meaning there, or why it has no meaning here.
    """

    ours: str
    kind: Kind
    change: Callable[[Any, _File], dict[str, Any]]
    why: str


def is_flat(values: Mapping[Any, Any]) -> bool:
    """Return whether a file's mapping is a KohakuRAG configuration: mostly its keys, and no section of ours."""
    own = (set(Config.model_fields) | {"base"}) - {"questions", "model"}
    sections = {key for key, value in values.items() if isinstance(value, Mapping)}
    if not own.isdisjoint(values) or not sections <= TABLE.keys() - {"questions"}:
        return False
    known = sum(key in TABLE for key in values)
    return 2 * known > len(values)


def translate(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Translate KohakuRAG's keys into ours.

    Args:
        values: Values by key, as in the file.
        where: The file, for messages.

    Returns:
        Nested values as in one of our YAML files.

    Raises:
        ConfigError: A value is not of its key's kind, or the file holds no key of KohakuRAG's at all.

    Warns:
        ConfigWarning: A key has no meaning here, is unknown, or its value cannot be taken over as written.
    """
    if not any(key in TABLE for key in values):
        raise ConfigError(f"{where} holds no key of a KohakuRAG configuration, such as top_k = 16: write one, or YAML")
    file = _File(values, where)
    changed: dict[str, Any] = dict(ALWAYS)
    for key, row in TABLE.items():
        value = file.get(key)
        if value is not None:
            changed |= row.change(value, file)
    for key in values:
        if key not in TABLE:
            file.leave(key, f"no such key{did_you_mean(str(key), TABLE)}")
    if file.reasons:
        told = "; ".join(f"{', '.join(map(str, keys))} ({reason})" for reason, keys in file.reasons.items())
        warnings.warn(_line(f"{where}: not taken over as written: {told}"), ConfigWarning, stacklevel=5)
    return nested(changed)


def read_python(file: Path) -> dict[str, Any]:
    """Read the literals that a ``.py`` configuration assigns, without running it.

    Args:
        file: UTF-8 text.

    Returns:
        The values by name; the last assignment of a name counts.

    Raises:
        ConfigError: The file cannot be read or parsed, or something in it would have to be computed.
    """
    try:
        if (size := file.stat().st_size) > LONGEST_FILE:
            raise ConfigError(
                f"{file} holds {size:,} bytes, a configuration at most {LONGEST_FILE:,}: is it another file?"
            )
        source = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an invalid escape in a docstring does not matter here
            body = ast.parse(source).body
    except SyntaxError as error:
        raise ConfigError(f"{file}:{error.lineno}: no Python: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(f"{file} is no Python that can be read: {str(error) or 'nested too deeply'}") from None
    return _Literals(file, source).read(body)


class _Literals:
    """Walks the statements of one file."""

    def __init__(self, file: Path, source: str) -> None:
        self._file, self._source = file, source

    def read(self, body: list[ast.stmt]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for statement in body:
            match statement:
                case ast.Assign(targets=targets, value=value):
                    names = [self._name(target, statement) for target in targets]
                    values |= dict.fromkeys(names, self._value(value))
                case ast.AnnAssign(target=target, value=ast.expr() as value):
                    values[self._name(target, statement)] = self._value(value)
                case ast.AnnAssign() | ast.Pass() | ast.Expr(value=ast.Constant()):
                    pass
                case ast.Import(names=names) | ast.ImportFrom(names=names):
                    self._harmless(names, statement)
                case ast.FunctionDef() if _is_boilerplate(statement):
                    pass
                case ast.Expr(value=value):
                    self._refuse(value, "would have to be run")
                case _:
                    self._refuse(statement, "would have to be run")
        return values

    def _name(self, target: ast.expr, statement: ast.stmt) -> str:
        if not isinstance(target, ast.Name):
            self._refuse(statement, "assigns to more than a name")
        return target.id

    def _harmless(self, names: list[ast.alias], statement: ast.stmt) -> None:
        for alias in names:
            bound = alias.asname or alias.name
            if bound == "*" or bound in TABLE:
                self._refuse(statement, "takes values from another file")

    def _value(self, node: ast.expr, depth: int = 0) -> Any:
        if depth > DEEPEST_LITERAL:
            self._refuse(node, f"is nested more than {DEEPEST_LITERAL} deep")
        match node:
            case ast.Constant(value=None | bool() | int() | float() | str() as value):
                return value
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
                return -value
            case ast.List(elts=items) | ast.Tuple(elts=items):
                return [self._value(item, depth + 1) for item in items]
            case ast.Dict(keys=keys, values=items):
                names = [key.value for key in keys if isinstance(key, ast.Constant)]
                if len(names) == len(keys):
                    return {str(name): self._value(item, depth + 1) for name, item in zip(names, items, strict=True)}
            case ast.Set() | ast.Constant():
                self._refuse(node, "is no value that a key takes")
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                both = self._value(left, depth + 1), self._value(right, depth + 1)
                if isinstance(both[0], str) and isinstance(both[1], str):
                    return both[0] + both[1]
        self._refuse(node, "has to be computed")

    def _refuse(self, node: ast.AST, what: str) -> NoReturn:
        line = getattr(node, "lineno", 1)
        shown = _short(ast.get_source_segment(self._source, node) or type(node).__name__)
        raise ConfigError(
            f"{self._file}:{line}: `{shown}` {what}, but a configuration is read and never run: write plain values "
            "such as top_k = 16, and put what changes on top with --set"
        )


def _is_boilerplate(function: ast.FunctionDef) -> bool:
    """``def config_gen(): return Config.from_globals()``, with or without a docstring."""
    statements = [s for s in function.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
    if function.name != "config_gen" or function.decorator_list or ast.unparse(function.args) or len(statements) != 1:
        return False
    match statements[0]:
        case ast.Return(
            value=ast.Call(func=ast.Attribute(value=ast.Name(), attr="from_globals"), args=[], keywords=[])
        ):
            return True
    return False


def _short(text: str) -> str:
    line = _line(text[:240])
    return line if len(line) <= 60 else line[:60] + "…"


def _line(text: str) -> str:
    return " ".join(text.split())


# How values change. Each function takes the value and the file, and returns our dotted keys.


def _to(ours: str, how: Callable[[Any], Any] = lambda value: value) -> Callable[[Any, _File], dict[str, Any]]:
    return lambda value, file: {ours: how(value)}


def _no_meaning(key: str, why: str) -> Callable[[Any, _File], dict[str, Any]]:
    def change(value: Any, file: _File) -> dict[str, Any]:
        if value:  # False, 0 and "" ask for nothing, and nothing is done
            file.leave(key, why)
        return {}

    return change


def _dedup(_: Any, file: _File) -> dict[str, Any]:
    mode = "tree" if file.get("tree_dedup") else "node"
    wanted = any(file.get(key) for key in ("tree_dedup", "deduplicate_retrieval", "no_overlap"))
    return {"kohaku.dedup": mode if wanted else "none"}


def _no_overlap(value: bool, file: _File) -> dict[str, Any]:
    changed = _dedup(value, file)
    if not value and changed["kohaku.dedup"] != "none":
        file.leave("no_overlap", "unless kohaku.dedup is none, a text enters the context once")
    return changed


def _rerank(value: str, file: _File) -> dict[str, Any]:
    strategies = ("none", "frequency", "score", "combined")
    if value.lower() not in strategies:
        meant = did_you_mean(value.lower(), strategies)
        raise ConfigError(f"{file.where}: rerank_strategy is {value!r}{meant} (None, {', '.join(strategies[1:])})")
    return {"kohaku.rerank": value.lower()}


def _top_k_final(value: int, file: _File) -> dict[str, Any]:
    found = file.get("top_k") * max(file.get("planner_max_queries"), 1)
    if value > found:
        file.leave("top_k_final", f"it cuts nothing: top_k × planner_max_queries is {found}")
    return {"kohaku.top_k_final": value if 1 <= value <= found else None}


def _provider(file: _File) -> str | None:
    """Return the provider that serves the model; None: no model is named, or the provider is unknown."""
    named, model = file.get("llm_provider"), file.get("model")
    if named is not None:
        return named if named in (*_OPENAI, _LOCAL) else None
    if model is None:
        return None
    return "openrouter" if "/" in model else "openai"  # OpenRouter's names have a slash, OpenAI's have none


def _backend(file: _File, provider: str) -> dict[str, Any]:
    """Describe the deployment that answers."""
    if provider == _LOCAL:
        model, extra = file.get("hf_model_id") or _LOCAL_MODEL, dict(_DTYPES.get(file.get("hf_dtype"), {}))
        backend = {"kind": "vllm", "model": model, "engine_kwargs": extra}
    else:
        written = {"base_url": file.get("base_url"), "model": file.get("model")}
        backend = {"kind": "openai", **_OPENAI[provider], **{key: value for key, value in written.items() if value}}
    return backend | ({"max_ongoing": n} if (n := file.get("max_concurrent")) > 0 else {})


def _deployed(key: str, *providers: str) -> Callable[[Any, _File], dict[str, Any]]:
    """Translate a key of these providers' answering deployment."""

    def change(_: Any, file: _File) -> dict[str, Any]:
        provider = _provider(file)
        if provider not in providers:
            file.leave(key, f"it says something only with llm_provider {' or '.join(providers)}")
            return {}
        return {"roles.answer.model": provider, f"deployments.{provider}": _backend(file, provider)}

    return change


def _llm_provider(value: str, file: _File) -> dict[str, Any]:
    if _provider(file) is None:
        file.leave(
            "llm_provider", f"no backend {value!r} here: add one to deployments and name it in roles.answer.model"
        )
        return {}
    return _deployed("llm_provider", value)(value, file)


def _planner_model(value: str, file: _File) -> dict[str, Any]:
    changed = _deployed("planner_model", *_OPENAI)(value, file)
    provider = changed.get("roles.answer.model")
    if provider is None or changed[f"deployments.{provider}"]["model"] == value:
        return changed
    planner = changed[f"deployments.{provider}"] | {"model": value}
    return changed | {"roles.plan.model": "planner", "deployments.planner": planner}


def _max_concurrent(value: int, file: _File) -> dict[str, Any]:
    if _provider(file) is None:
        file.leave("max_concurrent", "no model is named whose requests it could bound")
    elif value < 1:
        file.leave("max_concurrent", "requests in flight are always bounded, by deployments.*.max_ongoing")
    return {}  # _backend has put it into each deployment


def _hf_dtype(value: str, file: _File) -> dict[str, Any]:
    changed = _deployed("hf_dtype", _LOCAL)(value, file)
    if changed and value not in _DTYPES:
        file.leave("hf_dtype", f"none of {', '.join(_DTYPES)}: see deployments.{_LOCAL}.engine_kwargs")
    return changed


def _with_local(key: str, ours: str) -> Callable[[Any, _File], dict[str, Any]]:
    def change(value: Any, file: _File) -> dict[str, Any]:
        if _provider(file) == _LOCAL:
            return {ours: value}
        file.leave(key, f"it says something only with llm_provider {_LOCAL}")
        return {}

    return change


def _embedding_model(value: str, file: _File) -> dict[str, Any]:
    if value == _LOCAL:
        return {"index.encoder.model": file.get("embedding_model_id") or _LOCAL_ENCODER}
    if value not in _JINA and "/" not in value:
        file.leave("embedding_model", f"no encoder {value!r} here: name a sentence-transformers model")
        return {}
    changed: dict[str, Any] = {"index.encoder.model": _JINA.get(value, value)}
    if value in _JINA:
        file.leave(
            "embedding_model",
            f"{_JINA[value]} runs code of its own, which only you can allow: index.encoder.trust_remote_code=true",
        )
    if value == "jinav4":
        # There, passages are encoded with the query prompt too; the model was trained with one for each.
        changed |= {"index.encoder.dim": _JINA_DIM, "index.encoder.query_prompt": "query"}
        changed |= {"index.encoder.passage_prompt": "passage", **_embedding_task("retrieval", file)}
    return changed


def _with_encoder(key: str, encoder: str, *ours: str) -> Callable[[Any, _File], dict[str, Any]]:
    def change(value: Any, file: _File) -> dict[str, Any]:
        if file.get("embedding_model") == encoder:
            return dict.fromkeys(ours, value)
        file.leave(key, f"it says something only with embedding_model {encoder}")
        return {}

    return change


_embedding_task = _with_encoder("embedding_task", "jinav4", "index.encoder.query_task", "index.encoder.passage_task")


def _embedding_mode(value: str, file: _File) -> dict[str, Any]:
    if value == "both":
        file.leave("paragraph_embedding_mode", "one kind is searched at a time there; it is paragraph_search_mode's")
    return {"index.paragraph_vectors": "averaged" if value == "both" else value}


def _index_path(_: Any, file: _File) -> dict[str, Any]:
    root, prefix = (file.get("db") or "runs/index").removesuffix(".db"), file.get("table_prefix")
    return {"index.path": f"{root}/{prefix}" if prefix else root}


def _at_least(least: int) -> Callable[[int], int]:
    return lambda value: max(value, least)


def _left(*keys: str, why: str) -> dict[str, Row]:
    return {key: Row("", "any", _no_meaning(key, why), why) for key in keys}


TABLE: Mapping[str, Row] = {
    "top_k": Row("kohaku.top_k", "count", _to("kohaku.top_k"), "matches of each query, times attempt + 1"),
    "planner_max_queries": Row(
        "kohaku.queries", "count", _to("kohaku.queries", _at_least(1)), "queries with the question itself"
    ),
    "deduplicate_retrieval": Row("kohaku.dedup", "flag", _dedup, "drop a node that another query has found"),
    "tree_dedup": Row("kohaku.dedup", "flag", _dedup, "drop a node that lies in another match"),
    "no_overlap": Row("kohaku.dedup", "flag", _no_overlap, "show no text twice where matches lie in one another"),
    "rerank_strategy": Row("kohaku.rerank", "text", _rerank, "order over all queries; combined is 0.4 f + 0.6 s"),
    "top_k_final": Row("kohaku.top_k_final", "count", _top_k_final, "matches kept; times attempt + 1"),
    "bm25_top_k": Row("kohaku.bm25_top_k", "count", _to("kohaku.bm25_top_k", _at_least(0)), "appended, not fused"),
    "retrieval_threshold": Row(
        "kohaku.retrieval_threshold",
        "number",
        _to("kohaku.retrieval_threshold"),
        "weaker evidence is none: where nothing reaches it, the answer is blank",
    ),
    "use_reordered_prompt": Row(
        "kohaku.prompt_order",
        "flag",
        _to("kohaku.prompt_order", lambda value: "context_first" if value else "question_first"),
        "context before the question",
    ),
    "max_retries": Row(
        "kohaku.max_retries", "count", _to("kohaku.max_retries", _at_least(0)), "while the answer is blank"
    ),
    "llm_provider": Row("deployments.*.kind, .base_url, .api_key_env", "text", _llm_provider, "who serves the model"),
    "model": Row("deployments.*.model", "text", _deployed("model", *_OPENAI), "the model that answers"),
    "base_url": Row("deployments.*.base_url", "text", _deployed("base_url", *_OPENAI), "OpenAIChatModel's argument"),
    "planner_model": Row("deployments.planner.model", "text", _planner_model, "None: the one that answers"),
    "hf_model_id": Row("deployments.hf_local.model", "text", _deployed("hf_model_id", _LOCAL), "weights of one's own"),
    "hf_dtype": Row("deployments.hf_local.engine_kwargs", "text", _hf_dtype, "bf16, fp16, auto, 4bit"),
    "hf_max_new_tokens": Row(
        "roles.answer.max_tokens",
        "count",
        _with_local("hf_max_new_tokens", "roles.answer.max_tokens"),
        "longest answer",
    ),
    "hf_temperature": Row(
        "roles.answer.temperature", "number", _with_local("hf_temperature", "roles.answer.temperature"), "sampling"
    ),
    "max_concurrent": Row("deployments.*.max_ongoing", "count", _max_concurrent, "requests in flight per model"),
    "embedding_model": Row("index.encoder.model", "text", _embedding_model, "jina is v3, without a task"),
    "embedding_model_id": Row(
        "index.encoder.model",
        "text",
        _with_encoder("embedding_model_id", _LOCAL, "index.encoder.model"),
        "a sentence-transformers model",
    ),
    "embedding_dim": Row(
        "index.encoder.dim", "count", _with_encoder("embedding_dim", "jinav4", "index.encoder.dim"), "Matryoshka"
    ),
    "embedding_task": Row(
        "index.encoder.query_task, .passage_task", "text", _embedding_task, "one adapter for queries and passages"
    ),
    "paragraph_embedding_mode": Row("index.paragraph_vectors", "text", _embedding_mode, "which vectors are stored"),
    "paragraph_search_mode": Row(
        "index.paragraph_vectors", "text", _to("index.paragraph_vectors"), "which of the stored vectors are searched"
    ),
    "docs_dir": Row("documents.paths", "text", _to("documents.paths", lambda value: [value]), "parsed documents"),
    "metadata": Row("documents.metadata", "text", _to("documents.metadata"), "titles and URLs by document id"),
    "questions": Row("questions.path", "text", _to("questions.path"), "a CSV"),
    "db": Row("index.path", "text", _index_path, "one database holds several indexes; it is not read but built anew"),
    "table_prefix": Row("index.path", "text", _index_path, "the index in that database"),
    "output": Row("run", "text", _to("run", lambda value: posixpath.splitext(value)[0]), "a run writes several files"),
    **_left("with_images", "top_k_images", "send_images_to_llm", why="an image is found by its caption, as text"),
    **_left("single_run_debug", "question_id", why="kohaku-ray show RUN QUESTION_ID explains one question"),
    **_left("site_url", "app_name", why="no such headers are sent"),
    **_left(
        "openrouter_api_key",
        "openai_api_key",
        "api_key",
        why="a key stands in the environment variable that deployments.*.api_key_env names, never in a file",
    ),
    **_left("bedrock_model", "bedrock_profile", "bedrock_region", why="no Bedrock backend"),
    **_left("use_citations", "pdf_dir", why="documents.paths names what is read, and nothing is downloaded"),
    **_left("inputs", "ref_mode", "tiebreak", why="kohaku-ray vote votes over files"),
}
"""All of KohakuRAG's keys, one row per key; later rows see what earlier ones have set."""
