"""Run the jobs from Python: ``Run(load_config("my.yaml")).answer().votes`` is a polars frame.

::

    from kohaku_ray import Run, load_config

    run = Run(load_config("my.yaml"))
    run.index()
    run.answer()
    run.scores, run.votes, run.answers, run.trace, run.usage
    with run:                       # what was started stays up between questions
        run.ask("How much water did it use?").votes
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import ExitStack
from html import escape
from typing import TYPE_CHECKING, Any

from kohaku_ray.answering.vote_files import FileVote, run_vote
from kohaku_ray.collection.sources import resolve
from kohaku_ray.config import Config
from kohaku_ray.config.sections import TrackingConfig
from kohaku_ray.ensemble.vote import VoteRule
from kohaku_ray.errors import ConfigError, DataError, KohakuRayError
from kohaku_ray.evaluation.metrics import DEFAULT_METRIC
from kohaku_ray.evaluation.report import ScoreReport, run_score
from kohaku_ray.models.summary import SERVER_FACTS, AnswerSummary, describe_servers
from kohaku_ray.pages.run_text import describe_answer, show_question
from kohaku_ray.pages.terminal import print_progress
from kohaku_ray.records import digest
from kohaku_ray.runs.files import question_rows
from kohaku_ray.runs.identity import check_replaces, finished_before, is_finished
from kohaku_ray.runs.scoring import ScoredRun, score_run, scores_of
from kohaku_ray.runs.tracking import check_tracking, is_tracked, track
from kohaku_ray.settings import check_working_directory, resolve_paths, shown_path
from kohaku_ray.store.directory import RunDirectory, submission_of
from kohaku_ray.store.storage import is_file, join_path
from kohaku_ray.sweep.load import load_sweep
from kohaku_ray.sweep.plan import plan_sweep

if TYPE_CHECKING:
    import polars as pl

    from kohaku_ray.answering.bundle import Bundled, Replay
    from kohaku_ray.answering.here import AnsweringHere
    from kohaku_ray.engine.actors.pool import ActorPool
    from kohaku_ray.engine.jobs.index_stream import IndexSummary
    from kohaku_ray.engine.jobs.sweep import SweepSummary

ASKED = "asked"
"""Directory, in a run's own, of single questions."""

QUESTION = "question.jsonl"
"""File of a single question, in its run's directory."""


