import csv
import io
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pymupdf
import pytest
from kit.sweeps import HOSTILE, Maker, small_sweep, sweep_of_four_runs
from pages import Tags, check_harmless, opened, plain

from kohaku_ray.evaluation.compare import split_of
from kohaku_ray.evaluation.metrics import Score
from kohaku_ray.evaluation.wattbot import ERROR_CLASSES, WATTBOT
from kohaku_ray.pages import sweep_page
from kohaku_ray.pages.sweep_charts import rate_charts, table_charts
from kohaku_ray.pages.sweep_page import page, pick_examples, write_questions, write_sweep
from kohaku_ray.pages.sweep_tables import write_csv, write_latex, write_markdown
from kohaku_ray.sweep.compare import Axis, FixedSetting, SweepCell, SweepGroups, SweepRecord, SweepTable
from kohaku_ray.sweep.costs import list_cell_runs
from kohaku_ray.sweep.statistics import average_score, compute_stats, compute_sweep_stats

SHOWN = HOSTILE.replace("\u202e", "[U+202E]").replace("\0", "␀")


@pytest.fixture(scope="module")
def sweep():
    return small_sweep()


@pytest.fixture(scope="module")
def stats(sweep):
    return compute_sweep_stats(sweep)


@pytest.fixture(scope="module")
def html(sweep, stats):
    return opened(page(sweep, stats))


def section(html, title):
    """From a table's or a section's title to the next section."""
    start = html.index(f"<h2>{title}")
    return html[start : html.index("</section>", start)]


def section_text(html, title):
    return plain(section(html, title))


def test_the_page_needs_nothing_beside_it_and_runs_nothing(html):
    check_harmless(html)
    assert not re.search(r'(?:href|src)="(?!#)', html)
    policy = next(dict(a)["content"] for t, a in Tags(html).tags if t == "meta" and "http-equiv" in a)
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'")


def test_hostile_texts_are_shown_as_text(html):
    text = plain(html)
    assert f"Is this {SHOWN} so?" in text
    assert f"[3] failed: the backend said {SHOWN}" in text
    assert SHOWN in section_text(html, "Few &amp; hostile")
    for letter in "\0\u202e":
        assert letter not in html


def test_every_link_leads_somewhere_and_every_anchor_is_one(html):
    ids = re.findall(r'id="([^"]+)"', html)
    anchors = [name for name in ids if name.startswith(("cell-", "table-"))]
    assert len(anchors) == len(set(anchors))
    links = re.findall(r'<a [^>]*href="#([^"]+)"', html)
    assert {name for name in links if name.startswith(("cell-", "table-"))} == set(anchors)


def drawn(table):
    return table_charts(compute_stats(table, WATTBOT))


def rows(n):
    return Maker(20).table("t", "T", {"a": [f"row {number}" for number in range(n)], "k": ("4", "8")})


def test_tables_are_drawn_as_their_axes_ask(sweep):
    grid, line, three, pool, few, nothing = sweep.tables
    one_row = replace(grid, cells=grid.cells[:3], axes=(grid.axes[0], Axis("k", ("4", "8", "16"))))
    words = Maker(20).table("w", "Words", {"a": ("x", "y"), "b": ("node", "tree", "none")})
    for table, titles in (
        (grid, ["Heat map", "Score along the axis"]),
        (line, ["Score along the axis"]),
        (three, ["Heat map", "Score along the axis"]),
        (pool, ["Heat map", "Ensemble-size curves"]),
        (few, ["Scores"]),
        (nothing, []),
        (one_row, ["Score along the axis"]),
        (words, ["Heat map"]),
    ):
        charts = drawn(table)
        assert [chart.title for chart in charts] == titles
        for chart in charts:
            label = ET.fromstring(chart.svg).attrib["aria-label"]
            assert label.startswith(f"{table.title}. ")
            assert f"{table.cells[0].scores.mean():.3f}" in label


