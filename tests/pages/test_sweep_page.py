import csv
import io
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from pages import Tags, check_harmless, opened, plain
from sweeps import HOSTILE, Maker, big_sweep, small_sweep

from kohaku_ray.errors import DataError
from kohaku_ray.evaluation.compare import split_of
from kohaku_ray.evaluation.metrics import Score
from kohaku_ray.evaluation.wattbot import ERROR_CLASSES, WATTBOT
from kohaku_ray.pages import sweep_page, sweep_questions
from kohaku_ray.pages.sweep_charts import is_noise, paid, stair, table_charts
from kohaku_ray.pages.sweep_page import count_errors, examples, page, write_sweep
from kohaku_ray.pages.sweep_questions import behind_figures, write_questions
from kohaku_ray.pages.sweep_stats import compute_sweep_stats, lay_out
from kohaku_ray.pages.sweep_tables import as_csv, as_latex, as_markdown
from kohaku_ray.sweep.compare import Axis, Sweep, SweepGroups, Table, TableCell

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


def chart_titles(table):
    return [chart.title for chart in table_charts(lay_out(table))]


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


def test_the_page_has_the_figures_of_the_csv(html, stats):
    for one in stats:
        rows = [row for row in csv.DictReader(io.StringIO(as_csv(one))) if row["mean"]]
        title = one.table.title.replace("&", "&amp;")
        found = re.findall(r'<a class="[a-z]*" href="#cell-\d+">(\d\.\d{3}) ± (\d\.\d{3})</a>', section(html, title))
        assert len(found) == len(rows)
        for figures, row in zip(found, rows, strict=True):
            assert [*map(float, figures)] == pytest.approx([float(row["mean"]), float(row["sd"])], abs=5.1e-4)


def test_marks_ranks_and_reasons_stand_in_the_table(html, stats):
    text = section(html, "Models and depth of retrieval")
    one = stats[0]
    marks = re.findall(r'<a class="(best|second|)"', text)
    made = [one.comparisons[row, column] for row in one.grid.rows[:3] for column in one.grid.columns]
    assert marks == ["best" if each.is_best else "second" if each.is_second else "" for each in made]
    for state, footnote in (("skipped", 2), ("failed", 3), ("unfinished", 4)):
        assert f'<span class="state">{state}</span><sup>[{footnote}]</sup>' in text
    assert re.search(r"</a><sup>\**†\[1\]</sup>", text)
    assert "[1] partial: seed 2: no reply in 600 s" in plain(text)
    assert "Skipped: gpt-5, which asks for a key." in plain(text)
    for rank in one.average.values():
        assert f'<td class="n">{rank:.2f}</td>' in text


def test_all_statistics_are_folded_below_the_table(html, stats):
    one = stats[0]
    text = plain(section(html, "Models and depth of retrieval").split("All statistics")[1])
    row = next(row for row in ("qwen3-8b", "extractive") if not one.comparisons[(row,), "16"].is_best)
    made = one.comparisons[(row,), "16"]
    parts = " ".join(f"{part.mean():.3f}" for part in one.grid.cells[(row,), "16"].parts.values())
    assert (
        f"{row} {made.mean:.3f} ± {made.sd:.3f} 3 24 {parts} {one.ranks[(row,), '16']:g} 24 {made.interval.mean:+.3f} "
        f"{made.interval.low:+.3f} … {made.interval.high:+.3f} "
        f"{made.welch.p:.4f} {made.welch_holm:.4f} {made.permutation.p:.4f} {made.permutation_holm:.4f} "
        f"{made.welch.g:+.2f} {made.d_z:+.2f}"
    ) in text
    assert text.count("the best") >= 3


def test_the_list_of_tables_names_the_best(html, stats):
    text = plain(section(html, "Tables of sweep"))
    best = max(stats[1].comparisons.values(), key=lambda made: made.mean)
    assert f"Planner queries 3 of 3 {best.mean:.3f} ± {best.sd:.3f} at queries = {best.at['planner.queries']}" in text
    assert "Models and depth of retrieval 8 of 12" in text
    assert "Encoders 0 of 3 no scores" in text


