import csv
import io
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pymupdf
import pytest
from kit.sweeps import HOSTILE, REASON, Maker, small_sweep

from kohaku_ray.pages.sweep_tables import (
    cells_table,
    describe_sweep,
    explain_marks,
    score_field,
    write_csv,
    write_latex,
    write_markdown,
    write_measure,
    write_spread,
)
from kohaku_ray.pages.text import write_number
from kohaku_ray.records import pluralize
from kohaku_ray.sweep.compare import Axis, SweepCell, SweepTable, compare_column
from kohaku_ray.sweep.statistics import Spread, compute_stats, compute_sweep_stats

FIGURE = re.compile(r"(\d\.\d{3}) (?:±|\$\\pm\$) (\d\.\d{3})")


@pytest.fixture(scope="module")
def sweep():
    return small_sweep()


@pytest.fixture(scope="module")
def stats(sweep):
    return {table_stats.table.name: table_stats for table_stats in compute_sweep_stats(sweep)}


def records(stat):
    return list(csv.DictReader(io.StringIO(write_csv(stat))))


def block(text):
    """The first table of a LaTeX file."""
    return text[text.index("\\begin{tabular}") : text.index("\\end{tabular}")]


def test_every_format_has_the_same_figures(stats, sweep):
    text = describe_sweep(sweep, list(stats.values()))
    for stat in stats.values():
        told = [(row["mean"], row["sd"]) for row in records(stat) if row["mean"]]
        markdown = write_markdown(stat).split("\n\n## ")[0]
        start = text.index(f"{stat.table.title}\n\n")
        terminal = text[start : text.index("\n\n", start + len(stat.table.title) + 2)]
        for written in (markdown, block(write_latex(stat)), terminal):
            rows = FIGURE.findall(written)
            assert len(rows) == len(told) == len(stat.comparisons)
            for figures, numbers in zip(rows, told, strict=True):
                assert [*map(float, figures)] == pytest.approx([*map(float, numbers)], abs=5.1e-4)


def test_a_line_of_csv_has_all_that_is_known_of_a_cell(stats):
    stat = stats["model_k"]
    row = next(row for row in ("qwen3-8b", "extractive") if not stat.comparisons[(row,), "16"].is_best)
    cell = stat.grid.cells[(row,), "16"]
    (line,) = [row for row in records(stat) if row["cell_id"] == cell.cell_id]
    column = [each for (_, label), each in stat.grid.cells.items() if label == "16"]
    (known,) = [made for made in compare_column(column) if made.cell_id == cell.cell_id]
    assert (line["roles.answer.model"], line["k"], line["table"], line["state"]) == (row, "16", "model_k", "finished")
    assert (line["n_seeds"], line["n_questions"], line["n_common"], line["is_thin"]) == ("3", "24", "24", "false")
    for name, number in (
        ("mean", known.mean),
        ("sd", known.sd),
        ("value", cell.parts["value"].mean()),
        ("ref", cell.parts["ref"].mean()),
        ("abstain", cell.parts["abstain"].mean()),
        ("difference", known.interval.mean),
        ("ci_low", known.interval.low),
        ("ci_high", known.interval.high),
        ("welch_p", known.welch.p),
        ("permutation_p", known.permutation.p),
        ("corrected_p", known.corrected_p),
        ("hedges_g", known.welch.g),
        ("d_z", known.d_z),
        ("matches", cell.measures["matches"].mean()),
    ):
        assert float(line[name]) == pytest.approx(number, abs=1e-6), name
    assert line["stars"] == known.stars
    assert line["runs"].split() == list(cell.run_ids)
    assert sorted(row["column_rank"] for row in records(stat) if row["k"] == "16") == ["", "1", "2", "3"]
    by_mean = sorted((row for row in records(stat) if row["rank"]), key=lambda row: -float(row["mean"]))
    assert [int(row["rank"]) for row in by_mean] == list(range(1, 10)), "of all cells of the table"
    assert {row["n_tied"] for row in by_mean} == {"0"}


