"""Check a configuration against files and cluster without starting anything, and ask each deployment one question."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import jsonschema

from kohaku_ray.config import Config
from kohaku_ray.config.deployments import ChatDeployment
from kohaku_ray.documents.data.rows import HUB, ROW_SUFFIXES, suffix_of
from kohaku_ray.documents.find import passed_over
from kohaku_ray.documents.formats import TEXT, suffix
from kohaku_ray.documents.text.content import default_doc_id
from kohaku_ray.errors import (
    DataError,
    IndexMismatchError,
    KohakuRayError,
    MetricError,
    ModelError,
    TransientModelError,
)
from kohaku_ray.evaluation.metrics import find_metric
from kohaku_ray.evaluation.report import gold_oddities
from kohaku_ray.evaluation.truth import read_gold, scored_rows
from kohaku_ray.index import gpu
from kohaku_ray.index.store import MANIFEST, Index
from kohaku_ray.models.batch_api import BatchApi
from kohaku_ray.models.openai import OpenAIBackend, OpenAIConfig
from kohaku_ray.models.request import ChatRequest
from kohaku_ray.models.vllm import VllmConfig, describe_adapters
from kohaku_ray.records import Reply
from kohaku_ray.run.checks.cards import card_bytes, largest_shard_bytes
from kohaku_ray.run.checks.demand import Demand, answer_demand, check_demand, cluster_address
from kohaku_ray.run.checks.deployments import check_deployment, check_vision, check_windows
from kohaku_ray.run.checks.free_gpus import FreeNode, GpuChoice, choose_build_gpus, local_node, search_device
from kohaku_ray.run.checks.retrievers import RetrieverPlan, plan_retrievers
from kohaku_ray.run.checks.servers import reach
from kohaku_ray.run.collection.documents import (
    count_changes,
    default_ids,
    describe_reject,
    describe_rejected_gold,
    rejected_gold,
)
from kohaku_ray.run.collection.indexes import difference, open_index, parser_note, preferred_note
from kohaku_ray.run.collection.sources import (
    check_images,
    check_places,
    describe_passed_over,
    document_format,
    find_sources,
    first_of,
    questions_of,
    read_metadata,
    resolve,
)
from kohaku_ray.run.record.directory import RunDirectory
from kohaku_ray.run.record.summary import pluralize
from kohaku_ray.run.record.tracking import check_tracking
from kohaku_ray.settings import resolve_paths
from kohaku_ray.storage import is_file, join_path
from kohaku_ray.systems.offline import ExtractiveConfig
from kohaku_ray.values.read import is_blank

T = TypeVar("T")

_NAMED_INSIDE = {"json", "html", "htm", "md"}
"""Suffixes of files that may name their documents themselves."""


@dataclass(slots=True)
class Findings:
    """What a run with this configuration would use, in lines, and every error that keeps it from running."""

    lines: list[str] = field(default_factory=list)
    problems: list[KohakuRayError] = field(default_factory=list)

    def of(self, check: Callable[..., T], *args: Any, **kwargs: Any) -> T | None:
        """Run a check; its error is one more problem."""
        try:
            return check(*args, **kwargs)
        except KohakuRayError as error:
            self.problems.append(error)
            return None


def validate(config: Config, *, deep: bool = False) -> Findings:
    """Check everything that can be checked in seconds, also after a check has failed.

    ``deep``: also read every file of the index and of a finished run, and compare it with its checksum.
    """
    findings = Findings()
    resolved = findings.of(resolve_paths, config)
    if resolved is None:
        return findings
    config = resolved
    findings.of(check_places, config)
    files = findings.of(find_sources, config)
    if files is not None:
        kinds = Counter(_kind(file) for file in files)
        of_kinds = ", ".join(f"{n} {kind}" for kind, n in kinds.most_common())
        findings.lines.append(f"documents: {pluralize(len(files), 'file')} ({of_kinds})")
        findings.lines += filter(None, [findings.of(describe_passed_over, config)])
    findings.lines += filter(None, [preferred_note(config)])
    index = _index(config, findings, deep)
    if deep:
        wrong = [] if index is None else findings.of(index.damage) or []
        wrong += findings.of(RunDirectory(config.run).damage) or []
        findings.problems += wrong
        findings.lines += (
            [] if wrong else ["files: index and finished run, where there are any, are as they were written"]
        )
    documents = None if index is None else findings.of(lambda: index.documents["doc_id"].to_pylist())
    ids = default_ids(files or [])
    known = {ids.get(file) or default_doc_id(file) for file in files or []} if documents is None else set(documents)
    metadata = findings.of(read_metadata, config.documents.metadata)
    if metadata:
        lacking = [name for name in metadata if name not in known]
        unmatched = f", {len(lacking)} of them for no document ({first_of(lacking)})" if lacking else ""
        findings.lines.append(f"metadata: {pluralize(len(metadata), 'row')}{unmatched}")
    questions = findings.of(questions_of, config)
    surely = index is not None or not any(suffix_of(file) in _NAMED_INSIDE for file in files or [])
    form = document_format(config)
    many = {*(f".{name}" for name in ROW_SUFFIXES), *(form.suffixes if form is not TEXT else ())}
    # Of a file that may hold many documents only parsing tells their ids.
    is_open = index is None and any(suffix(file) in many for file in files or [])
    gold = findings.of(_gold, config, known, surely and not is_open, is_open, findings, index)
    if questions is not None:
        silent = [question.question_id for question in questions if not question.text]
        without = f", {len(silent)} of them without a text ({first_of(silent)})" if silent else ""
        findings.lines.append(f"questions: {len(questions)} in {resolve(config.questions.path)}{without}{gold or ''}")
    findings.of(config.declaration.prompts, config.prompts)
    here = cluster_address(config.cluster) is None
    findings.of(check_images, config)
    for key, deployment in {**config.used_deployments, **config.caption_deployments}.items():
        n_problems = len(findings.problems)
        findings.of(check_deployment, key, deployment, here=here)
        what = [deployment.kind, getattr(deployment, "model", None)]
        if isinstance(deployment, OpenAIConfig):
            what.append(findings.of(reach, key, deployment))
        is_checked = len(findings.problems) == n_problems and deployment.application is None
        if isinstance(deployment, VllmConfig) and deployment.adapters and is_checked:
            what.append(f"adapters {describe_adapters(deployment)}")
        findings.lines.append(f"deployments.{key}: {', '.join(fact for fact in what if fact)}")
    for check in (check_windows, check_vision, check_tracking):
        findings.of(check, config)
    findings.lines += findings.of(_auto_gpus, config, index) or []
    demand = answer_demand(config, None if index is None else index.n_shards, index)
    state = findings.of(_cluster_state, config, demand)
    if state is not None:
        needed = pluralize(demand.cpus, "CPU") + (f" and {pluralize(demand.gpus, 'GPU')}" if demand.gpus else "")
        findings.lines.append(f"demand: {needed} for {demand.reason}; {state}")
    return findings


def _kind(file: str) -> str:
    if file.startswith(HUB):
        return "on the hub, read when the job starts"
    return os.path.splitext(file)[1].lower() or "without a suffix"


def _index(config: Config, findings: Findings, deep: bool) -> Index | None:
    try:
        index = open_index(config)
    except KohakuRayError as error:
        may_be_absent = isinstance(error, DataError) and not isinstance(error, IndexMismatchError)
        if may_be_absent and not (deep and is_file(join_path(config.index.path, MANIFEST))):
            findings.lines.append(f"index: {error}")
        else:
            findings.problems.append(error)
        return None
    counts = index.manifest["counts"]
    line = f"index: {config.index.path}: {pluralize(counts['n_documents'], 'document')}, "
    line += pluralize(counts["n_vectors"], "vector")
    if counts["n_rejects"]:
        first = index.rejects.slice(0, 1).to_pylist()[0]
        reject = describe_reject(first["file"], first["reason"], config.documents.paths)
        line += f", {pluralize(counts['n_rejects'], 'reject')}, the first: {reject}"
    findings.lines.append(line)
    if changed := difference(index, config):
        findings.lines.append(f"warning: {changed}")
    elif note := parser_note(index, config):
        findings.lines.append(f"warning: {note}")
        if deep and (counts := findings.of(count_changes, index, config)) is not None:
            findings.lines.append(f"`kohaku-ray index` changes {counts[0]:,} of its {counts[1]:,} texts")
    return index


def _gold(config: Config, known: set[str], surely: bool, is_open: bool, findings: Findings, index: Index | None) -> str:
    """Say whether the question file has gold answers, so that the run is scored; add what is wrong with them.

    ``known`` are the documents' ids (empty: not known); ``surely`` no document can have another. ``is_open``: some
    files may hold many documents, so that ids are only doubted where others are known.
    """
    metrics = [find_metric(name) for name in config.metrics]
    path = resolve(config.questions.path)
    try:
        truth, fitting, note = read_gold(path, metrics)
    except DataError as error:
        reason = str(error).removeprefix(f"{path}: ").replace(f"{os.path.basename(path)} has", "it has", 1)
        return f", not scored: {reason}"
    scored = scored_rows(truth, fitting, config.questions.limit)
    findings.lines += [f"warning: {path}: {odd}" for odd in gold_oddities(scored, fitting)]
    for metric in fitting:
        try:
            metric.check(scored)
        except MetricError as error:
            findings.problems.append(error)
        except KohakuRayError:  # a metric that reads the tables of a run, of which there is none yet
            pass
    rows = scored.rows
    empty = [key for key, row in rows.items() if not fitting[0].gold(row)]
    if empty and "value" in fitting[0].parts:  # elsewhere a gold answer may be references alone
        findings.problems.append(
            DataError(
                f"{path}: {len(empty)} of {len(rows)} questions have no gold answer ({first_of(empty)}): give each "
                "one, or is_blank where the documents do not answer"
            )
        )
    cited = {ref: None for row in rows.values() for ref in row.ref_ids if not is_blank(ref)}
    folded = {name.lower() for name in known}
    lacking = [ref for ref in cited if ref.lower() not in folded]
    if unread := _unread(config, lacking):
        findings.problems.append(
            DataError(
                f"{path}: the gold answers cite {pluralize(len(unread), 'file')} whose suffix is not read "
                f"({first_of([*unread.values()])}): save {'it' if len(unread) == 1 else 'them'} in a format that is, "
                "such as .md, .html or .pdf"
            )
        )
        lacking = [ref for ref in lacking if ref not in unread]
    if not folded or (is_open and len(lacking) + len(unread) == len(cited)):
        lacking = []
    if index is not None and (rejected := rejected_gold(config, index, lacking)):
        findings.problems.append(DataError(f"{path}: {describe_rejected_gold(rejected)}"))
        lacking = [ref for ref in lacking if ref not in rejected]
    if lacking:
        problem = (
            f"the gold answers cite {pluralize(len(lacking), 'document')} not there ({first_of(lacking)}): correct "
            "ref_id, or add them to documents.paths"
        )
        if surely:
            findings.problems.append(DataError(f"{path}: {problem}"))
        else:
            findings.lines.append(f"warning: {problem}, unless files name their documents themselves")
    return f", scored by {', '.join(metric.name for metric in fitting)}{f'; {note}' if note else ''}"


def _unread(config: Config, doc_ids: Sequence[str]) -> dict[str, str]:
    """Find the files of these ids that are in the documents' directories and have a suffix that is not read."""
    if not doc_ids:
        return {}
    paths = [resolve(path) for path in config.documents.paths]
    files = {default_doc_id(file).lower(): file for file in passed_over(paths, document_format(config))}
    return {doc_id: files[doc_id.lower()] for doc_id in doc_ids if doc_id.lower() in files}