@pytest.mark.parametrize(
    ("n", "n_axes", "n_ticks", "n_named", "note"),
    [
        (4, 1, 1, 4, "over seeds."),
        (6, 1, 2, 6, "Grey: the other rows."),  # a panel each: the axis below each of two columns
        (11, 1, 2, 8, "Grey: the other rows. The 8 best of 11 rows."),
    ],
)
def test_more_than_four_lines_get_a_panel_each_and_those_beyond_the_eighth_are_left_out(
    n, n_axes, n_ticks, n_named, note
):
    chart = drawn(rows(n))[1]
    assert chart.note.endswith(note)
    assert chart.svg.count(">score (0 to 1)</text>") == n_axes
    assert chart.svg.count(">4</text>") == n_ticks
    assert len(re.findall(r">row \d+</text>", chart.svg)) == n_named


def test_heat_maps_have_a_scale_and_mark_what_may_be_the_best(stats, html):
    stat = stats[0]
    cells = {key: cell.scores.mean() for key, cell in stat.grid.cells.items() if cell.is_scored}
    chart = table_charts(stat)[0]
    spread = max(cells.values()) - min(cells.values())
    margin = max(stat.selection.detectable - spread, 0) / 2
    for figure in (min(cells.values()) - margin, max(cells.values()) + margin):
        assert re.search(rf"<g[^>]*>\s*<!-- {figure:.3f} -->|>{figure:.3f}</text>", chart.svg)
    assert len(stat.selection.contenders) == len(cells), "24 questions tell none of nine apart"
    assert chart.svg.count(" ≈</text>") == len(stat.selection.contenders)
    assert "≈: not told from the best; here no cell is." in chart.note
    assert (f"The scale spans {stat.selection.detectable:.3f}, the smallest difference" in chart.note) == (margin > 0)
    assert chart.note in plain(html).replace("\u2019", "'")


def test_heat_maps_mark_what_is_not_told_from_the_best():
    maker = Maker(60)
    skills = {("a", "4"): 0.9, ("b", "4"): 0.9, ("a", "8"): 0.1, ("b", "8"): 0.2}
    cells = [maker.cell({"m": m, "k": k}, skill) for (m, k), skill in skills.items()]
    table = SweepTable("t", "T", (Axis("m", ("a", "b")), Axis("k", ("4", "8"))), tuple(cells))
    chart = drawn(table)[0]
    assert "≈: the best and what is not told from it, 2 of 4 cells." in chart.note
    assert chart.svg.count(" ≈</text>") == 2


def left_race(cell, n):
    """A cell that has left its race after ``n`` questions."""
    parts = {name: part[:, :n] for name, part in cell.parts.items()}
    return replace(cell, state="dropped", question_ids=cell.question_ids[:n], parts=parts, total=cell.total[:, :n])


def test_heat_maps_show_what_was_seen_of_a_cell_that_left_the_race():
    """users5.md, pages 4: the heat map had "–" where the table has (0.304)."""
    table = rows(3)
    cells = [*table.cells[:-1], left_race(table.cells[-1], 11)]
    chart = drawn(replace(table, cells=tuple(cells)))[0]
    assert f">({cells[-1].scores.mean():.3f})</text>" in chart.svg
    assert "left the race" in chart.note
    assert "≈" not in chart.svg[chart.svg.index("(0.") :][:60]


def test_lines_that_are_equal_can_all_be_seen():
    """users5.md, pages 3: "frequency" was in the legend and never in the plot, as "combined" lay over it."""
    maker = Maker(20)
    cells = [maker.cell({"a": "one", "k": k}, 0.6) for k in ("4", "8")]
    cells += [replace(cell, cell_id=f"two{cell.cell_id}", labels={**cell.labels, "a": "two"}) for cell in cells]
    table = SweepTable("t", "T", (Axis("a", ("one", "two")), Axis("k", ("4", "8"))), tuple(cells))
    [lines] = [chart for chart in drawn(table) if chart.title == "Score along the axis"]
    assert "stroke-dasharray" in lines.svg
    near = replace(cells[3], total=cells[3].total + 0.001)  # users6.md, 11: what is nearly equal was hidden, too
    far = [maker.cell({"a": "three", "k": k}, skill) for k, skill in (("4", 0.1), ("8", 0.9))]
    axes = (Axis("a", ("one", "two", "three")), Axis("k", ("4", "8")))
    [lines] = [
        chart for chart in drawn(replace(table, axes=axes, cells=(*cells[:3], near, *far))) if "axis" in chart.title
    ]
    assert "stroke-dasharray" in lines.svg
    other = replace(table, cells=(*cells[:2], *(maker.cell({"a": "two", "k": k}, 0.9) for k in ("4", "8"))))
    [lines] = [chart for chart in drawn(other) if chart.title == "Score along the axis"]
    assert "stroke-dasharray" not in lines.svg


