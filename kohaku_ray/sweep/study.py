"""Study recorded members: ensembles of every size and rule, scored without a new call."""

from __future__ import annotations

import glob
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kohaku_ray.config import Config
from kohaku_ray.ensemble.pool import Pool, pool_ballots
from kohaku_ray.ensemble.study import Marks, PartScores, expected_score, forecast, members_differ, subsamples
from kohaku_ray.ensemble.vote import Ballot, VoteRule, vote_pool
from kohaku_ray.errors import ConfigError, DataError
from kohaku_ray.evaluation.metrics import Metric
from kohaku_ray.evaluation.report import file_report
from kohaku_ray.evaluation.selection import ceiling
from kohaku_ray.evaluation.submissions import Submission, read_submission
from kohaku_ray.index.arrays import Mask
from kohaku_ray.store.directory import RunDirectory
from kohaku_ray.sweep.compare import SweepCell
from kohaku_ray.sweep.load import PoolConfig
from kohaku_ray.values.read import is_blank

_SIZES = (1, 3, 5, 9, 15)  # of the forecast
_DIFFER = 0.05  # a smaller p-value says that members are not exchangeable


@dataclass(frozen=True, slots=True)
class Members:
    """Recorded members, ready for votes."""

    pool: Pool  # their ballots
    marks: Marks  # the score of each outcome
    truth: Submission  # the questions with their gold answers
    strata: list[str] | None  # per member; None: all members are one stratum
    notes: tuple[str, ...]  # for the reader


def ensembles(configs: Mapping[int, Config], n: int | str, members: Members, metric: Metric) -> dict[int, SweepCell]:
    """Score cells of a table, by their positions; all rules of one size together."""
    by_position: dict[int, SweepCell] = {}
    rows = members.truth.rows
    unanswerable = [metric.unanswerable(row) for row in rows.values()]
    by_size: dict[int, list[int]] = {}
    for position, config in configs.items():
        if config.ensemble.vote.compat is None:
            by_size.setdefault(config.ensemble.members, []).append(position)
        else:
            by_position[position] = SweepCell(
                "", {}, "skipped", "vote.compat counts string by string, which no study does"
            )
    for size, positions in by_size.items():
        rules = [configs[position].ensemble.vote for position in positions]
        try:
            parts = _scored(size, rules, n, members)
        except ConfigError as error:
            reason = str(error)
            if n == "all" and size <= members.pool.n_members:
                reason = f"too many subsamples of {size} to count them all: set subsamples to a number"
            by_position |= {position: SweepCell("", {}, "skipped", reason) for position in positions}
            continue
        for number, position in enumerate(positions):
            marks = {name: parts[name][number].T for name in metric.parts}
            total = metric.shares(marks, unanswerable)
            seeds = tuple(range(len(total)))
            by_position[position] = SweepCell(
                "", {}, "finished", "", seeds, tuple(rows), marks, total, is_exact=n == "all"
            )
    return by_position


def _scored(size: int, rules: Sequence[VoteRule], n: int | str, members: Members) -> PartScores:
    """Return marks of shape ``(rules, questions, subsamples)``; the exact expectation has one subsample."""
    if n == "all":
        expected = expected_score(members.pool, size, rules, members.marks)
        return {name: part[:, :, None] for name, part in expected.items()}
    drawn = subsamples(members.pool.n_members, size, int(n), seed=size, strata=members.strata)
    return members.marks.score(vote_pool(members.pool, drawn, rules))


def outlook(members: Members, metric: Metric) -> list[str]:
    """Say what votes over these members can reach, and what more members would, by the metric's first part."""
    part = next(iter(metric.parts))
    is_right: Mask = _scored(1, [VoteRule()], members.pool.n_members, members)[part][0] > 0.5
    top = ceiling(is_right)
    notes = [
        f"Ceiling of any vote: no member is right on {top.n_never} of {top.n_questions} questions "
        f"({top.share:.1%}; 95 % by Clopper and Pearson: {top.low:.1%} to {top.high:.1%})."
    ]
    if members.pool.n_members < 2:
        return notes
    shares = forecast(members.pool, is_right, _SIZES, VoteRule())
    curve = ", ".join(f"{share:.3f} with {size}" for size, share in zip(_SIZES, shares, strict=True))
    notes.append(f"Forecast of `{part}` by the default rule, from pairs of members: {curve}.")
    p = members_differ(is_right)
    if p < _DIFFER:
        notes.append(
            f"Members are not exchangeable (Cochran's Q, p = {p:.2g}): the forecast is of members drawn at random from "
            "kinds like these, not of more members of one kind."
        )
    return notes


