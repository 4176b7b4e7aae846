"""What the pages of a run are made from: its files, its scores and its index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kohaku_ray.documents.rows import HUB
from kohaku_ray.errors import DataError
from kohaku_ray.evaluation.metrics import DEFAULT_METRIC
from kohaku_ray.evaluation.report import ScoreReport
from kohaku_ray.index.store import Index
from kohaku_ray.pages.citations import Documents
from kohaku_ray.pages.excerpts import Places, open_index
from kohaku_ray.pages.limits import Limits
from kohaku_ray.pages.questions import Gold, QuestionView, shown_steps, view_questions
from kohaku_ray.run.directory import baseline_note
from kohaku_ray.run.failures import describe_errors
from kohaku_ray.run.files import RunFiles
from kohaku_ray.run.scoring import score_run
from kohaku_ray.storage import below, is_file


@dataclass(frozen=True, slots=True)
class Inputs:
    """All data of a page, without its limits.

    Attributes:
        run: The run's files.
        gold: The gold answers; None without any.
        report: The scores; None without gold answers.
        documents: Titles and addresses.
        index: The index that the run used, where it can be read.
        notes: What the reader must know first.
        why_unscored: Why there are no scores, or what is odd about them; else empty.
    """

    run: RunFiles
    gold: Gold | None
    report: ScoreReport | None
    documents: Documents
    index: Index | None
    notes: Sequence[str]
    why_unscored: str

    def views(self, limits: Limits) -> list[QuestionView]:
        """View the first questions, each with as much evidence as the limits allow."""
        nodes = self.index.nodes if self.index else None
        places = Places(nodes, _shown_nodes(self.run, limits), self.documents.titles)
        return view_questions(self.run, self.gold, self.documents, places, limits)


def gather(run: RunFiles, truth: str | None) -> Inputs:
    """Score a run, and open its index.

    Args:
        run: The run's files.
        truth: A CSV with gold answers; None: none.

    Raises:
        DataError: The truth is damaged or missing.
    """
    gold, report, why_unscored = _scores(run, truth)
    index, why_no_index = open_index(_index_paths(run))
    odd = why_unscored if report is not None else ""
    notes = [note for note in (*_failures(run), _unfinished(run), baseline_note(run.facts), odd) if note]
    if index is None:
        notes.append(f"The index cannot be read, so matches are shown without their paragraphs: {why_no_index}")
    return Inputs(run, gold, report, _documents(run, index), index, notes, why_unscored)


def _scores(run: RunFiles, truth: str | None) -> tuple[Gold | None, ScoreReport | None, str]:
    """Score the run; without gold answers, return the reason."""
    if truth is None:
        return None, None, "No truth was given, so nothing is scored."
    if not truth.startswith(HUB) and not is_file(truth):
        raise DataError(f"{truth}: there is no such truth file: check the path.")
    metrics, limit, split_by = run.fact("metrics", [DEFAULT_METRIC]), run.fact("limit"), run.fact("split_by", [])
    scored, why_not = score_run(run.path, truth, metrics, limit, split_by)
    if scored is None:
        return None, None, why_not
    rows = {metric.name: metric.score(scored.truth, run.submission) for metric in scored.metrics}
    scores = {name: {row.question_id: row for row in own} for name, own in rows.items()}
    return Gold(scored.truth, scored.metrics, scores), scored.report, scored.note


def _index_paths(run: RunFiles) -> list[str]:
    """Where the index is: as configured, or beside the run's files when the run was moved."""
    configured = run.setting("index", "path")
    return [*([configured] if isinstance(configured, str) else []), below(run.path, "index")]


def _unfinished(run: RunFiles) -> str:
    status = run.facts.get("status", "unknown")
    return "" if status == "finished" else f"The run's status is {status}: counts and seconds may be missing."


def _failures(run: RunFiles) -> list[str]:
    """Say what failed, and how often."""
    stopped, errors = run.fact("stopped", ""), run.fact("errors", {})
    return [f"Stopped asking: {stopped}" if stopped else "", *(f"Errors: {line}" for line in describe_errors(errors))]


def _documents(run: RunFiles, index: Index | None) -> Documents:
    """Titles from the index; addresses from the submission, which knows the metadata file, before the index's."""
    rows = index.documents.select(["doc_id", "title", "url"]).to_pylist() if index is not None else []
    urls = {row["doc_id"]: row["url"] for row in rows if row["url"]}
    for row in run.submission.rows.values():
        if len(row.ref_ids) == len(row.ref_urls):
            urls.update(zip(row.ref_ids, row.ref_urls, strict=True))
    return Documents({row["doc_id"]: row["title"] for row in rows if row["title"]}, urls)


def _shown_nodes(run: RunFiles, limits: Limits) -> list[str]:
    return [
        row["node_id"]
        for rows in run.by_question("trace").values()
        for _, shown in shown_steps(rows, limits.items)
        for row in shown
        if row["node_id"] is not None
    ]