def test_captions_of_one_seed_speak_of_one():
    """users5.md: with one seed captions said "Mean ± standard deviation over seeds"."""
    maker = Maker(30)
    cells = [maker.cell({"a": a, "k": k}, 0.6, seeds=(0,)) for a in "xy" for k in ("4", "8")]
    table = SweepTable("t", "T", (Axis("a", ("x", "y")), Axis("k", ("4", "8"))), tuple(cells))
    sweep = SweepRecord("s", "S", (table,), maker.questions, tuple(maker.runs.values()), WATTBOT)
    text = plain(opened(page(sweep, compute_sweep_stats(sweep))))
    assert "standard deviation over seeds" not in text
    assert "Scores of one seed." in text
    assert "Every cell is from fewer than 3 seeds: a difference may be chance." in text


def test_the_best_cell_comes_first_with_its_interval_and_its_ties():
    maker = Maker(30)
    cells = [maker.cell({"k": k}, skill) for k, skill in (("4", 0.4), ("8", 0.8))]
    tie = replace(cells[1], cell_id="tie", labels={"k": "16"})
    table = SweepTable("t", "T", (Axis("k", ("4", "8", "16")),), (*cells, tie))
    fixed = {"t": (FixedSetting("kohaku.alpha", "0.7", "Weight of frequency in `combined`"), FixedSetting("3 seeds"))}
    sweep = SweepRecord("s", "S", (table,), maker.questions, tuple(maker.runs.values()), WATTBOT, fixed=fixed)
    html = opened(page(sweep, compute_sweep_stats(sweep)))
    text = plain(html[html.index("<main>") :])
    score = cells[1].scores.mean()
    found = re.match(r"Best cell ([\d.]+) ± [\d.]+ k = 8 95 % interval ([\d.]+) to ([\d.]+), over 30 questions ", text)
    assert float(found[1]) == pytest.approx(score, abs=5e-4)
    assert float(found[2]) < score < float(found[3])
    assert "Tied with 1 other cell: k = 16" in text
    assert "3 of 3 cells finished." in text
    folded = html[html.index("<summary>Settings and provenance") :]
    assert "Weight of frequency in `combined` 0.7 kohaku.alpha" in plain(folded)
    assert "kohaku.alpha" not in text[: text.index("Settings and provenance")]


def test_error_rates_are_drawn_by_the_facts_that_differ():
    small = sweep_of_four_runs()
    bars, *points = rate_charts(small)
    assert [chart.title for chart in (bars, *points)] == [
        "Error rate by model and k",
        "Errors of value against references by model",
        "Errors of value against references by k",
    ]
    label = ET.fromstring(bars.svg).attrib["aria-label"]
    assert label == "Error rate by model and k. b, 4: 15.0%; b, 16: 41.2%; a, 16: 75.0%"
    label = ET.fromstring(points[0].svg).attrib["aria-label"]
    assert "b: value 25.0%, references 62.5%; a: value 100.0%, references 0.0%" in label
    assert "k = 4: value 0.0%, references 100.0%; k = 16:" in ET.fromstring(points[1].svg).attrib["aria-label"]
    alone = replace(small, runs=small.runs[:1])
    assert list(rate_charts(alone)) == [], "nothing differs"


