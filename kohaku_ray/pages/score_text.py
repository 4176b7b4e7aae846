"""Scores and comparisons as plain text for a terminal: aligned tables, differences, p values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kohaku_ray.evaluation.compare import (
    BANDS,
    FLIPS,
    Comparing,
    Flip,
    Pair,
    Split,
    greatest_moves,
    rank_bands,
    shift_of,
)
from kohaku_ray.evaluation.report import ScoreReport
from kohaku_ray.evaluation.statistics import CONFIDENCE, stars
from kohaku_ray.evaluation.submissions import read_refs
from kohaku_ray.run.directory import baseline_note
from kohaku_ray.run.scoring import ScoredRun
from kohaku_ray.run.summary import (
    AnswerSummary,
    counted,
    describe_errors,
    describe_flags,
    describe_servers,
    sources_said,
)
from kohaku_ray.run.tables import ANSWER_FILES, SCHEMAS

_WIDTH = 32  # most characters of a cell with a model's text


def describe_scores(report: ScoreReport) -> str:
    """Lay a report out as plain text: the score table, the error table when requested, and oddities of the files."""
    numbers = ["score", *dict.fromkeys(part for metric in report.metrics for part in metric.parts)]
    head = ["file", "metric", *([report.by] if report.by else []), *numbers, "n", "missing"]
    body = [
        [
            str(record["file"]),
            str(record["metric"]),
            *([str(record["label"])] if report.by else []),
            *(f"{record[key]:.4f}" if key in record else "" for key in numbers),
            str(record["n"]),
            str(record["missing"]),
        ]
        for record in report.records
    ]
    parts = [table(head, body, n_text=3 if report.by else 2), *_figure_tables(report)]
    if report.errors and report.classes:
        counts = [[file.file, *(str(file.errors[name]) for name in report.classes)] for file in report.files]
        parts.append(table(["errors", *report.classes], counts, n_text=1))
    elif report.errors:
        parts.append(f"errors have no classes under {', '.join(metric.name for metric in report.metrics)}")
    notes = [f"{file.file}: {note}" for file in (report.truth, *report.files) for note in file.notes]
    return "\n\n".join([*parts, *(["\n".join(notes)] if notes else [])])


def _figure_tables(report: ScoreReport) -> Iterator[str]:
    """Lay out the figures of whole sets: all numbers, and the tables of files that are not split."""
    for metric in report.metrics if report.by else ():
        records = [record for record in report.records if record["metric"] == metric.name and "figures" in record]
        names = list(dict.fromkeys(name for record in records for name in record["figures"]))
        if records:
            yield table(["file", str(report.by), *names], [_figures(record, names) for record in records], n_text=2)
    for file in report.files if not report.by else ():
        for name, figures in file.figures.items():
            numbers = [[one.name, one.text, one.note] for one in figures.numbers]
            yield f"{file.file}, {name}\n{table(['figure', 'value', ''], numbers, n_text=3)}"
            yield from (f"{one.title}\n{table(one.head, one.rows, n_text=1)}" for one in figures.tables)


def _figures(record: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    figures = record["figures"]
    written = (f"{figures[name]:.4f}" if name in figures else "" for name in names)
    return [str(record["file"]), str(record["label"]), *written]


def describe_comparison(comparing: Comparing) -> str:
    """Lay a comparison out as plain text: scores, the two files question by question, the groups, and what is odd."""
    parts = [_score_table(comparing)]
    if comparing.pair is not None:
        parts += [pair_text(comparing.files, comparing.pair), *flip_tables(comparing.pair)]
    if comparing.split is not None:
        places = comparing.split.ranks[comparing.split.labels[0]]
        order = _order(comparing) if comparing.pair is not None else sorted(range(len(places)), key=places.__getitem__)
        parts += split_tables(comparing.files, order, comparing.split)
    return "\n\n".join([*parts, *(["\n".join(comparing.notes)] if comparing.notes else [])])


def _order(comparing: Comparing) -> list[int]:
    """Order of the files: two as given, more by score, the best first."""
    places = list(range(len(comparing.files)))
    return places if comparing.pair is not None else sorted(places, key=lambda i: -comparing.scores[i].score)


def _score_table(comparing: Comparing) -> str:
    body = []
    for i in _order(comparing):
        score = comparing.scores[i]
        figures = (score.score, *score.parts.values())
        body.append([comparing.files[i], *(f"{figure:.4f}" for figure in figures), str(score.n)])
    return table([comparing.metric, "score", *comparing.scores[0].parts, "n"], body, n_text=1)


def pair_text(files: Sequence[str], pair: Pair) -> str:
    """Say in words how the second of two files differs from the first."""
    interval, permutation = pair.interval, pair.permutation
    lines = [f"A = {files[0]}", f"B = {files[1]}", f"B − A: {signed(interval.mean)}"]
    if interval.low is not None and interval.high is not None:
        ends = f"{signed(interval.low)} … {signed(interval.high)}"
        lines[-1] += f", {CONFIDENCE:.0%} interval {ends} (BCa bootstrap over questions)"
    if interval.reason:
        lines.append(f"       {interval.reason}")
    how = "exact" if permutation.is_exact else "drawn"
    mark = stars(permutation.p)
    lines += [
        f"paired permutation test: p = {write_p(permutation.p)}{' ' + mark if mark else ''} ({how}, "
        f"{permutation.n_nonzero} questions differ); effect size d_z = {write_effect(pair.d_z)}",
        f"values: {pair.n_lost} right to wrong, {pair.n_won} wrong to right; "
        f"McNemar exact p = {write_p(pair.mcnemar_p)}",
    ]
    return "\n".join(lines)


def flip_tables(pair: Pair) -> Iterator[str]:
    """Lay out a table per kind of flip."""
    for kind in FLIPS:
        flips = [flip for flip in pair.flips if flip.kind == kind]
        if flips:
            head = [kind, "truth", "A", "B", "truth refs", "A refs", "B refs", "score A", "score B"]
            yield table(head, [_flip_line(flip) for flip in flips], n_text=7)


def _flip_line(flip: Flip) -> list[str]:
    refs = [", ".join(read_refs(text)) for text in (flip.truth_refs, *flip.refs)]
    texts = [_clip(text) for text in (flip.question_id, flip.truth_value, *flip.values, *refs)]
    return [*texts, *(f"{score:.4f}" for score in flip.scores)]


def _clip(text: str) -> str:
    """Make a cell one short printable line: it is a model's text."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 1]}…"


