"""Scores and comparisons as plain text for a terminal: aligned tables, differences, p values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kohaku_ray.evaluation.compare import (
    BANDS,
    FLIPS,
    Comparing,
    Pair,
    Split,
    greatest_moves,
    rank_bands,
    shift_of,
)
from kohaku_ray.evaluation.paired import Interval, Permutation
from kohaku_ray.evaluation.report import ScoreReport
from kohaku_ray.evaluation.statistics import CONFIDENCE, stars
from kohaku_ray.evaluation.submissions import read_refs
from kohaku_ray.models.summary import (
    SERVER_FACTS,
    AnswerSummary,
    describe_errors,
    describe_flags,
    describe_servers,
    describe_sources,
    pluralize,
)
from kohaku_ray.pages.tables import as_text
from kohaku_ray.pages.text import leave_out_shared
from kohaku_ray.runs.scoring import ScoredRun
from kohaku_ray.store.directory import baseline_note
from kohaku_ray.store.tables import ANSWER_FILES, SCHEMAS
from kohaku_ray.table import Column, Table, TableRow

SIGNED = "+z.4f"
"""Format of a difference: with its sign, and no negative zero."""

_WIDTH = 32  # most characters of a cell with a model's text


def describe_scores(report: ScoreReport) -> str:
    """Lay a report out as plain text: the score table, the error table when requested, and oddities of the files."""
    numbers = ["score", *dict.fromkeys(part for metric in report.metrics for part in metric.parts)]
    names = ["file", "metric", *([report.by] if report.by else [])]
    ends = ["low", "high"] if report.cluster else []
    head = [*names, *(Column(name, ".4f") for name in (*numbers, *ends)), "n", *(["clusters"] * bool(ends)), "missing"]
    keys = ["file", "metric", *(["label"] if report.by else []), *numbers, *ends]
    keys += ["n", *(["n_clusters"] * bool(ends)), "missing"]
    scores = Table.of(head, [[record.get(key) for key in keys] for record in report.records], n_text=len(names))
    parts = [as_text(scores), *_figure_tables(report)]
    if report.cluster:
        about = [f"low and high: 95 % interval, BCa bootstrap over clusters of one {report.cluster}"]
        reasons = {f"{record['file']}, {record['metric']}": record.get("interval") for record in report.records}
        about += [f"{name}: {reason}" for name, reason in reasons.items() if reason]
        parts.append("\n".join(about))
    if report.errors and report.classes:
        counts = [[file.file, *(file.errors[name] for name in report.classes)] for file in report.files]
        parts.append(as_text(Table.of(["errors", *report.classes], counts)))
        for file in report.files:
            whose = f"{file.file}: " if len(report.files) > 1 else ""
            named = [f"{whose}{name}: {', '.join(ids)}" for name, ids in file.wrong.items() if ids]
            parts += ["\n".join(named)] if named else []
    elif report.errors:
        parts.append(f"errors have no classes under {', '.join(metric.name for metric in report.metrics)}")
    notes = [f"{file.file}: {note}" for file in (report.truth, *report.files) for note in file.notes]
    return "\n\n".join([*parts, *(["\n".join(notes)] if notes else [])])


def _figure_tables(report: ScoreReport) -> Iterator[str]:
    """Lay out the figures of whole sets: all numbers, and the tables of files that are not split."""
    for metric in report.metrics if report.by else ():
        records = [record for record in report.records if record["metric"] == metric.name and "figures" in record]
        names = list(dict.fromkeys(name for record in records for name in record["figures"]))
        rows = [[record["file"], record["label"], *map(record["figures"].get, names)] for record in records]
        if rows:
            yield as_text(Table.of(["file", str(report.by), *(Column(name, ".4f") for name in names)], rows, n_text=2))
    for file in report.files if not report.by else ():
        for name, figures in file.figures.items():
            numbers = [[number.name, number.text, number.note] for number in figures.numbers]
            yield f"{file.file}, {name}\n{as_text(Table.of(['figure', 'value', ''], numbers, n_text=3))}"
            yield from (f"{table.title}\n{as_text(table)}" for table in figures.tables)


def describe_comparison(comparing: Comparing) -> str:
    """Lay a comparison out as plain text: scores, the two files question by question, the groups, and what is odd."""
    files, scores = leave_out_shared(comparing.files), comparing.scores
    head = [comparing.metric, *(Column(name, ".4f") for name in ("score", *scores[0].parts)), "n"]
    rows = [[files[i], scores[i].score, *scores[i].parts.values(), scores[i].n] for i in _order(comparing)]
    parts = [as_text(Table.of(head, rows))]
    if comparing.pair is not None:
        parts += [pair_text(files, comparing.pair), *flip_tables(comparing.pair)]
    if comparing.split is not None:
        first_ranks = comparing.split.ranks[comparing.split.labels[0]]
        order = (
            _order(comparing)
            if comparing.pair is not None
            else sorted(range(len(first_ranks)), key=first_ranks.__getitem__)
        )
        parts += split_tables(files, order, comparing.split)
    notes = "\n".join(comparing.notes)
    for path, name in sorted(zip(comparing.files, files, strict=True), key=lambda pair: -len(pair[0])):
        notes = notes.replace(path, name)
    return "\n\n".join(filter(None, [*parts, notes]))


def _order(comparing: Comparing) -> list[int]:
    """Order of the files: two as given, more by score, the best first."""
    indices = list(range(len(comparing.files)))
    return indices if comparing.pair is not None else sorted(indices, key=lambda i: -comparing.scores[i].score)


def pair_text(files: Sequence[str], pair: Pair) -> str:
    """Say in words how the second of two files differs from the first."""
    interval, permutation = pair.interval, pair.permutation
    lines = [f"A = {files[0]}", f"B = {files[1]}", f"B − A: {write_signed(interval.mean)}"]
    if interval.low is not None and interval.high is not None:
        ends = f"{write_signed(interval.low)} … {write_signed(interval.high)}"
        over = "questions" if pair.n_clusters is None else pluralize(pair.n_clusters, "cluster")
        lines[-1] += f", {CONFIDENCE:.0%} interval {ends} (BCa bootstrap over {over})"
    if interval.reason:
        lines.append(f"       {interval.reason}")
    how = "exact" if permutation.is_exact else "drawn"
    mark, what = stars(permutation.p), "question" if pair.n_clusters is None else "cluster"
    lines += [
        f"paired permutation test: p = {write_p(permutation.p)}{' ' + mark if mark else ''} ({how}, "
        f"scores of {pluralize(permutation.n_nonzero, what)} differ); effect size d_z = {write_effect(pair.d_z)}",
        f"values: {pair.n_lost} right to wrong, {pair.n_won} wrong to right; "
        f"McNemar exact p = {write_p(pair.mcnemar_p)}",
    ]
    if conflict := explain_conflict(interval, permutation):
        lines.append(conflict)
    return "\n".join(lines)


def explain_conflict(interval: Interval, permutation: Permutation) -> str:
    """Say which figure to go by where the interval of a difference excludes 0 and the test finds no difference."""
    if interval.low is None or interval.high is None or permutation.p is None:
        return ""
    if interval.low <= 0 <= interval.high or permutation.p <= 1 - CONFIDENCE + 1e-9:
        return ""
    n = permutation.n_nonzero
    least_p = 0.5 ** (n - 1)
    reachable = f" (with {n} no p is below {least_p:g})" if least_p > 1 - CONFIDENCE else ""
    return (
        f"the interval excludes 0, but p is {write_p(permutation.p)}: go by p. Only {pluralize(n, 'question')} "
        f"differ, and of few the bootstrap makes its interval too narrow{reachable}"
    )


def flip_tables(pair: Pair) -> Iterator[str]:
    """Lay out a table per kind of flip."""
    for kind in FLIPS:
        head = [kind, "truth", "A", "B", "truth refs", "A refs", "B refs"]
        rows: list[TableRow] = []
        for flip in (flip for flip in pair.flips if flip.kind == kind):
            refs = [", ".join(read_refs(text)) for text in (flip.truth_refs, *flip.refs)]
            rows.append((*map(_clip, (flip.question_id, flip.truth_value, *flip.values, *refs)), *flip.scores))
        if rows:
            yield as_text(Table.of([*head, Column("score A", ".4f"), Column("score B", ".4f")], rows, n_text=7))


def _clip(text: str) -> str:
    """Make a cell one short printable line: it is a model's text."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 1]}…"