def test_examples_are_of_other_questions_and_name_their_run(sweep, html):
    examples_found = pick_examples(sweep)
    assert list(examples_found) == list(ERROR_CLASSES)
    assert all(len(of_class) <= 3 for of_class in examples_found.values())
    text = section_text(html, "What went wrong")
    for name, of_class in examples_found.items():
        assert len({item.question.question_id for item in of_class}) == len(of_class)
        for item in of_class:
            assert item.run.predictions[item.question.question_id].error == name
            assert item.run.path in text
    everywhere = {given.error for run in sweep.runs for given in run.predictions.values()} - {None}
    assert {name for name, of_class in examples_found.items() if of_class} == everywhere
    assert len({item.run.run_id for item in examples_found["false negative"]}) == 3


def test_a_figure_leads_to_its_questions(html, sweep):
    cell = sweep.tables[0].cells[3]
    runs = [next(run for run in sweep.runs if run.run_id == run_id) for run_id in cell.run_ids]
    start = html.index('<div class="body" id="cell-4">')
    entry = html[start : html.index("</details>", start)]
    assert all(f"<code><bdi>{run.path}</bdi></code> (seed {run.seed})" in entry for run in runs)
    lines = entry.split("<tbody>")[1].splitlines()[:-1]
    assert len(lines) == len(cell.question_ids)
    for position, line in enumerate(lines):
        question_id = sweep.questions[position].question_id
        assert question_id in line
        assert f'<td class="n">{cell.by_question[position]:.3f}</td></tr>' in line
        for seed, run in enumerate(runs):
            value = run.predictions[question_id].answer_value
            mark = "right" if cell.parts["value"][seed, position] else "wrong"
            shown = '<span class="dim">blank</span>' if value == "is_blank" else f"<bdi>{value}</bdi>"
            assert f'<td class="{mark}">{shown}</td>' in line


def test_a_cell_of_several_tables_is_shown_once(sweep):
    table = sweep.tables[1]
    twice = replace(sweep, tables=(table, replace(table, name="again", title="Again")))
    entries = list_cell_runs(twice)
    assert [len(entry.names) for entry in entries] == [2, 2, 2]
    assert "The same setting as <bdi>Again: queries = 2</bdi>" in opened(
        write_questions(twice.questions, entries, 10**7)
    )


def test_spending_alone_differs_between_two_starts(sweep, stats, html):
    runs = tuple(replace(run, service_s=run.service_s * 3 + 1) for run in sweep.runs)
    again = opened(page(replace(sweep, runs=runs, spending={"Seconds": "1.0"}), stats))
    start = html.index('<section id="spending">')
    assert "98.7" in html[start:]

    def without(text):
        # the section holds one more, the chart of seconds
        start = text.index('<section id="spending">')
        return text[:start] + text[text.index('<section class="cells">') :]

    assert again != html
    assert without(again) == without(html)


def test_the_same_sweep_gives_the_same_files(sweep, stats, html, tmp_path):
    directory = tmp_path / "new" / "sweep"
    paths = write_sweep(small_sweep(), str(directory))
    names = [str(Path(path).relative_to(directory)) for path in paths]
    tables, figures = ([name for name in names if name.startswith(room)] for room in ("tables/", "figures/"))
    assert names == ["sweep.html", *tables, *figures]
    assert tables == [f"tables/{t.name}.{end}" for t in sweep.tables for end in ("md", "csv", "tex")]
    assert figures
    before = [Path(path).read_bytes() for path in paths]
    assert write_sweep(small_sweep(), str(directory)) == paths
    assert [Path(path).read_bytes() for path in paths] == before
    assert opened((directory / "sweep.html").read_text()) == html
    for stat in stats:
        for end, write in (("md", write_markdown), ("csv", write_csv), ("tex", write_latex)):
            assert (directory / "tables" / f"{stat.table.name}.{end}").read_text() == write(stat)