def test_tables_are_drawn_as_their_axes_ask(sweep):
    grid, line, three, pool, few, nothing = sweep.tables
    assert chart_titles(grid) == chart_titles(three) == ["Heat map", "Score along the axis"]
    assert chart_titles(line) == ["Score along the axis"]
    assert chart_titles(pool) == ["Heat map", "Ensemble-size curves"]
    assert chart_titles(few) == ["Scores"]
    assert chart_titles(nothing) == []
    one_row = replace(grid, cells=grid.cells[:3], axes=(grid.axes[0], Axis("k", ("4", "8", "16"))))
    assert chart_titles(one_row) == ["Score along the axis"]
    words = Maker(20).table("w", "Words", {"a": ("x", "y"), "b": ("node", "tree", "none")})
    assert chart_titles(words) == ["Heat map"]


def test_lines_beyond_the_eighth_are_left_out_and_it_is_said():
    table = Maker(20).table("t", "T", {"a": [f"row {at}" for at in range(11)], "k": ("4", "8")})
    (_, chart) = table_charts(lay_out(table))
    assert "The 8 best of 11 rows." in chart.note
    assert len(re.findall(r">row \d+</text>", chart.svg)) == 8


def test_more_than_four_lines_get_a_panel_each():
    def panels(n):
        table = Maker(20).table("t", "T", {"a": [f"row {at}" for at in range(n)], "k": ("4", "8")})
        chart = table_charts(lay_out(table))[1]
        return len(re.findall(r">score \(0 to 1\)</text>", chart.svg)), "Grey: the other rows." in chart.note, chart.svg

    one_axis, is_grey, svg = panels(4)
    assert (one_axis, is_grey, svg.count(">4</text>")) == (1, False, 1)
    one_axis, is_grey, svg = panels(6)
    assert (one_axis, is_grey, svg.count(">4</text>")) == (1, True, 2)  # the axis below each of two columns
    assert len(re.findall(r">row \d</text>", svg)) == 6


def test_heat_maps_have_a_scale_and_mark_what_is_within_noise(stats, html):
    one = stats[0]
    cells = {place: cell.scores.mean() for place, cell in one.grid.cells.items() if cell.is_scored}
    chart = table_charts(one.grid, one.comparisons)[0]
    for figure in (min(cells.values()), max(cells.values())):
        assert re.search(rf"<g[^>]*>\s*<!-- {figure:.3f} -->|>{figure:.3f}</text>", chart.svg)
    noisy = {place for place, made in one.comparisons.items() if is_noise(made)}
    assert 0 < len(noisy) < len(cells)
    for place in noisy:
        made = one.comparisons[place]
        assert made.interval.low <= 0 <= made.interval.high
    assert chart.svg.count(" ≈</text>") == len(noisy)
    assert chart.note in plain(html).replace("\u2019", "'")


def test_charts_say_their_numbers_in_words(sweep):
    for table in sweep.tables[:5]:
        for chart in table_charts(lay_out(table)):
            label = ET.fromstring(chart.svg).attrib["aria-label"]
            cell = table.cells[0]
            assert label.startswith(f"{table.title}. ")
            assert f"{cell.scores.mean():.3f}" in label


def test_the_stair_is_what_nothing_as_cheap_beats(sweep):
    points = paid(sweep, lambda run: run.tokens)
    steps = stair(points)
    assert len(points) == 9 + 3 + 18
    assert all(a.cost < b.cost and a.score < b.score for a, b in pairwise(steps))
    for step in steps:
        assert not [one for one in points if one.cost <= step.cost and one.score > step.score]
    for one in points:
        assert [step for step in steps if step.cost <= one.cost and step.score >= one.score]


def test_costs_are_a_question_and_need_no_runs(sweep):
    point = paid(sweep, lambda run: run.tokens)[0]
    runs = {run.run_id: run for run in sweep.runs}
    tokens = [runs[run_id].tokens for run_id in point.cell.run_ids]
    assert point.cost == pytest.approx(sum(tokens) / 3 / 24)
    assert paid(sweep, lambda run: 0) == []