def band_table(split: Split, label: str) -> Table:
    """Lay out the rank bands."""
    first = split.labels[0]
    columns = [
        *(f"rank {first}", "n", Column(first, ".4f"), Column(label, ".4f"), f"{label} − {first}"),
        *(Column("median", SIGNED), Column("ranks moved", ".1f")),
    ]
    rows = []
    for band in rank_bands(split, label):
        deviation = "" if band.sd is None else f" ± {band.sd:.4f}"
        difference = write_signed(band.difference) + deviation
        rows.append([band.name, band.n, band.first, band.second, difference, band.median, band.moved])
    return Table.of(columns, rows, f"Rank bands, {first} to {label}")


def shift_table(split: Split, label: str, of: str) -> Table:
    """Lay out the statistics of the differences; ``of`` names what is scored, such as ``files``."""
    shift, first = shift_of(split, label), split.labels[0]
    counts = {
        f"lower on {label}": shift.n_down,
        f"higher on {label}": shift.n_up,
        "the same on both": shift.n - shift.n_down - shift.n_up,
    }
    rows: list[TableRow] = [
        (of, shift.n),
        ("mean", write_signed(shift.mean)),
        ("standard deviation", "n/a" if shift.sd is None else f"{shift.sd:.4f}"),
        ("median", write_signed(shift.median)),
        ("least", write_signed(shift.least)),
        ("greatest", write_signed(shift.greatest)),
        *((name, f"{n} ({n / shift.n:.1%})") for name, n in counts.items()),
        (f"Pearson, {first} and the difference", write_effect(shift.correlation.pearson)),
    ]
    return Table.of([f"{label} − {first}", ""], rows, f"Differences, {first} to {label}")