def test_every_column_of_a_csv_is_documented(stats, sweep):
    page = (Path(__file__).parents[2] / "docs" / "sweeps.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"`([^`]+)`", page.partition("## Columns of the CSV files")[2]))
    for stat in stats.values():
        names = {axis.name for axis in stat.table.axes} | {name for cell in stat.table.cells for name in cell.measures}
        columns = {column.label for column in cells_table(stat).columns}
        assert columns - names <= documented, columns - names - documented
    fixed = {"setting", "rank GROUP", "difference GROUP", "move GROUP"}
    assert fixed <= documented


def test_every_state_has_its_reason_in_every_format(stats, sweep):
    stat = stats["model_k"]
    assert [(row["state"], row["reason"]) for row in records(stat) if row["state"] != "finished"] == [
        ("partial", "seed 2: no reply in 600 s"),
        ("skipped", REASON),
        ("failed", f"the backend said {HOSTILE}".replace("\u202e", "[U+202E]").replace("\0", "␀")),
        ("unfinished", "0 of 3 seeds so far"),
    ]
    for text in (write_markdown(stat), write_latex(stat), describe_sweep(sweep, list(stats.values()))):
        text = re.sub(r"[\\{}]", "", text)
        for number, (state, reason) in enumerate(
            [("partial", "seed 2: no"), ("skipped", "retriever"), ("failed", "the backend"), ("unfinished", "0 of 3")],
            1,
        ):
            assert f"[{number}] {state}: {reason}" in text
        assert re.search(r"0\.\d{3} ?\S*†\S* ?\[1\]|dagger\S* ?\[1\]", text)
        assert re.search(r"skipped ?\[2\].*failed ?\[3\].*unfinished ?\[4\]", text)


def test_cells_of_one_reason_share_its_footnote(stats):
    assert write_markdown(stats["nothing"]).count("skipped \\[1\\]") == 3


def test_the_best_is_bold_the_second_underlined_and_a_lone_cell_neither(stats):
    stat = stats["dedup"]
    for column in stat.grid.columns:
        marks = {row: score_field(stat, (row, column), {}).mark for row in stat.grid.rows}
        scores = sorted(stat.grid.rows, key=lambda row: -stat.grid.cells[row, column].scores.mean())
        assert [marks[row] for row in scores] == ["best", "second", "", "", "", ""]
    head, _, *body = write_markdown(stat).split("\n\n")[1].splitlines()
    assert head.endswith("| average rank |")
    assert sum(line.count("**") // 2 for line in body) == sum(line.count("<ins>") for line in body) == 3
    assert block(write_latex(stat)).count("\\textbf{") == block(write_latex(stat)).count("\\underline{") == 3
    alone = replace(stat.table, cells=stat.table.cells[:3])
    assert "**" not in write_markdown(compute_stats(alone)).split("\n\n")[1]


def test_average_ranks_are_those_of_the_statistics(stats):
    stat = stats["dedup"]
    assert [line.split("|")[-2].strip() for line in write_markdown(stat).split("\n\n")[1].splitlines()[2:]] == [
        f"{rank:.2f}" for rank in stat.average.values()
    ]


def test_labels_of_an_only_axis_are_rows(stats):
    assert write_markdown(stats["queries"]).split("\n\n")[1].splitlines()[0] == "| queries | score |"


def test_thin_cells_and_subsamples_are_explained(stats):
    thin = stats["thin"].table
    assert "Every cell is from fewer than 20 questions: a difference may be chance." in explain_marks(stats["thin"])
    mixed = compute_stats(replace(thin, cells=(thin.cells[0], Maker(24).cell(thin.cells[1].labels, 0.5))))
    assert any(line.startswith("† from fewer than 20 questions:") for line in explain_marks(mixed))
    raised = [score_field(mixed, key, {}).raised for key in mixed.grid.cells]
    assert ["†" in each for each in raised] == [True, False]
    assert not any("†" in line for line in explain_marks(stats["dedup"]))


def test_stars_go_by_the_corrected_p(stats):
    stat = stats["ensemble_size"]
    told = {row["cell_id"]: row for row in records(stat)}
    for key, known in stat.comparisons.items():
        stars = told[known.cell_id]["stars"]
        assert stars == score_field(stat, key, {}).raised.rstrip("†") == known.stars
        p = told[known.cell_id]["corrected_p"]
        levels = {"***": 0.001, "**": 0.01, "*": 0.05}
        assert stars == next((mark for mark, level in levels.items() if p and float(p) < level), "")
    assert block(write_latex(stat)).count("$^{") == sum(bool(known.stars) for known in stat.comparisons.values()) > 0


def test_cells_over_other_questions_are_said_to_be(stats):
    maker, few = Maker(30), Maker(24)
    labels = [{"m": label, "k": "4"} for label in "ab"]
    table = SweepTable(
        "t", "T", (Axis("m", ("a", "b")), Axis("k", ("4",))), (maker.cell(labels[0], 0.5), few.cell(labels[1], 0.9))
    )
    assert explain_marks(compute_stats(table))[-1].startswith("Cells have 24 to 30 questions; each is compared")


def test_latex_escapes_what_it_would_read(stats):
    text = block(write_latex(stats["thin"]))
    assert (
        "\\textless{}script\\textgreater{}alert(1)\\textless{}/script\\textgreater{}{\"}' \\textbar{} "
        "\\textbackslash{}textbf\\{x\\} \\$\\textbackslash{}x\\$ 50 \\% a\\_b \\& \\#1 \\textasciitilde{} "
        "\\textasciicircum{} \\textasciigrave{}c\\textasciigrave{} {*}d{*} {[}U+202E{]}{[}U+0000{]}"
    ) in text
    for line in text.splitlines()[4:-1]:
        assert line.endswith(" \\\\")
        assert len(re.findall(r"(?<!\\)&", line)) == 1
        assert not re.search(r"(?<!\\)[#%~]", line)
    stat = compute_stats(SweepTable("t", "T", (Axis("a--b", ("''[x]", "---")),), stats["queries"].table.cells[:0]))
    assert "a-{}-b" in write_latex(stat)


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no LaTeX here")
def test_latex_reads_the_tables(stats, tmp_path):
    head = r"\documentclass{article}\usepackage[a2paper]{geometry}\usepackage{booktabs}\begin{document}"
    text = "\n\\newpage\n".join([head, *map(write_latex, stats.values()), r"\end{document}"])
    (tmp_path / "tables.tex").write_text(text)
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "tables.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=120)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout
    with pymupdf.open(tmp_path / "tables.pdf") as pages:
        shown = [page.get_text() for page in pages]
        page = pages[list(stats).index("dedup")]
        tops = {name: [box.y0 for box in page.search_for(name)] for name in ("dedup", "matches", "characters")}
    assert len(shown) == len(stats)
    scores, matches, characters, *_ = tops["dedup"]  # each table's head; the notes below may name it too
    assert scores < tops["matches"][0] < matches < tops["characters"][0] < characters
    assert "<script>alert(1)</script>" in " ".join(shown)
    for stat, page in zip(stats.values(), shown, strict=True):
        assert sorted(FIGURE.findall(page)) == sorted(FIGURE.findall(block(write_latex(stat))))


def test_markdown_keeps_hostile_labels_in_their_cells(stats):
    lines = write_markdown(stats["thin"]).split("\n\n")[1].splitlines()
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1
    assert "\\<script\\>" in lines[3]
    assert not re.search(r"(?<!\\)<(?!/?ins>)", write_markdown(stats["thin"]))


def test_measures_have_the_digits_their_size_asks_for(stats):
    stat = stats["dedup"]
    assert write_measure(stat, "matches")[("none", "0"), "4"] == "3.50 ± 0.00"
    assert write_measure(stat, "characters")[("none", "0"), "4"] == "9,450 ± 450"
    assert write_measure(stat, "nothing such") == {}
    assert write_markdown(stat).count("9,450 ± 450") == write_latex(stat).count("9,450 $\\pm$ 450") == 18


def test_one_seed_has_no_deviation():
    assert write_spread(Spread.of([0.5])) == "0.500"
    assert write_spread(Spread.of([-1e-9, -1e-9])) == "0.000 ± 0.000"
    made = Maker(24)
    table = SweepTable("t", "T", (Axis("m", ("a",)),), (made.cell({"m": "a"}, 0.5, seeds=(7,)),))
    (line,) = records(compute_stats(table))
    assert (line["sd"], line["welch_p"], line["n_seeds"]) == ("", "", "1")


def test_an_axis_that_is_called_like_a_figure_has_a_column_of_its_own():
    cell = SweepCell("c", {"mean": "a"}, "failed", "why", measures={"mean": np.ones(1), "rank": np.ones(1)})
    (line,) = records(compute_stats(SweepTable("t", "T", (Axis("mean", ("a",)),), (cell,))))
    assert (line["axis mean"], line["mean"], line["measure mean"], line["measure rank"]) == (
        "a",
        "",
        "1.000000",
        "1.000000",
    )


def test_the_terminal_shows_tables_before_notes(sweep, stats):
    text = describe_sweep(sweep)
    assert "\n\nOver all tables:\nSmallest difference that can be seen: 0." in text
    assert text == describe_sweep(sweep, list(stats.values()))
    assert text.startswith("A small sweep (small)\n\nModels and depth of retrieval\n\nmodel ")
    assert text.endswith("\n\nOne cell failed.\n\nCalls asked: 12,345\nCalls made: 4,321 (35 %)\nSeconds: 98.7")
    assert "\nmatches\n\ndedup" in text
    assert "\u202e" not in text
    assert "\0" not in text
    start = text.index("dedup  ")
    lines = text[start : text.index("\n\n", start)].splitlines()
    assert len({line.rstrip().rfind(".") for line in lines[2:]}) == 1


@pytest.mark.parametrize(("n", "phrase"), [(1, "1 seed"), (2, "2 seeds"), (0, "0 seeds"), (20_560, "20,560 seeds")])
def test_counts_are_written_in_full_and_one_is_singular(n, phrase):
    assert pluralize(n, "seed") == phrase
    assert write_number(20_560.4) == "20,560"


def test_the_papers_figures_stand_beside_ours_marked_and_nowhere_else(sweep):
    table = sweep.tables[2]  # it shows measures
    first, *others = table.cells
    with_figures = replace(first, paper={"score": 0.8125, "matches": 32.0})
    stats = compute_stats(replace(table, cells=(with_figures, *others)))
    key = next(iter(stats.grid.cells))
    assert score_field(stats, key, {}).aside == "paper 0.812"
    ours = re.escape(score_field(stats, key, {}).text)
    assert write_markdown(stats).count("(paper ") == 2, "a score and a measure"
    assert re.search(rf"{ours}\S*( \S+)? \(paper 0\.812\) \|", write_markdown(stats))
    assert "(paper 32.00)" in write_markdown(stats)
    assert re.search(rf"{ours}\S* \(paper 0\.812\) &".replace("±", r"\$\\pm\$"), write_latex(stats))
    assert any(line.startswith("paper: the paper's own figure") for line in explain_marks(stats))
    rows = records(stats)
    assert [row["paper score"] for row in rows] == ["0.812500", *[""] * len(others)]
    assert rows[0]["paper matches"] == "32.000000"
    told = describe_sweep(replace(sweep, tables=(stats.table,)), [stats])
    assert told.count("(paper ") == 2
    plain = compute_stats(table)
    assert "paper" not in write_markdown(plain) + write_csv(plain) + write_latex(plain)