def test_every_plot_of_the_page_is_an_svg_a_pdf_and_a_csv(html, stats, tmp_path):
    write_sweep(small_sweep(), str(tmp_path))
    figures = tmp_path / "figures"
    names = sorted({path.stem for path in figures.iterdir()})
    assert len(names) == html.count("<figure>")
    assert {path.name for path in figures.iterdir()} == {f"{n}.{end}" for n in names for end in ("svg", "pdf", "csv")}
    for name in names:
        root = ET.parse(figures / f"{name}.svg").getroot()
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        with pymupdf.open(figures / f"{name}.pdf") as pdf:
            [page_of_pdf] = pdf
            assert page_of_pdf.get_text().strip(), name
            assert {font[2] for font in page_of_pdf.get_fonts()} == {"Type0"}  # no Type 3, which journals refuse
        assert len(list(csv.reader((figures / f"{name}.csv").read_text().splitlines()))) > 1, name
    # the data are the scores that the plot shows
    [table, *_] = [stat for stat in stats if len(stat.grid.columns) > 1 and len(stat.grid.rows) > 1]
    rows = list(csv.DictReader((figures / f"{table.table.name}-heat-map.csv").read_text().splitlines()))
    scores = {position: average_score(cell) for position, cell in table.grid.cells.items() if cell.is_scored}
    axes = [*table.grid.row_axes, table.grid.column_axis]
    read = {tuple(row[axis] for axis in axes): (row["score"], row["sd"]) for row in rows}
    assert read == {(*row, column): (f"{s.mean:.6f}", f"{s.sd:.6f}") for (row, column), s in scores.items()}


def test_questions_are_given_up_step_by_step(monkeypatch):
    maker = Maker(120)
    table = maker.table("t", "T", {"a": ("x", "y"), "k": ("4", "8", "16")})
    sweep = SweepRecord("s", "S", (table,), maker.questions, tuple(maker.runs.values()), WATTBOT)
    entries = list_cell_runs(sweep)
    sizes = {}
    for limit in (2000, 100, 20, 0):
        monkeypatch.setattr(sweep_page, "QUESTIONS_SHOWN", (limit,))
        sizes[limit] = len(write_questions(sweep.questions, entries, 10**9).encode())
    monkeypatch.undo()
    assert "no room for more" not in opened(write_questions(sweep.questions, entries, sizes[2000]))
    for limit, caption in (
        (100, "The first 100 of 120 questions"),
        (20, "The first 20 of"),
        (0, "None of 120 questions"),
    ):
        text = write_questions(sweep.questions, entries, sizes[limit] + 1)
        assert len(text.encode()) <= sizes[limit] + 1
        less = opened(text)
        assert less.count(caption) == 6
        assert less.count('<table class="asked">') == (6 if limit else 0)
        assert less.count("runs/sweep/") >= 18
    monkeypatch.setattr(sweep_page, "MAX_BYTES", 1000)
    assert "None of 120 questions" in opened(page(sweep, []))


def test_an_empty_sweep_is_a_page(tmp_path):
    text = page(SweepRecord("none", "None", (), (), (), WATTBOT), [])
    assert "The sweep has no tables." in text
    assert "What went wrong" not in text
    failed = SweepCell("c", {"k": "4"}, "failed", "no memory")
    sweep = SweepRecord("one", "One", (SweepTable("t", "T", (Axis("k", ("4",)),), (failed,)),), (), (), WATTBOT)
    (html, *_) = write_sweep(sweep, str(tmp_path))
    assert "[1] failed: no memory" in Path(html).read_text()
    assert "<svg" not in Path(html).read_text()


def grouped(names, public, private):
    def scores(values):
        return tuple(Score(value, {}, 12, 0) for value in values)

    return SweepGroups(tuple(names), split_of("split", {"public": scores(public), "private": scores(private)}))