def test_errors_are_counted_by_each_fact_and_add_up(sweep, html):
    (whole,) = count_errors(sweep)
    assert whole.n == sum(len(run.predictions) for run in sweep.runs)
    assert whole.counts.total() == sum(
        given.error is not None for run in sweep.runs for given in run.predictions.values()
    )
    for fact in ("model", "k"):
        parts = count_errors(sweep, fact)
        assert sum(part.n for part in parts) == whole.n
        for name in ERROR_CLASSES:
            assert sum(part.counts[name] for part in parts) == whole.counts[name]
    assert [part.label for part in count_errors(sweep, "k")] == ["4", "8", "16"]
    text = section_text(html, "What went wrong")
    counts = " ".join(f"{whole.counts[name]:,}" for name in ERROR_CLASSES)
    assert f"all runs {whole.n:,} {whole.n_right:,} {counts}" in text
    assert "Errors by model" in text
    assert "Errors by k" in text


def test_examples_are_of_other_questions_and_name_their_run(sweep, html):
    found = examples(sweep)
    assert list(found) == list(ERROR_CLASSES)
    assert all(len(of_class) <= 3 for of_class in found.values())
    text = section_text(html, "What went wrong")
    for name, of_class in found.items():
        assert len({one.question.question_id for one in of_class}) == len(of_class)
        for one in of_class:
            assert one.run.predictions[one.question.question_id].error == name
            assert one.run.path in text
    everywhere = {given.error for run in sweep.runs for given in run.predictions.values()} - {None}
    assert {name for name, of_class in found.items() if of_class} == everywhere
    assert len({one.run.run_id for one in found["false negative"]}) == 3


def test_a_figure_leads_to_its_questions(html, sweep):
    cell = sweep.tables[0].cells[3]
    runs = {run.run_id: run for run in sweep.runs}
    start = html.index('<div class="body" id="cell-4">')
    entry = html[start : html.index("</details>", start)]
    for run_id, seed in zip(cell.run_ids, cell.seeds, strict=True):
        assert f"<code><bdi>{runs[run_id].path}</bdi></code> (seed {seed})" in entry
    rows = entry.split("<tbody>")[1].splitlines()[:-1]
    assert len(rows) == len(cell.question_ids)
    for at, row in enumerate(rows):
        asked = sweep.questions[at]
        assert asked.question_id in row
        assert f'<td class="n">{cell.by_question[at]:.3f}</td></tr>' in row
        for seed, run_id in enumerate(cell.run_ids):
            value = runs[run_id].predictions[asked.question_id].answer_value
            mark = "right" if cell.parts["value"][seed, at] else "wrong"
            shown = '<span class="dim">blank</span>' if value == "is_blank" else f"<bdi>{value}</bdi>"
            assert f'<td class="{mark}">{shown}</td>' in row


def test_a_cell_of_several_tables_is_shown_once(sweep):
    table = sweep.tables[1]
    twice = replace(sweep, tables=(table, replace(table, name="again", title="Again")))
    entries = behind_figures(twice)
    assert [len(one.names) for one in entries] == [2, 2, 2]
    assert "The same setting as <bdi>Again: queries = 2</bdi>" in opened(
        write_questions(twice.questions, entries, 10**7)
    )


def test_a_run_that_is_not_there_shifts_no_seed(sweep):
    table = sweep.tables[1]
    cell = table.cells[0]
    runs = tuple(run for run in sweep.runs if run.run_id != cell.run_ids[0])
    (one, *_) = behind_figures(replace(sweep, runs=runs, tables=(table,)))
    assert [(seed, run.run_id) for seed, run in one.runs] == [(1, cell.run_ids[1]), (2, cell.run_ids[2])]


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
    assert names == ["sweep.html", *(f"tables/{t.name}.{end}" for t in sweep.tables for end in ("md", "csv", "tex"))]
    assert opened((directory / "sweep.html").read_text()) == html
    for one in stats:
        for end, write in (("md", as_markdown), ("csv", as_csv), ("tex", as_latex)):
            assert (directory / "tables" / f"{one.table.name}.{end}").read_text() == write(one)


