"""Check a configuration against files and cluster without starting anything, and ask each deployment one question."""

from __future__ import annotations

import importlib.util
import json
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import jsonschema

from kohaku_ray.checks.demand import Demand, answer_demand, check_demand, cluster_address, local_node
from kohaku_ray.checks.deployments import (
    Addresses,
    add_addresses,
    check_deployment,
    check_vision,
    check_windows,
    shared_identities,
)
from kohaku_ray.checks.gold import check_gold
from kohaku_ray.checks.servers import reach
from kohaku_ray.collection.documents import (
    count_changes,
    default_ids,
    describe_reject,
    parse_source,
)
from kohaku_ray.collection.indexes import difference, open_index, parser_note, preferred_note
from kohaku_ray.collection.sources import (
    check_images,
    check_places,
    describe_passed_over,
    document_format,
    find_sources,
    first_of,
    question_table,
    questions_of,
    read_metadata,
    resolve,
)
from kohaku_ray.config import Config
from kohaku_ray.config.deployments import ChatDeployment
from kohaku_ray.documents.data.rows import HUB, ROW_SUFFIXES
from kohaku_ray.documents.formats import TEXT, suffix
from kohaku_ray.documents.text.content import default_doc_id
from kohaku_ray.errors import (
    DataError,
    IndexMismatchError,
    KohakuRayError,
    ModelError,
    TransientModelError,
)
from kohaku_ray.index.cuda import unusable_gpus
from kohaku_ray.index.store import MANIFEST, Index
from kohaku_ray.models.batch_api import BatchApi
from kohaku_ray.models.openai import OpenAIBackend, OpenAIConfig
from kohaku_ray.models.request import ChatRequest
from kohaku_ray.models.vllm import VllmConfig, describe_adapters
from kohaku_ray.records import Reply, pluralize
from kohaku_ray.runs.tracking import check_tracking
from kohaku_ray.settings import resolve_paths
from kohaku_ray.store.directory import RunDirectory
from kohaku_ray.store.storage import is_file, is_uri, join_path
from kohaku_ray.systems.offline import ExtractiveConfig

T = TypeVar("T")

REJECTS_NAMED = 5
"""Most files that are named with the reason why they would be rejected."""


@dataclass(slots=True)
class Findings:
    """What a run with this configuration would use, in lines, and every error that keeps it from running."""

    lines: list[str] = field(default_factory=list)
    problems: list[KohakuRayError] = field(default_factory=list)

    def of(self, check: Callable[..., T], *args: Any, **kwargs: Any) -> T | None:
        """Run a check; its error is one more problem, unless another check has found it."""
        try:
            return check(*args, **kwargs)
        except KohakuRayError as error:
            if not any(str(problem).endswith(str(error)) for problem in self.problems):  # after its deployment's name
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
        findings.lines += _rejects(config, files)
    findings.lines += filter(None, [preferred_note(config)])
    index = _index(config, findings, deep)
    if deep:
        wrong = [] if index is None else findings.of(index.damage) or []
        for compare in (RunDirectory(config.run).damage, RunDirectory(config.run).page_damage):
            wrong += findings.of(compare) or []
        findings.problems += wrong
        findings.lines += (
            [] if wrong else ["files: index and finished run, where there are any, are as they were written"]
        )
    documents = None if index is None else findings.of(lambda: index.documents["doc_id"].to_pylist())
    ids = default_ids(files or [])
    known = {ids.get(file) or default_doc_id(file) for file in files or []} if documents is None else set(documents)
    odd: list[str] = []
    metadata = findings.of(read_metadata, config.documents.metadata, odd)
    if metadata:
        lacking = [name for name in metadata if name not in known]
        unmatched = f", {len(lacking)} of them for no document ({first_of(lacking)})" if lacking else ""
        findings.lines.append(f"metadata: {pluralize(len(metadata), 'row')}{unmatched}")
    table = findings.of(question_table, config)
    questions = None if table is None else findings.of(questions_of, config, odd, table)
    findings.lines += [f"warning: {what}" for what in odd]
    form = document_format(config)
    many = {*(f".{name}" for name in ROW_SUFFIXES), *(form.suffixes if form is not TEXT else ())}
    # Of a file that may hold many documents only parsing tells their ids.
    is_open = index is None and any(suffix(file) in many for file in files or [])
    gold = None if table is None else findings.of(check_gold, config, index, known, is_open=is_open, table=table)
    scored_by = ""
    if gold is not None:
        scored_by = gold.scored_by
        findings.lines += [f"warning: {line}" for line in (*gold.warnings, *filter(None, [gold.lacking]))]
        findings.problems += gold.problems
    if questions is not None:
        silent = [question.question_id for question in questions if not question.text]
        without = f", {len(silent)} of them without a text ({first_of(silent)})" if silent else ""
        findings.lines.append(f"questions: {len(questions)} in {resolve(config.questions.path)}{without}{scored_by}")
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
    addresses: Addresses = {}
    add_addresses(config, addresses)
    findings.lines += [f"warning: {shared}" for shared in shared_identities(addresses)]
    for check in (check_windows, check_vision, check_tracking):
        findings.of(check, config)
    if here and (unusable := unusable_gpus()):
        findings.lines.append(f"warning: {unusable}; a local cluster leaves them out")
    demand = answer_demand(config, None if index is None else index.n_shards)
    state = findings.of(_cluster_state, config, demand)
    if state is not None:
        needed = pluralize(demand.cpus, "CPU") + (f" and {pluralize(demand.gpus, 'GPU')}" if demand.gpus else "")
        findings.lines.append(f"demand: {needed} for {demand.reason}; {state}")
    return findings