def move_tables(files: Sequence[str], split: Split, label: str) -> Iterator[Table]:
    """Lay out the greatest moves of rank: the rises, then the falls; none without any."""
    first = split.labels[0]
    scores = (Column(first, ".4f"), Column(label, ".4f"), Column(f"{label} − {first}", SIGNED))
    head = [split.by, Column(f"rank {first}", "g"), Column(f"rank {label}", "g"), "move", *scores]
    for kind, moved in zip(("rises", "falls"), greatest_moves(split, label), strict=True):
        rows: list[TableRow] = [
            (
                files[i],
                *(split.ranks[name][i] for name in (first, label)),
                _move(split.moves[label][i]),
                *(split.scores[name][i].score for name in (first, label)),
                split.differences[label][i],
            )
            for i in moved
        ]
        if rows:
            yield Table.of(head, rows, f"Greatest {kind} of rank, {first} to {label}")


def group_table(files: Sequence[str], order: Sequence[int], split: Split) -> Table:
    """Lay out scores, differences, ranks and moves; arguments as in ``split_tables``."""
    first, later = split.labels[0], split.labels[1:]
    head = [
        split.by,
        *(Column(name, ".4f") for name in split.labels),
        *(Column(f"{name} − {first}", SIGNED, missing="n/a") for name in later),
        *(Column(f"rank {name}", "g") for name in split.labels),
        *(f"move to {name}" for name in later),
    ]
    rows: list[TableRow] = [
        (
            files[i],
            *(split.scores[name][i].score for name in split.labels),
            *(split.differences[name][i] for name in later),
            *(split.ranks[name][i] for name in split.labels),
            *(_move(split.moves[name][i]) for name in later),
        )
        for i in order
    ]
    return Table.of(head, rows, f"Scores and ranks, the best on {first} first")


def correlation_table(split: Split, of: str, between: str) -> Table:
    """Lay out how the scores on two groups correlate; the first column is named ``of``."""
    rows = [
        [f"{a} {between} {b}", correlation.pearson, correlation.spearman, correlation.kendall]
        for (a, b), correlation in split.correlations.items()
    ]
    head = [of, *(Column(name, "+.3f", missing="n/a") for name in ("Pearson", "Spearman", "Kendall"))]
    return Table.of(head, rows, "Correlation of the scores")


def split_tables(files: Sequence[str], order: Sequence[int], split: Split, of: str = "files") -> Iterator[str]:
    """Lay out the scores of files on each group, in an order of their indices, and the correlations of the groups.

    ``of`` names what has the scores, in the plural.
    """
    labels, later = split.labels, split.labels[1:]
    groups = group_table(files, order, split)
    counts = ["n", *(split.scores[name][0].n for name in labels)]
    n_empty = len(groups.columns) - len(counts)
    yield as_text(replace(groups, rows=(*groups.rows, (*counts, *[""] * n_empty))))
    for label in later if files[2:] else ():
        yield as_text(shift_table(split, label, of))
        if len(files) > BANDS[0]:
            yield as_text(band_table(split, label))
        for table in move_tables(files, split, label):
            yield f"{table.title[0].lower()}{table.title[1:]}\n{as_text(table)}"
    if len(labels) == 1:
        yield f"every question has {split.by} {labels[0]}: there is nothing to compare it with"
    elif files[2:]:
        yield as_text(correlation_table(split, f"{len(files)} {of}", between="~"))
        yield from sorted({correlation.reason for correlation in split.correlations.values() if correlation.reason})
    else:
        yield next(correlation.reason for correlation in split.correlations.values())