def test_scores_by_group_stand_on_the_page_with_their_plots_and_in_a_csv(sweep, stats, html, tmp_path):
    names = [*(f"k {number}" for number in range(10)), HOSTILE]
    public, private = [0.9 - number / 20 for number in range(11)], [0.3 + number / 40 for number in range(11)]
    small = replace(sweep, tables=(), groups=grouped(names, public, private))
    files = write_sweep(small, str(tmp_path), [])
    text = opened(Path(files[0]).read_text(encoding="utf-8"))
    check_harmless(text)
    section = section_text(text, "Scores by")
    for wanted in ("public: 12 questions", "private − public", "-0.6000", "Rank bands", "1 to 10", "Pearson"):
        assert wanted in section, wanted
    # private less public: -0.6 + 0.075 per rank, so the ninth is the first that does not fall
    assert "settings 11 mean -0.2250" in section
    assert "median -0.2250 least -0.6000 greatest +0.1500" in section
    assert "lower on private 8 (72.7%) higher on private 2 (18.2%) the same on both 1 (9.1%)" in section
    assert "Pearson, public and the difference -1.000" in section
    assert "Greatest falls of rank, public to private split rank public rank private move" in section
    assert "k 0 1 11 -10 0.9000 0.3000 -0.6000" in section
    titles = ("Score on private against public", "Difference against the score on public", "Ranks, public to private")
    more = ("Difference, private less public", "Distribution of the differences, private less public")
    assert all(f"<h3>{title}</h3>" in text for title in (*titles, *more, "Difference by rank on public"))
    assert len(list((tmp_path / "figures").glob("*public*.pdf"))) == 6
    [listed] = [file for file in files if file.endswith("groups.csv")]
    rows = list(csv.DictReader(io.StringIO(Path(listed).read_text(encoding="utf-8"))))
    assert [row["setting"] for row in rows] == [*names[:10], SHOWN]
    assert (rows[0]["public"], rows[0]["private"], rows[0]["rank private"]) == ("0.900000", "0.300000", "11")
    assert (rows[0]["difference private"], rows[0]["move private"]) == ("-0.600000", "-10")
    assert "<h2>Scores by" not in html


def test_measures_may_be_spread_over_questions(sweep):
    cell = replace(
        sweep.tables[0].cells[0],
        labels={"a": "x"},
        measures={"matches": np.array([3.0, 3.0, 3.0])},
        question_measures={"matches": np.array([1.0, 3.0, 5.0])},
    )
    for spread, wanted in (("seeds", "3.00 ± 0.00"), ("questions", "3.00 ± 2.00")):
        table = SweepTable("t", "T", (Axis("a", ("x",)),), (cell,), show=("matches",), spread=spread)
        [stats] = compute_sweep_stats(replace(sweep, tables=(table,)))
        assert wanted in write_markdown(stats)
        [row] = csv.DictReader(io.StringIO(write_csv(stats)))
        assert row.get("matches sd") == ("2.000000" if spread == "questions" else None)
        assert ("over questions." in write_markdown(stats)) == (spread == "questions")


def test_the_papers_figure_stands_below_ours_and_is_marked(sweep):
    first, *others = sweep.tables[2].cells
    table = replace(sweep.tables[2], cells=(replace(first, paper={"score": 0.8125, "matches": 32.0}), *others))
    made = replace(sweep, tables=(table,))
    text = section(opened(page(made, compute_sweep_stats(made))), table.title)
    assert re.search(r'</a>(<sup>[^<]*</sup>)?<br><span class="paper">paper 0\.812</span></td>', text)
    assert text.count('class="paper"') == 1
    assert "(paper 32.00)" in text


def test_a_page_shows_code_for_backticks_in_notes(sweep):
    notes = ("3 answers carry an error (column `error` of answers.parquet), not <b>`x<i>`</b>.",)
    table = replace(sweep.tables[-1], notes=("Forecast of `value` by the default rule.",))
    made = replace(sweep, notes=notes, tables=(table,), questions=(), runs=())
    text = page(made, compute_sweep_stats(made))
    assert "Forecast of <code>value</code> by" in text
    assert "(column <code>error</code> of answers.parquet), not &lt;b&gt;<code>x&lt;i&gt;</code>&lt;/b&gt;." in text
    assert "`" not in re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