def _kind(file: str) -> str:
    if file.startswith(HUB):
        return "on the hub, read when the job starts"
    return os.path.splitext(file)[1].lower() or "without a suffix"


LOOK_S, LOOK_BYTES = 2.0, 2**20
"""Longest time in which files are parsed, and the largest of them: `kohaku-ray documents` parses all."""

_LIBRARIES = {".pdf": "pymupdf", ".docx": "mammoth", ".pptx": "pptx", ".xlsx": "openpyxl"}
"""What reads a binary file, in a process of its own: here it is only looked whether it is there."""


def _rejects(config: Config, files: Sequence[str]) -> list[str]:
    """Name local files that `kohaku-ray index` would reject, in a line, of those that seconds are enough to look at."""
    ids, until = default_ids(files), time.monotonic() + LOOK_S
    rejects: list[tuple[str, str]] = []
    n_looked_at = 0
    for file in files:
        if is_uri(file) or os.path.getsize(file) > LOOK_BYTES or time.monotonic() > until:
            continue
        n_looked_at += 1
        library = _LIBRARIES.get(suffix(file)) if suffix(file) not in document_format(config).suffixes else None
        if library is None or importlib.util.find_spec(library) is None:
            rejects += parse_source(file, config, ids.get(file)).rejects
    if not rejects:
        return []
    of_files = "" if n_looked_at == len(files) else f" (of {n_looked_at:,} that were looked at)"
    named = "; ".join(describe_reject(*reject, config.documents.paths) for reject in rejects[:REJECTS_NAMED])
    more = f"; and {len(rejects) - REJECTS_NAMED} more" if len(rejects) > REJECTS_NAMED else ""
    return [f"warning: {pluralize(len(rejects), 'file')}{of_files} would be rejected: {named}{more}"]


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
            findings.lines.append(f"`kohaku-ray index CONFIG` changes {counts[0]:,} of its {counts[1]:,} texts")
    return index


def _cluster_state(config: Config, demand: Demand) -> str:
    address = cluster_address(config.cluster)
    if address is not None:
        return f"checked when the job joins {address}"
    node = local_node(config)
    cpus, gpus = int(node["CPU"]), int(node["GPU"])
    check_demand(demand, node)
    return f"a local cluster of {pluralize(cpus, 'CPU')}{' and ' + pluralize(gpus, 'GPU') if gpus else ''} has them"


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
