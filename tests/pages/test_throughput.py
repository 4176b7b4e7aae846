from __future__ import annotations

import json
import re

from pages import check_golden, without_drawings

from kohaku_ray.pages.throughput import (
    FILES,
    BenchCell,
    Measurement,
    Plain,
    Throughput,
    absences,
    as_csv,
    as_json,
    charts,
    describe,
    page,
    records,
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


def test_the_texts_are_the_golden_ones():
    for name, write in (("txt", describe), ("json", as_json), ("csv", as_csv)):
        check_golden(f"throughput.{name}", write(whole()))


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
    )
    assert absences(bench) == [
        "plain, n = 1: not measured: out of memory",
        "1 replica, members 1, 8 in flight: failed: a replica died",
        "4 replicas: skipped: they need 8 CPUs and the cluster has 6",
    ]
    assert bench.n_failed == 2
    assert all(line in describe(bench) for line in absences(bench))
    assert [record["status"] for record in records(bench)] == [
        *("failed", "measured", "failed", "measured", "skipped", "skipped")
    ]
    assert [chart.title for chart in charts(bench)] == ["Generated tokens per second"]


def test_the_page_stands_alone_and_escapes_what_it_shows():
    bench = Throughput({"Model": HOSTILE}, (), (*whole().cells, BenchCell(1, 9, 8, reason=HOSTILE)))
    text = page(bench)
    assert "<script" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;[U+202E]" in text
    assert not re.search(r'(?:href|src)="(?!#)', text)
    assert text.count("<svg") == 4
    assert page(bench) == text
    check_golden("throughput.html", without_drawings(page(whole())))


def test_files_are_written_and_replaced(tmp_path):
    directory = tmp_path / "new" / "bench"
    nothing = Throughput({"Model": "tiny"}, (), (BenchCell(4, 1, 8, None, "they need 8 GPUs", is_skipped=True),))
    paths = write_throughput(nothing, str(directory))
    assert (charts(nothing), nothing.n_failed) == ([], 0)
    assert "they need 8 GPUs" in (directory / "throughput.html").read_text()
    assert write_throughput(whole(), str(directory)) == paths == [str(directory / name) for name in FILES]
    assert len(json.loads((directory / "throughput.json").read_text())["rows"]) == 6