def pool_of(config: PoolConfig, runs: Sequence[Config], truth: Submission, metric: Metric) -> Members:
    """Build the ballots of the recorded members, and score each outcome."""
    notes = []
    if config.members is not None:
        names = [str(member) for member in range(config.members)]
        table, units = _recorded(runs[0], list(truth.rows))
        notes.append(f"They are one run's members, of seed {runs[0].seed}.")
    else:
        of_table = [RunDirectory(run.run).file("submission.csv") for run in runs]
        files = [read_submission(file) for file in of_table or files_of(config)]
        names = [Path(file.path.removesuffix("/submission.csv")).stem for file in files]
        table, units = ballots_of(files, list(truth.rows))
        missing = {name: len(truth.rows.keys() - file.rows.keys()) for name, file in zip(names, files, strict=True)}
        notes += [f"{file.path}: {note}." for file in files for note in file_report(file, file).notes]
        notes += [f"{name} lacks {n} of {len(truth.rows)} questions: blank there." for name, n in missing.items() if n]
    pool = pool_ballots(table, units)
    return Members(pool, marks_of(pool, truth, metric), truth, strata_of(config, names), tuple(notes))


def _recorded(config: Config, question_ids: Sequence[str]) -> tuple[list[list[Ballot | None]], list[str]]:
    """Return every member's ballot on every question, as the run counted them; None where the member failed."""
    directory = RunDirectory(config.run)
    rows = directory.read_table("answers").to_pylist(maps_as_pydicts="strict")
    asked = directory.read_table("votes", columns=["question_id", "asked_unit"]).to_pylist()
    units = {row["question_id"]: row["asked_unit"] or "" for row in asked}
    ballots: dict[str, dict[int, Ballot | None]] = {}
    for row in rows:
        ballot = config.declaration.ballot(row) if row["error"] is None else None
        ballots.setdefault(row["question_id"], {})[row["member"]] = ballot
    table = [[ballots[key][member] for member in sorted(ballots[key])] for key in question_ids]
    return table, [units[key] for key in question_ids]


def ballots_of(files: Sequence[Submission], question_ids: Sequence[str]) -> tuple[list[list[Ballot | None]], list[str]]:
    """Return one ballot per question and file, and each question's most frequent unit.

    A ballot is blank if the file lacks the question, and None where it says that its members failed.
    """
    rows = [[file.rows.get(key) for file in files] for key in question_ids]
    table: list[list[Ballot | None]] = [
        [
            None
            if answer and answer.is_failed
            else Ballot(answer.answer_value, answer.ref_ids, answer_unit=answer.answer_unit)
            if answer
            else Ballot(is_blank=True)
            for answer in row
        ]
        for row in rows
    ]
    given = [[answer.answer_unit for answer in row if answer and not is_blank(answer.answer_unit)] for row in rows]
    return table, [max(names, key=names.count) if names else "" for names in given]


def marks_of(pool: Pool, truth: Submission, metric: Metric) -> Marks:
    """Score outcomes by a metric that has ``marks``, question by question of the truth."""
    assert metric.marks is not None
    marks = metric.marks(truth)
    return Marks(pool, marks.by_value, marks.by_refs, marks.by_blank)


def files_of(config: PoolConfig) -> list[str]:
    """List the files of a pool, one per member; a ``DataError`` if there is none."""
    files = [file for pattern in config.files for file in sorted(glob.glob(pattern))]
    if not files:
        raise DataError(f"pool.files is {', '.join(config.files)} and no file is there: check the paths")
    return files


def strata_of(config: PoolConfig, names: Sequence[str]) -> list[str] | None:
    """Name the stratum of each member; None: all are one."""
    if config.strata is None:
        return None
    strata = [re.search(config.strata, name) for name in names]
    return [("" if match is None else match[1] if match.re.groups else match[0]) for match in strata]