def _cluster_state(config: Config, demand: Demand) -> str:
    address = cluster_address(config.cluster)
    if address is not None:
        return f"checked when the job joins {address}"
    node = local_node(config)
    cpus, gpus = int(node["CPU"]), int(node["GPU"])
    check_demand(demand, node)
    return f"a local cluster of {pluralize(cpus, 'CPU')}{' and ' + pluralize(gpus, 'GPU') if gpus else ''} has them"


def _auto_gpus(config: Config, index: Index | None) -> list[str]:
    """Say what `auto` becomes of the GPUs of retrievers and builders, as jobs decide it on a local cluster."""
    asked = {"cluster.retriever.gpus": config.cluster.retriever.gpus, "index.build_gpus": config.index.build_gpus}
    keys = [key for key, gpus in asked.items() if gpus == "auto"]
    if keys and (address := cluster_address(config.cluster)) is not None:
        return [f"GPUs: {' and '.join(keys)} are auto: what is free when the job joins {address}"]
    node = local_node(config)
    missing = gpu.without_gpu_support() if node["GPU"] else ""
    n_shards = config.index.n_known_shards if index is None else index.n_shards
    chosen: dict[str, RetrieverPlan | GpuChoice] = {
        "cluster.retriever.gpus": plan_retrievers(
            config,
            n_shards,
            [node],
            index_bytes=None if index is None else largest_shard_bytes(index, config),
            card_bytes=card_bytes([node]),
            missing=missing,
        ),
        "index.build_gpus": choose_build_gpus(config, [FreeNode.of(node)], missing),
    }
    if keys and not node["GPU"]:
        return ["GPUs: this machine has none, so that everything runs on its CPUs"]
    lines = [f"GPUs: {key} auto is {chosen[key].gpus:g}: {chosen[key].reason}" for key in keys]
    if config.index.search_device == "auto":
        device = search_device(config, chosen["cluster.retriever.gpus"].gpus, missing)
        lines.append(f"GPUs: index.search_device auto is {device}")
    return lines


