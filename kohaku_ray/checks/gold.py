"""Check the gold answers of a question file against its metrics and the documents: validate and every run do it."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from kohaku_ray.collection.documents import describe_rejected_gold, rejected_gold
from kohaku_ray.collection.sources import document_format, first_of, resolve
from kohaku_ray.config import Config
from kohaku_ray.documents.data.rows import RowTable
from kohaku_ray.documents.find import passed_over
from kohaku_ray.documents.text.content import default_doc_id
from kohaku_ray.errors import DataError, KohakuRayError, MetricError
from kohaku_ray.evaluation.metrics import find_metric
from kohaku_ray.evaluation.report import gold_oddities
from kohaku_ray.evaluation.truth import read_gold, scored_rows
from kohaku_ray.index.store import Index
from kohaku_ray.records import pluralize
from kohaku_ray.values.read import is_blank
from kohaku_ray.values.spelling import ref_key


@dataclass(slots=True)
class GoldFindings:
    """What the gold answers are scored by, what is odd about them, and what keeps the run from starting.

    ``lacking`` is odd too: it names documents that they cite and that are not there.
    """

    scored_by: str
    lacking: str = ""
    warnings: list[str] = field(default_factory=list)
    problems: list[KohakuRayError] = field(default_factory=list)


def check_gold(
    config: Config,
    index: Index | None,
    known: Collection[str] | None = None,
    *,
    is_open: bool = False,
    table: RowTable | None = None,
) -> GoldFindings:
    """Check the gold answers of the configured questions.

    Args:
        config: The run, with absolute paths.
        index: What was made of the documents, where there is one.
        known: Their ids (empty: not known). Default: those of the index.
        is_open: Some files may hold many documents, so that ids are only doubted where others are known.
        table: The file of questions, if it was read.
    """
    metrics = [find_metric(name) for name in config.metrics]
    path = resolve(config.questions.path)
    try:
        truth, fitting, note = read_gold(path, metrics, table)
    except DataError as error:
        reason = str(error).removeprefix(f"{path}: ").replace(f"{os.path.basename(path)} has", "it has", 1)
        return GoldFindings(f", not scored: {reason}")
    found = GoldFindings(f", scored by {', '.join(metric.name for metric in fitting)}{f'; {note}' if note else ''}")
    scored = scored_rows(truth, fitting, config.questions.limit)
    found.warnings += [f"{path}: {odd}" for odd in gold_oddities(scored, fitting)]
    for metric in fitting:
        try:
            metric.check(scored)
        except MetricError as error:
            found.problems.append(error)
        except KohakuRayError:  # a metric that reads the tables of a run, of which there is none yet
            pass
    rows = scored.rows
    empty = [key for key, row in rows.items() if not fitting[0].gold(row)]
    if empty and "value" in fitting[0].parts:  # elsewhere a gold answer may be references alone
        found.problems.append(
            DataError(
                f"{path}: {len(empty)} of {len(rows)} questions have no gold answer ({first_of(empty)}): give each "
                "one, or is_blank where the documents do not answer"
            )
        )
    cited = {ref: None for row in rows.values() for ref in row.ref_ids if not is_blank(ref)}
    if known is None:
        known = () if index is None else set(index.documents["doc_id"].to_pylist())
    lacking = [ref for ref in cited if ref not in known]
    folded = set(map(ref_key, known)) if lacking else set()
    lacking = [ref for ref in lacking if ref_key(ref) not in folded]
    if unread := _unread(config, lacking):
        found.problems.append(
            DataError(
                f"{path}: the gold answers cite {pluralize(len(unread), 'file')} whose suffix is not read "
                f"({first_of([*unread.values()])}): save {'it' if len(unread) == 1 else 'them'} in a format that is, "
                "such as .md, .html or .pdf"
            )
        )
        lacking = [ref for ref in lacking if ref not in unread]
    if not known or (is_open and len(lacking) + len(unread) == len(cited)):
        lacking = []
    if index is not None and (rejected := rejected_gold(config, index, lacking)):
        found.problems.append(DataError(f"{path}: {describe_rejected_gold(rejected)}"))
        lacking = [ref for ref in lacking if ref not in rejected]
    if lacking:
        # No error: a part of a collection may be answered from, however few of the cited documents are in it.
        by_themselves = "" if index is not None else ", unless files name their documents themselves"
        found.lacking = (
            f"{path}: the gold answers cite {pluralize(len(lacking), 'document')} not there ({first_of(lacking)}): "
            f"correct ref_id, or add them to documents.paths{by_themselves}"
        )
    return found


def _unread(config: Config, doc_ids: Sequence[str]) -> dict[str, str]:
    """Find the files of these ids that are in the documents' directories and have a suffix that is not read."""
    if not doc_ids:
        return {}
    paths = [resolve(path) for path in config.documents.paths]
    files = {default_doc_id(file).lower(): file for file in passed_over(paths, document_format(config))}
    return {doc_id: files[doc_id.lower()] for doc_id in doc_ids if doc_id.lower() in files}