class Run:
    """One run: its jobs, and its results as polars frames.

    A Ray cluster that this process has joined is used; otherwise each job starts a local one and ends it. ``ask`` needs
    none, unless Ray serves a model or a cluster is configured. Within a ``with`` block what was started stays up.

    Attributes:
        config: The run's configuration, with absolute paths.
        path: Directory of its outputs.
        summary: Counts of ``answer``; None before.
    """

    def __init__(self, config: Config) -> None:
        self.config = resolve_paths(config)
        self.path = self.config.run
        self.summary: AnswerSummary | None = None
        self._was_finished = False
        self._warm: ExitStack | None = None
        self._pool: ActorPool | None = None
        self._here: AnsweringHere | None = None

    def __repr__(self) -> str:
        """Show the run's directory, its state and its scores."""
        state, scores = self._look()
        figures = "".join(f", {row['metric']} {row['score']:.4f}" for row in scores)
        return f"Run({self.path!r}, {state}{figures})"

    def _repr_html_(self) -> str:
        """Show a notebook the same as a table, with a link to the page."""
        state, scores = self._look()
        rows = "".join(f"<tr><td>{escape(row['metric'])}</td><td>{row['score']:.4f}</td></tr>" for row in scores)
        table = f"<table><tr><th>metric</th><th>score</th></tr>{rows}</table>" if rows else ""
        page = join_path(self.path, "report.html")
        shown = shown_path(page)  # notebooks serve their folder
        link = f'<a href="{escape(shown)}">{escape(shown)}</a>' if is_file(page) else ""
        return f"<p>Run <code>{escape(self.path)}</code>: {escape(state)}</p>{table}{link}"

    def _look(self) -> tuple[str, list[dict[str, Any]]]:
        """Return the state of the run's directory, and a finished run's scores, where it has gold answers."""
        if not is_finished(self.path):
            return ("not finished" if is_file(join_path(self.path, "run.json")) else "not answered yet"), []
        try:
            return "finished", self.scores.to_dicts()
        except KohakuRayError:
            return "finished, not scored", []

    def index(self) -> IndexSummary:
        """Index the configured documents.

        Raises:
            ConfigError: The configuration or the cluster does not fit.
            DataError: No document can be used, or the index cannot be written.
        """
        from kohaku_ray.engine.jobs.index import run_index

        return run_index(self.config)

    def answer(self, *, again: bool = False, retry_errors: bool = False, strict: bool = False) -> Run:
        """Answer every question, vote and write the run's directory; returns itself.

        Args:
            again: Repeat a run that is finished, or replace that of another configuration; recorded replies are not
                asked for.
            retry_errors: Repeat the model calls whose recorded replies could not be used.
            strict: Refuse an index that was made from other documents than the configured ones.

        Raises:
            ConfigError: The configuration or the cluster does not fit; nothing was started.
            DataError: Questions, index, ledger or the run directory cannot be used.
        """
        check_tracking(self.config)
        if again or not self.find() or retry_errors:
            self.make(retry_errors=retry_errors, strict=strict)
        self.export()
        return self

    def find(self) -> bool:
        """Return whether the run is finished, with the same inputs and a reply to every call.

        Raises:
            ConfigError: Its directory holds the finished run of another configuration.
            DataError: Its index or its questions cannot be used.
        """
        self.summary = finished_before(self.config)
        self._was_finished = self.summary is not None
        if self.summary is None:
            check_replaces(self.config)
        return self._was_finished

    def make(self, *, retry_errors: bool = False, strict: bool = False) -> None:
        """Make the run, whether it is finished or not; see ``answer``."""
        from kohaku_ray.engine.jobs.answer import run_answer

        self._was_finished = False
        if self._warm is not None and self._pool is None:
            self._keep_pool()
        self.summary = run_answer(self.config, retry_errors=retry_errors, strict=strict, pool=self._pool)

    def export(self, scored: ScoredRun | None = None) -> str | None:
        """Export the run, with its scores if they are known, to the configured tracker.

        Returns:
            Where it is there; None: there is no tracker, or it was exported before.

        Raises:
            DataError: The tracker refused; the run itself is whole.
        """
        if self.config.tracking.to is None or (self._was_finished and is_tracked(self.config)):
            return None
        return track(self.config, self.made, scored or scores_of(self.config, self.made)[0])

    @property
    def made(self) -> AnswerSummary:
        """Counts of ``answer``; a ``DataError`` says that it has not been called."""
        if self.summary is None:
            raise DataError(f"{self.path} has not been answered yet: call answer()")
        return self.summary

    def ask(self, question: str, **columns: str) -> Run:
        """Answer one question, in this process where it can; a question that was asked before is not asked again.

        ``columns`` are further ones that the system reads, such as ``answer_unit``. Returns the run of that question
        alone, below ``asked`` in this run's directory.

        Raises:
            DataError: The question is empty, or the run's directory cannot be written.
        """
        if not question.strip():
            raise DataError("the question is empty: write one")
        names = self.config.declaration.columns
        row = {names.question_id[0]: "", names.text[0]: question, **columns}
        question_id = f"q{digest(row, 4)}"
        row[names.question_id[0]] = question_id
        home = RunDirectory(join_path(self.path, f"{ASKED}/{question_id}"))
        home.check_writable()
        home.write_text(QUESTION, json.dumps(row, ensure_ascii=False) + "\n")
        questions = self.config.questions.model_copy(update={"path": home.file(QUESTION), "limit": None})
        changes = {"run": home.path, "questions": questions, "tracking": TrackingConfig()}
        asked = Run(self.config.model_copy(update=changes))
        asked.summary = finished_before(asked.config)
        if asked.summary is not None:
            return asked
        from kohaku_ray.answering.here import AnsweringHere, why_on_cluster

        check_working_directory()  # without one, torch's libraries end the process
        if self._pool is None and not why_on_cluster(asked.config):
            here = self._here or AnsweringHere(self.config, print_progress)
            if self._warm is not None:
                self._here = here
            asked.summary = here.answer(asked.config)
            return asked
        asked._pool = self._pool
        asked.make()
        return asked

    def show(self, question_id: str | None = None, n_items: int | None = 10) -> str:
        """Format how a question (default: the first) was answered: steps with ``n_items``, members and vote."""
        return show_question(self.path, question_id or str(self.votes["question_id"][0]), n_items)

    def show_answer(self, question_id: str | None = None) -> str:
        """Format what a question's (default: the first's) members voted for, and why, in at most twelve lines.

        What their servers did otherwise than asked, such as naming another model, comes on top.
        """
        rows = question_rows(self.path, question_id or str(self.votes["question_id"][0]))
        servers = describe_servers(*(getattr(self.made, name) for name in SERVER_FACTS))
        return "\n".join([describe_answer(rows, self.config.index.path, self.made.wall_s), *servers])

    def draw_map(self, output: str | None = None) -> str:
        """Draw the index's node vectors in two dimensions (KohakuRAG, Figure 6) and return the file's path.

        Args:
            output: An .svg or .png file; None: ``map.svg`` in the index's directory.

        Raises:
            DataError: There is no index, it has no vectors, or the file cannot be written.
        """
        from kohaku_ray.pages.index_map import write_index_map

        return write_index_map(self.config.index.path, output)

    @property
    def answers(self) -> pl.DataFrame:
        """One row per question and member."""
        return self._frame("answers")

    @property
    def votes(self) -> pl.DataFrame:
        """One row per question: what the ensemble answers."""
        return self._frame("votes")

    @property
    def trace(self) -> pl.DataFrame:
        """One row per step and item: what happened."""
        return self._frame("trace")

    @property
    def usage(self) -> pl.DataFrame:
        """One row per model call: tokens, seconds, costs."""
        return self._frame("usage")

    @property
    def scores(self) -> pl.DataFrame:
        """One row per metric of the run; a ``DataError`` says what gold answers are missing."""
        questions = self.config.questions
        scored, why_not = score_run(self.path, resolve(questions.path), self.config.metrics, questions.limit)
        if scored is None:
            raise DataError(why_not)
        import polars as pl

        return pl.DataFrame(scored.report.records)

    def __enter__(self) -> Run:
        if self._warm is not None:
            raise ConfigError("this run is open already: leave its `with` block first")
        from kohaku_ray.answering.here import AnsweringHere, why_on_cluster

        self._warm = ExitStack()
        try:
            if why_on_cluster(self.config):
                self._keep_pool()
            else:  # Ray starts where ``answer`` is called
                self._here = AnsweringHere(self.config, print_progress)
        except BaseException:
            self._warm = None
            raise
        return self

    def _keep_pool(self) -> None:
        from kohaku_ray.engine.jobs.answer import kept_warm

        assert self._warm is not None, "within a with block"
        self._pool = self._warm.enter_context(kept_warm(self.config))

    def __exit__(self, *exc: object) -> None:
        if self._warm is not None:
            self._warm.close()
        self._warm = self._pool = self._here = None

    def _frame(self, name: str) -> pl.DataFrame:
        import polars as pl

        frame = pl.from_arrow(RunDirectory(self.path).read_table(name))
        assert isinstance(frame, pl.DataFrame)
        return frame