REPLY_TOKENS = 128
"""Longest reply to a probe, reasoning left out."""

SCHEMA = {
    "type": "object",
    "properties": {"capital": {"type": "string", "maxLength": 40}},
    "required": ["capital"],
    "additionalProperties": False,
}
"""The schema that a probe asks for; the question itself does not mention its key."""

AskModel = Callable[[ChatRequest], Awaitable[Reply]]


@dataclass(frozen=True, slots=True)
class Probed:
    """The outcome of one probe: in one line what the deployment can do, or what is wrong with it."""

    text: str
    is_usable: bool = True


async def probe_chat(name: str, deployment: ChatDeployment, ask: AskModel) -> Probed:
    """Ask two short questions, the second with a schema."""
    where = f"deployments.{name}"
    try:
        began = time.perf_counter()
        plain = await ask(_request(deployment, "Count from one to thirty in English words.", None))
        seconds = time.perf_counter() - began
    except ModelError as error:
        return Probed(f"{where}: {error}", is_usable=False)
    try:
        shaped = await ask(_request(deployment, "What is the capital of France? Reply in JSON.", SCHEMA))
    except ModelError as error:
        return Probed(f"{where} answers, but refuses a JSON schema: {error}", is_usable=False)
    if not plain.text.strip() and not shaped.text.strip():
        return Probed(
            f"{where} answers with empty text ({plain.completion_tokens} tokens, {plain.finish_reason}): if the model "
            f"reasons, raise {where}.reasoning_tokens above {deployment.reasoning_tokens}, or switch reasoning off",
            is_usable=False,
        )
    n_tokens, speed = plain.completion_tokens, "tokens not counted"
    if n_tokens:
        speed = f"{n_tokens / seconds:.1f} tokens/s alone ({n_tokens} in {seconds:.1f} s)"
    try:
        jsonschema.validate(json.loads(shaped.text), SCHEMA)
        schema = "JSON schema kept"
    except (ValueError, jsonschema.ValidationError):
        begin = " ".join(shaped.text.split())[:60]
        schema = f"JSON schema not kept (replied {begin!r}), so replies are read as they come"
    notes = dict.fromkeys(note for reply in (plain, shaped) for note in reply.note.split("; ") if note)
    by_batch = ["calls by batches"] if isinstance(deployment, OpenAIConfig) and deployment.batch is not None else []
    facts = (f"{deployment.kind}, window {deployment.window:,} tokens", schema, speed, *by_batch, *notes)
    return Probed(f"{where}: {', '.join(facts)}")