def band_table(split: Split, label: str) -> tuple[list[str], list[list[str]]]:
    """Lay out the rank bands: head and rows."""
    first = split.labels[0]
    head = [f"rank {first}", "n", first, label, f"{label} − {first}", "median", "ranks moved"]
    return head, [
        [
            band.name,
            str(band.n),
            f"{band.first:.4f}",
            f"{band.second:.4f}",
            signed(band.difference) + ("" if band.sd is None else f" ± {band.sd:.4f}"),
            signed(band.median),
            f"{band.moved:.1f}",
        ]
        for band in rank_bands(split, label)
    ]


def shift_table(split: Split, label: str, of: str) -> tuple[list[str], list[list[str]]]:
    """Lay out the statistics of the differences: head and rows; ``of`` names what is scored, such as ``files``."""
    shift, first = shift_of(split, label), split.labels[0]
    counts = {
        f"lower on {label}": shift.n_down,
        f"higher on {label}": shift.n_up,
        "the same on both": shift.n - shift.n_down - shift.n_up,
    }
    body = [
        [of, str(shift.n)],
        ["mean", signed(shift.mean)],
        ["standard deviation", "n/a" if shift.sd is None else f"{shift.sd:.4f}"],
        ["median", signed(shift.median)],
        ["least", signed(shift.least)],
        ["greatest", signed(shift.greatest)],
        *([name, f"{n} ({n / shift.n:.1%})"] for name, n in counts.items()),
        [f"Pearson, {first} and the difference", write_effect(shift.correlation.pearson)],
    ]
    return [f"{label} − {first}", ""], body


def move_table(files: Sequence[str], split: Split, label: str) -> tuple[list[str], list[list[str]], list[list[str]]]:
    """Lay out the greatest moves of rank: head, rows of the rises, rows of the falls."""
    first = split.labels[0]
    head = [split.by, f"rank {first}", f"rank {label}", "move", first, label, f"{label} − {first}"]
    rises, falls = (
        [
            [
                files[i],
                *(f"{split.ranks[name][i]:g}" for name in (first, label)),
                _move(split.moves[label][i]),
                *(f"{split.scores[name][i].score:.4f}" for name in (first, label)),
                signed(split.differences[label][i]),
            ]
            for i in moved
        ]
        for moved in greatest_moves(split, label)
    )
    return head, rises, falls