class Sweep:
    """One sweep.

    ::

        sweep = Sweep("depth.yaml", ["my.yaml"], race=True)
        sweep.run()

    Attributes:
        page: Path of its page, which shows a race as it goes on.
    """

    def __init__(
        self,
        path: str,
        base: Sequence[str] = (),
        overrides: Sequence[str] = (),
        output: str | None = None,
        *,
        race: bool | None = None,
        cluster: str | None = None,
    ) -> None:
        """Read a sweep; arguments as of ``load_sweep``."""
        self.loaded = load_sweep(path, base, overrides, output, race, cluster)
        self.page = join_path(os.path.abspath(self.loaded.sweep.output), "sweep.html")

    def run(self) -> SweepSummary:
        """Make every run that is not finished, write tables and page, and return the counts.

        Raises:
            ConfigError: The configuration or the cluster does not fit; nothing was started.
            DataError: Questions or the ledger cannot be used, or another job races this sweep.
        """
        from kohaku_ray.engine.jobs.race import make_sweep

        return make_sweep(plan_sweep(self.loaded))[0]


def vote(files: Sequence[str], rule: VoteRule | None = None) -> FileVote:
    """Vote over submission files or runs' directories, in member order; the default rule is that of ``answer``."""
    return run_vote([submission_of(file) for file in files], rule or VoteRule())


def score(truth: str, files: Sequence[str], metrics: Sequence[str] = (DEFAULT_METRIC,)) -> ScoreReport:
    """Score submission files or runs' directories against gold answers."""
    return run_score(truth, [submission_of(file) for file in files], metrics)


def bundle(run: str, path: str, *, with_index: bool = False) -> Bundled:
    """Pack a finished run into one zip that makes its tables again; see ``make_bundle``."""
    from kohaku_ray.answering.bundle import make_bundle

    return make_bundle(run, path, with_index=with_index)


def replay(path: str, index: str | None = None, *, trust_code: bool = False) -> Replay:
    """Make a bundle's run again from its replies and compare every table; see ``replay_bundle``."""
    from kohaku_ray.answering.bundle import replay_bundle

    return replay_bundle(path, index, trust_code=trust_code)
