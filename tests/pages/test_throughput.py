from __future__ import annotations

import json
import re
from xml.etree import ElementTree as ET

import pytest

from kohaku_ray.errors import DataError
from kohaku_ray.pages.throughput import (
    FILES,
    AnswerRun,
    BenchCell,
    Gpus,
    Measurement,
    Plain,
    Throughput,
    absences,
    charts,
    describe,
    page,
    records,
    tables,
    write_throughput,
)

HOSTILE = "<script>alert(1)</script>\u202e"


def measured(n_questions: int, members: int, wall_s: float, *, cached=None, cpu_s=None) -> Measurement:
    """Questions of 100 prompt tokens and 10 generated ones."""
    calls = n_questions * members
    return Measurement(n_questions, calls, wall_s, 100 * calls, 10 * calls, cached, cpu_s)


def whole() -> Throughput:
    """Two numbers of replicas and of members, as many questions for each replica."""
    return Throughput(
        {"Model": "tiny", "Context tokens": 100},
        (Plain(1, measured(8, 1, 1.0, cpu_s=0.016)), Plain(4, measured(8, 4, 2.0, cpu_s=0.064))),
        (
            BenchCell(1, 1, 8, measured(8, 1, 1.25, cached=0, cpu_s=0.04)),
            BenchCell(1, 4, 8, measured(8, 4, 2.5, cached=2304, cpu_s=0.16)),
            BenchCell(2, 1, 8, measured(16, 1, 1.25, cached=0)),
            BenchCell(2, 4, 8, measured(16, 4, 4.0, cached=4800)),
        ),
    )


def with_runs(gpus: Gpus | None = None, **figures) -> Throughput:
    """Answer runs on one and two replicas, beside plain vLLM, which was given the calls of the first."""

    def run(n: int, wall_s: float) -> Measurement:
        tokens = {"prompt_tokens": 5000 * n, "completion_tokens": 1000 * n, "cached_tokens": 4000 * n}
        answers = {"n_answers": 40 * n, "n_usable": 36 * n, "cpu_s": 0.5 * n}
        return Measurement(10 * n, 50 * n, wall_s, **tokens, **answers, **figures)

    plain = Plain(4, Measurement(10, 50, 8.0, 5000, 1000, 4500, 0.2))
    runs = (AnswerRun(1, 4, run(1, 10.0), errors=("4 × cut at 256 tokens",)), AnswerRun(2, 4, run(2, 12.5)))
    return Throughput(whole().facts, whole().plain, whole().cells, runs, plain, gpus)


def columns(table, *labels) -> list[tuple[str, ...]]:
    numbers = [[column.label for column in table.columns].index(label) for label in labels]
    return [tuple(table.columns[number].write(row[number]) for number in numbers) for row in table.rows]


def test_figures_stand_beside_their_limits():
    [grid] = tables(whole())
    cells = columns(grid, "replicas", "members", "questions/s", "cached", "bound", "cost", "scaling", "of plain")
    assert cells == [
        ("plain", "1", "8.00", "-", "-", "1.00", "-", "-"),
        ("plain", "4", "4.00", "-", "-", "2.00", "-", "-"),
        ("1", "1", "6.40", "0.000", "0.000", "1.00", "1.00", "0.80"),
        ("1", "4", "3.20", "0.720", "0.750", "2.00", "1.00", "0.80"),
        ("2", "1", "12.80", "0.000", "0.000", "1.00", "1.00", "0.80"),
        ("2", "4", "4.00", "0.750", "0.750", "3.20", "0.62", "0.50"),
    ]
    assert columns(grid, "CPU ms/call") == [("2.0",), ("2.0",), ("5.0",), ("5.0",), ("-",), ("-",)]
    assert "answers/s" not in [column.label for column in grid.columns], "a column of which nothing is known"


def test_what_has_nothing_to_be_compared_with_at_its_own_concurrency_has_no_ratio():
    cells = (BenchCell(2, 4, 8, measured(4, 4, 1.0)), BenchCell(2, 1, 32, measured(8, 1, 1.0)))
    cell = records(Throughput({}, (Plain(1, reason="no engine"),), cells))[1]
    assert [cell[name] for name in ("cached_share", "cost_ratio", "scaling", "of_plain", "cpu_ms")] == [None] * 5
    assert cell["cached_bound"] == 0.75