def _move(move: float) -> str:
    return f"{move:+g}" if move else "0"


def write_signed(difference: float | None) -> str:
    """Write a difference with its sign."""
    return "n/a" if difference is None else format(difference, SIGNED)


def write_p(p: float | None) -> str:
    """Write a p value."""
    if p is None:
        return "n/a"
    return f"{p:.4f}" if p >= 0.0001 else f"{p:.1e}"


def write_effect(figure: float | None) -> str:
    """Write an effect size or a correlation."""
    return "n/a" if figure is None else f"{figure:+.3f}"


def describe_run(
    summary: AnswerSummary, facts: Mapping[str, Any], n_members: int, scored: ScoredRun | None, why_not: str
) -> str:
    """Write what a run did: its counts, its scores or why there are none (``score_run``), the paths of its outputs.

    ``facts`` are those of ``facts_of``, ``n_members`` the size of its ensemble.
    """
    n_calls = sum(summary.n_calls.values())
    n_answers, n_full = summary.n_answers, summary.n_questions * n_members
    parts = [
        f"{pluralize(summary.n_questions, 'question')} × {pluralize(n_members, 'member')} in {summary.wall_s:.1f} s: "
        f"{pluralize(n_calls, 'model call')} ({describe_sources(summary.n_calls)})"
    ]
    if saved := max(n_full - n_answers, 0):
        parts.append(f"votes settled early: {saved} of {n_full} answers not asked ({saved / n_full:.0%})")
    if summary.spent.get("prompt_tokens"):
        parts.append(_spending(summary))
    if note := baseline_note(facts):
        parts.append(note)
    if summary.n_member_errors:
        parts.append(
            f"{summary.n_member_errors} of {n_answers} answers carry an error (column `error` of answers.parquet); of "
            f"{pluralize(summary.n_questions_in_error, 'question')} all answers do"
        )
    parts += describe_errors(summary.errors)
    parts += describe_flags(summary.flags, n_answers)
    parts += describe_servers(*(getattr(summary, name) for name in SERVER_FACTS))
    if summary.stopped:
        parts.append(f"stopped asking: {summary.stopped}")
    if summary.n_unanswered:
        parts.append(
            f"{pluralize(summary.n_unanswered, 'model call')} got no reply: run it again to repeat what failed"
        )
    elif summary.n_member_errors:
        parts.append("these replies are recorded: `kohaku-ray answer CONFIG --retry errors` asks for new ones")
    if scored is None:
        parts.append(why_not)
    else:
        parts += [*([scored.note] if scored.note else []), describe_scores(replace(scored.report, errors=False))]
    outputs = (*ANSWER_FILES, *(f"{name}.parquet" for name in SCHEMAS), *facts["outputs"])
    parts.append(
        f"outputs in {summary.run}: {', '.join(outputs)}\n"
        f"`kohaku-ray show {summary.run} QUESTION_ID` shows how one was answered"
    )
    return "\n\n".join(parts)


def _spending(summary: AnswerSummary) -> str:
    spent = summary.spent
    share = spent["cached_tokens"] / spent["prompt_tokens"]
    parts = [
        f"{spent['prompt_tokens']:,.0f} prompt tokens ({share:.0%} from the prefix cache)",
        f"{spent['completion_tokens']:,.0f} generated",
        f"{spent['queue_s']:.1f} s of waiting for a replica and {spent['service_s']:.1f} s in replicas, summed over "
        "the calls",
    ]
    if spent["gpu_s"]:
        parts.append(f"{spent['gpu_s']:.1f} GPU s")
    if spent.get("joules"):
        parts.append(f"{spent['joules'] / 1000:.1f} kJ")
    if spent["dollars"]:
        parts.append(f"${spent['dollars']:.4f}")
    n_placed, n_moved = sum(summary.n_placed.values()), sum(summary.n_moved.values())
    if n_placed:
        placed = pluralize(n_placed, "question")
        parts.append(f"{placed} placed on replicas, {n_moved} of them moved off an overloaded one")
    return "used by the calls made: " + ", ".join(parts)