def group_table(files: Sequence[str], order: Sequence[int], split: Split) -> tuple[list[str], list[list[str]]]:
    """Lay out scores, differences, ranks and moves: head and rows; arguments as in ``split_tables``."""
    labels, later = split.labels, split.labels[1:]
    head = [
        split.by,
        *labels,
        *(f"{name} − {labels[0]}" for name in later),
        *(f"rank {name}" for name in labels),
        *(f"move to {name}" for name in later),
    ]
    body = [
        [
            files[i],
            *(f"{split.scores[name][i].score:.4f}" for name in labels),
            *(signed(split.differences[name][i]) for name in later),
            *(f"{split.ranks[name][i]:g}" for name in labels),
            *(_move(split.moves[name][i]) for name in later),
        ]
        for i in order
    ]
    return head, body


def correlation_table(split: Split, of: str, between: str) -> tuple[list[str], list[list[str]]]:
    """Lay out how the scores on two groups correlate: head, which begins with ``of``, and rows."""
    body = [
        [f"{a} {between} {b}", *map(write_effect, (found.pearson, found.spearman, found.kendall))]
        for (a, b), found in split.correlations.items()
    ]
    return [of, "Pearson", "Spearman", "Kendall"], body


def split_tables(files: Sequence[str], order: Sequence[int], split: Split, of: str = "files") -> Iterator[str]:
    """Lay out the scores of files on each group, in an order of their indices, and the correlations of the groups.

    ``of`` names what has the scores, in the plural.
    """
    labels, later = split.labels, split.labels[1:]
    head, body = group_table(files, order, split)
    counts = ["n", *(str(split.scores[name][0].n) for name in labels)]
    yield table(head, [*body, [*counts, *[""] * (len(head) - len(counts))]], n_text=1)
    for label in later if files[2:] else ():
        yield table(*shift_table(split, label, of), n_text=1)
        if len(files) > BANDS[0]:
            yield table(*band_table(split, label), n_text=1)
        head, *moves = move_table(files, split, label)
        for kind, rows in zip(("rises", "falls"), moves, strict=True):
            if rows:
                yield f"greatest {kind} of rank, {labels[0]} to {label}\n{table(head, rows, n_text=1)}"
    if len(labels) == 1:
        yield f"every question has {split.by} {labels[0]}: there is nothing to compare it with"
    elif files[2:]:
        yield table(*correlation_table(split, f"{len(files)} {of}", between="~"), n_text=1)
        yield from sorted({found.reason for found in split.correlations.values() if found.reason})
    else:
        yield next(found.reason for found in split.correlations.values())


def _move(move: float) -> str:
    return f"{move:+g}" if move else "0"


def table(head: Sequence[str], body: Sequence[Sequence[str]], n_text: int) -> str:
    """Align columns: the first ``n_text`` to the left, the others to the right."""
    widths = [max(len(line[column]) for line in [head, *body]) for column in range(len(head))]

    def lay(line: Sequence[str]) -> str:
        cells = [
            cell.ljust(width) if column < n_text else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        return "  ".join(cells).rstrip()

    return "\n".join([lay(head), lay(["-" * width for width in widths]), *map(lay, body)])


def signed(difference: float | None) -> str:
    """Write a difference with its sign."""
    return "n/a" if difference is None else f"{round(difference, 4) + 0.0:+.4f}"  # + 0.0: no negative zero


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
        f"{counted(summary.n_questions, 'question')} × {counted(n_members, 'member')} in {summary.wall_s:.1f} s: "
        f"{counted(n_calls, 'model call')} ({sources_said(summary.n_calls)})"
    ]
    if saved := max(n_full - n_answers, 0):
        parts.append(f"votes settled early: {saved} of {n_full} answers not asked ({saved / n_full:.0%})")
    if summary.spent.get("prompt_tokens"):
        parts.append(_spending(summary))
    if note := baseline_note(facts):
        parts.append(note)
    if summary.n_member_errors:
        parts.append(
            f"{summary.n_member_errors} of {n_answers} answers carry an error (column `error` of answers.parquet); "
            f"{summary.n_questions_in_error} questions have no answer without an error"
        )
    parts += describe_errors(summary.errors)
    parts += [*describe_flags(summary.flags, n_answers), *describe_servers(summary.adapted, summary.shortened)]
    if summary.stopped:
        parts.append(f"stopped asking: {summary.stopped}")
    if summary.n_unanswered:
        parts.append(f"{summary.n_unanswered} model calls got no reply: repeat the command to make them again")
    elif summary.n_member_errors:
        parts.append("those replies are recorded: `kohaku-ray answer CONFIG --retry errors` asks for them again")
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
        parts.append(f"{n_placed} questions placed on replicas, {n_moved} of them moved off an overloaded one")
    return "used by the calls made: " + ", ".join(parts)