def test_what_was_not_measured_is_said_once_with_its_reason():
    bench = Throughput(
        {},
        (Plain(1, reason="out of memory"), Plain(4, measured(8, 4, 1.0))),
        (
            BenchCell(1, 1, 8, reason="a replica died"),
            BenchCell(1, 4, 8, measured(8, 4, 1.0)),
            *(BenchCell(4, m, 8, None, "they need 8 CPUs and the cluster has 6", is_skipped=True) for m in (1, 4)),
        ),
        (AnswerRun(1, 4, reason="no index"), AnswerRun(9, 4, reason="no room", is_skipped=True)),
        Plain(4, reason="no run"),
    )
    assert absences(bench) == [
        "plain, n = 1: failed: out of memory",
        "1 replica, members 1, 8 in flight: failed: a replica died",
        "4 replicas: skipped: they need 8 CPUs and the cluster has 6",
        "plain, calls of an answer run: failed: no run",
        "1 replica, answer run: failed: no index",
        "9 replicas: skipped: no room",
    ]
    assert bench.n_failed == 4
    assert all(line in describe(bench) for line in absences(bench))
    assert [chart.title for chart in charts(bench)] == ["Generated tokens per second"]


def test_answer_runs_stand_beside_plain_vllm_given_their_calls():
    grid, runs = tables(with_runs())
    assert columns(runs, "replicas", "answers/s", "usable", "calls/s", "of plain", "scaling", "CPU ms/call") == [
        ("plain", "-", "-", "6.25", "-", "-", "4.0"),
        ("1", "3.60", "0.900", "5.00", "0.80", "1.00", "10.0"),
        ("2", "5.76", "0.900", "8.00", "0.64", "0.80", "10.0"),
    ]
    assert grid == tables(whole())[0], "the grid's table is as without them"


def test_answer_runs_on_gpus_say_what_these_compute_and_use():
    bench = with_runs(Gpus(2, 1e6, 1000), joules=72.0, dollars=0.9)
    first, second = (row for row in records(bench) if row["kind"] == "answers")
    assert first["mfu"] == pytest.approx(2 * 1000 * (1000 + 1000) / 10 / 2e6), "tokens that no cache held"
    assert (first["generated_per_s_gpu"], second["generated_per_s_gpu"]) == (50, 40)
    cells = columns(tables(bench)[1], "MFU", "J/1,000", "$/1,000", "prompt/s/GPU")
    assert cells[1] == ("0.200", "2,000", "25.00", "250")
    unknown = records(with_runs(Gpus(2, None, 1000)))[-1]
    assert (unknown["mfu"], unknown["prompt_per_s_gpu"]) == (None, 200)


def test_page_and_terminal_show_both_tables_and_explain_what_is_known():
    bench = with_runs()
    assert page(bench).count("<table>") == 2
    for told in (page(bench), describe(bench)):
        assert "1 replica, errors: 4 × cut at 256 tokens" in told
        assert "cost: time of m members over the time of one" in told
        assert "5.76" in told
        assert "MFU" not in told, "no GPUs, no legend of what is known of them"


def test_the_page_stands_alone_and_escapes_what_it_shows():
    bench = Throughput({"Model": HOSTILE}, (), (*whole().cells, BenchCell(1, 9, 8, reason=HOSTILE)))
    text = page(bench)
    assert "<script" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;[U+202E]" in text
    assert not re.search(r'(?:href|src)="(?!#)', text)


def test_charts_say_their_numbers_in_words():
    grid, runs = (ET.fromstring(chart.svg).attrib["aria-label"] for chart in charts(with_runs()))
    assert "m = 4, 8 in flight: 128 at 1, 160 at 2" in grid
    assert "plain, n = 4: 160 at 1, 320 at 2" in grid
    assert "answer runs: 5 at 1, 8 at 2; plain, the same calls: 6.25 at 1, 12.5 at 2" in runs


def test_files_are_written_and_replaced_and_an_output_that_is_a_file_is_refused(tmp_path):
    directory = tmp_path / "new" / "bench"
    nothing = Throughput({"Model": "tiny"}, (), (BenchCell(4, 1, 8, None, "they need 8 GPUs", is_skipped=True),))
    paths = write_throughput(nothing, str(directory))
    assert (charts(nothing), nothing.n_failed) == ([], 0)
    assert "they need 8 GPUs" in (directory / "throughput.html").read_text()
    assert write_throughput(whole(), str(directory)) == paths == [str(directory / name) for name in FILES]
    told = json.loads((directory / "throughput.json").read_text())
    assert (told["facts"]["Model"], len(told["rows"]), told["rows"][5]["scaling"]) == ("tiny", 6, 0.625)
    (tmp_path / "taken").write_text("")
    with pytest.raises(DataError, match="taken: cannot be made"):
        write_throughput(whole(), str(tmp_path / "taken"))
