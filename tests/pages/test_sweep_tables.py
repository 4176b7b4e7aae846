import csv
import io
import re
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pymupdf
import pytest
from pages import check_golden
from sweeps import Maker, small_sweep

from kohaku_ray.pages.sweep_stats import (
    Spread,
    axis_names,
    compute_stats,
    compute_sweep_stats,
    legend,
    shown,
)
from kohaku_ray.pages.sweep_tables import as_csv, as_latex, as_markdown, describe_sweep
from kohaku_ray.sweep.compare import Axis, Table, TableCell

FIGURE = re.compile(r"(\d\.\d{3}) (?:±|\$\\pm\$) (\d\.\d{3})")


@pytest.fixture(scope="module")
def sweep():
    return small_sweep()


@pytest.fixture(scope="module")
def stats(sweep):
    return {one.table.name: one for one in compute_sweep_stats(sweep)}


def records(one):
    return list(csv.DictReader(io.StringIO(as_csv(one))))


def block(text):
    """The first table of a LaTeX file."""
    return text[text.index("\\begin{tabular}") : text.index("\\end{tabular}")]


@pytest.mark.parametrize("name", ["model_k", "dedup", "ensemble_size", "thin", "nothing", "queries"])
def test_the_tables_are_the_golden_ones(stats, name):
    for suffix, write in (("md", as_markdown), ("csv", as_csv), ("tex", as_latex)):
        check_golden(f"sweep_{name}.{suffix}", write(stats[name]))


def test_the_terminals_text_is_the_golden_one(sweep, stats):
    text = describe_sweep(sweep)
    assert text == describe_sweep(sweep, list(stats.values()))
    check_golden("sweep.txt", text)


def test_figures_are_those_of_the_statistics(stats):
    one = stats["dedup"]
    for column in one.grid.columns:
        marks = {row: shown(one, (row, column)).mark for row in one.grid.rows}
        scores = sorted(one.grid.rows, key=lambda row: -one.grid.cells[row, column].scores.mean())
        assert [marks[row] for row in scores] == ["best", "second", "", "", "", ""]
    told = {row["cell_id"]: row for row in records(one)}
    for known in one.comparisons.values():
        line = told[known.cell_id]
        for name, number in (
            ("mean", known.mean),
            ("sd", known.sd),
            ("difference", known.interval.mean),
            ("ci_low", known.interval.low),
            ("welch_p_holm", known.welch_holm),
            ("permutation_p", known.permutation.p),
            ("hedges_g", known.welch.g),
            ("d_z", known.d_z),
        ):
            assert line[name] == ("" if number is None else f"{number:z.6f}"), name
        assert line["stars"] == known.stars
    alone = replace(one.table, cells=one.table.cells[:3])
    assert "**" not in as_markdown(compute_stats(alone)).split("\n\n")[1]


def test_axes_are_named_by_what_tells_them_apart():
    axes = [Axis(name, ("a",)) for name in ("roles.answer.model", "index.encoder.model", "retrieval.k")]
    assert axis_names(Table("t", "T", tuple(axes[1:]), ())) == ("model", "k")
    assert axis_names(Table("t", "T", tuple(axes[:2]), ())) == ("answer.model", "encoder.model")
    assert axis_names(Table("t", "T", (axes[0], Axis("model", ("a",))), ())) == ("answer.model", "model")
    assert axis_names(Table("t", "T", (Axis("k.", ("a",)),), ())) == ("k.",)


def test_cells_over_other_questions_are_said_to_be(stats):
    maker, few = Maker(30), Maker(24)
    at = [{"m": label, "k": "4"} for label in "ab"]
    table = Table("t", "T", (Axis("m", ("a", "b")), Axis("k", ("4",))), (maker.cell(at[0], 0.5), few.cell(at[1], 0.9)))
    assert legend(compute_stats(table))[-1].startswith("Cells have 24 to 30 questions; each is compared")


def test_latex_escapes_what_it_would_read(stats):
    for line in block(as_latex(stats["thin"])).splitlines()[4:-1]:
        assert line.endswith(" \\\\")
        assert len(re.findall(r"(?<!\\)&", line)) == 1
        assert not re.search(r"(?<!\\)[#%~]", line)
    one = compute_stats(Table("t", "T", (Axis("a--b", ("''[x]", "---")),), stats["queries"].table.cells[:0]))
    assert "a-{}-b" in as_latex(one)


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no LaTeX here")
def test_latex_reads_the_tables(stats, tmp_path):
    head = r"\documentclass{article}\usepackage[a2paper]{geometry}\usepackage{booktabs}\begin{document}"
    text = "\n\\newpage\n".join([head, *map(as_latex, stats.values()), r"\end{document}"])
    (tmp_path / "tables.tex").write_text(text)
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "tables.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=120)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout
    with pymupdf.open(tmp_path / "tables.pdf") as pages:
        shown = [page.get_text() for page in pages]
        page = pages[list(stats).index("dedup")]
        tops = {name: [at.y0 for at in page.search_for(name)] for name in ("dedup", "matches", "characters")}
    assert len(shown) == len(stats)
    scores, matches, characters = tops["dedup"]  # each table's head
    assert scores < tops["matches"][0] < matches < tops["characters"][0] < characters
    assert "<script>alert(1)</script>" in " ".join(shown)
    for one, page in zip(stats.values(), shown, strict=True):
        assert sorted(FIGURE.findall(page)) == sorted(FIGURE.findall(block(as_latex(one))))


def test_markdown_keeps_hostile_labels_in_their_cells(stats):
    lines = as_markdown(stats["thin"]).split("\n\n")[1].splitlines()
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1
    assert "\\<script\\>" in lines[3]
    assert not re.search(r"(?<!\\)<(?!/?ins>)", as_markdown(stats["thin"]))


def test_one_seed_has_no_deviation():
    assert Spread.of([0.5]).write() == "0.500"
    assert Spread.of([-1e-9, -1e-9]).write() == "0.000 ± 0.000"
    made = Maker(24)
    table = Table("t", "T", (Axis("m", ("a",)),), (made.cell({"m": "a"}, 0.5, seeds=(7,)),))
    (line,) = records(compute_stats(table))
    assert (line["sd"], line["welch_p"], line["n_seeds"]) == ("", "", "1")


def test_an_axis_that_is_called_like_a_figure_has_a_column_of_its_own():
    cell = TableCell("c", {"mean": "a"}, "failed", "why", measures={"mean": np.ones(1), "rank": np.ones(1)})
    (line,) = records(compute_stats(Table("t", "T", (Axis("mean", ("a",)),), (cell,))))
    assert (line["axis mean"], line["mean"], line["measure mean"], line["measure rank"]) == (
        "a",
        "",
        "1.000000",
        "1.000000",
    )