async def probe_here(name: str, deployment: ChatDeployment) -> Probed:
    """Probe a deployment whose backend runs in this process: a server's client, or a model that is loaded here."""
    if isinstance(deployment, ExtractiveConfig):
        return Probed(f"deployments.{name}: extractive, no model: nothing to ask")
    if isinstance(deployment, OpenAIConfig):
        deployment = deployment.model_copy(update={"max_tries": 1})
    backend = deployment.make_backend()

    async def ask(request: ChatRequest) -> Reply:
        try:
            return cast(Reply, await backend.chat(request))
        except ModelError as error:
            if not isinstance(deployment, OpenAIConfig):
                raise
            raise ModelError(await _explained(name, backend, error)) from error

    try:
        if isinstance(deployment, OpenAIConfig) and deployment.batch is not None:
            try:
                await BatchApi(backend, deployment.batch).check()
            except ModelError as error:
                return Probed(str(error).replace("deployments.*", f"deployments.{name}"), is_usable=False)
        return await probe_chat(name, deployment, ask)
    finally:
        await backend.close()


async def _explained(name: str, backend: OpenAIBackend, error: ModelError) -> str:
    """Add to a server's refusal what mends it: its models, the key's variable, or its address."""
    refusal = str(error).replace("deployments.*", f"deployments.{name}")
    if not isinstance(error, TransientModelError):
        return await backend.with_models(refusal)
    try:
        await backend.models()
    except TransientModelError as unreachable:
        return f"{refusal}: start the server, or correct deployments.{name}.base_url ({unreachable})"
    except ModelError:  # it answers, without a list
        pass
    return refusal


def _request(deployment: ChatDeployment, user: str, schema: dict[str, Any] | None) -> ChatRequest:
    return ChatRequest(
        model="probe",
        messages=(("system", "You answer briefly."), ("user", user)),
        temperature=0.0,
        top_p=1.0,
        max_tokens=REPLY_TOKENS + deployment.reasoning_tokens,
        seed=0,
        schema=schema,
        session_id="probe",
    )