def test_questions_are_given_up_step_by_step(monkeypatch):
    sweep = big_sweep(n_tables=1, n_cells=6, n_questions=120)
    stats = compute_sweep_stats(sweep)
    whole = page(sweep, stats)
    assert "no room for more" not in opened(whole)
    entries = behind_figures(sweep)
    base = len(whole.encode()) - len(write_questions(sweep.questions, entries, 10**9).encode())
    for limit, said in ((100, "The first 100 of 120 questions"), (20, "The first 20 of"), (0, "None of 120 questions")):
        monkeypatch.setattr(sweep_questions, "QUESTIONS_SHOWN", (limit,))
        room = base + len(write_questions(sweep.questions, entries, 10**9).encode()) + 1
        monkeypatch.undo()
        monkeypatch.setattr(sweep_page, "MAX_BYTES", room)
        packed = page(sweep, stats)
        assert len(packed.encode()) <= room
        less = opened(packed)
        assert less.count(said) == 6
        assert less.count('<table class="asked">') == (6 if limit else 0)
        assert less.count("runs/sweep/") >= 18
    monkeypatch.setattr(sweep_page, "MAX_BYTES", 1000)
    assert "None of 120 questions" in opened(page(sweep, stats))


def test_an_empty_sweep_is_a_page(tmp_path):
    text = page(Sweep("none", "None", (), (), (), WATTBOT), [])
    assert "The sweep has no tables." in text
    assert "What went wrong" not in text
    failed = TableCell("c", {"k": "4"}, "failed", "no memory")
    sweep = Sweep("one", "One", (Table("t", "T", (Axis("k", ("4",)),), (failed,)),), (), (), WATTBOT)
    (html, *_) = write_sweep(sweep, str(tmp_path))
    assert "[1] failed: no memory" in Path(html).read_text()
    assert "<svg" not in Path(html).read_text()


def test_an_output_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(DataError, match=r"tables: cannot be made .*choose another output"):
        write_sweep(Sweep("none", "None", (), (), (), WATTBOT), str(tmp_path / "taken"))


def grouped(names=("k 4", HOSTILE), public=(0.7, 0.5), private=(0.5, 0.6)):
    def scores(values):
        return tuple(Score(value, {}, 12, 0) for value in values)

    return SweepGroups(tuple(names), split_of("split", {"public": scores(public), "private": scores(private)}))


def test_scores_by_group_stand_on_the_page_with_their_plots_and_in_a_csv(sweep, stats, tmp_path):
    names = [f"k {at}" for at in range(7)]
    public, private = [0.9 - at / 10 for at in range(7)], [0.3 + at / 20 for at in range(7)]
    files = write_sweep(replace(sweep, groups=grouped(names, public, private)), str(tmp_path), stats)
    text = section_text(Path(files[0]).read_text(encoding="utf-8"), "Scores by")
    for wanted in ("public: 12 questions", "private − public", "-0.6000", "Rank bands", "1 to 5", "6 to 7", "Pearson"):
        assert wanted in text, wanted
    titles = ("Score on private against public", "Difference, private less public", "Ranks, public to private")
    html = Path(files[0]).read_text(encoding="utf-8")
    assert all(f"<h3>{title}</h3>" in html for title in (*titles, "Difference by rank on public"))
    [table] = [file for file in files if file.endswith("groups.csv")]
    rows = list(csv.DictReader(io.StringIO(Path(table).read_text(encoding="utf-8"))))
    assert [row["setting"] for row in rows] == names
    assert (rows[0]["public"], rows[0]["private"], rows[0]["rank private"]) == ("0.900000", "0.300000", "7")


def test_a_sweep_without_groups_has_no_such_section(html):
    assert "<h2>Scores by" not in html


def test_names_of_settings_in_groups_are_harmless(sweep, stats):
    check_harmless(opened(page(replace(sweep, groups=grouped()), stats)))


def test_measures_may_be_spread_over_questions(sweep):
    cell = replace(
        sweep.tables[0].cells[0],
        at={"a": "x"},
        measures={"matches": np.array([3.0, 3.0, 3.0])},
        question_measures={"matches": np.array([1.0, 3.0, 5.0])},
    )
    for spread, wanted in (("seeds", "3.00 ± 0.00"), ("questions", "3.00 ± 2.00")):
        table = Table("t", "T", (Axis("a", ("x",)),), (cell,), show=("matches",), spread=spread)
        [stats] = compute_sweep_stats(replace(sweep, tables=(table,)))
        assert wanted in as_markdown(stats)
        [row] = csv.DictReader(io.StringIO(as_csv(stats)))
        assert row.get("matches sd") == ("2.000000" if spread == "questions" else None)
        assert ("over questions." in as_markdown(stats)) == (spread == "questions")
