from __future__ import annotations

import csv
import io
import json
import re
from xml.etree import ElementTree as ET

import pytest

from kohaku_ray.errors import DataError
from kohaku_ray.pages.throughput import (
    COLUMNS,
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
    table,
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


def shown(bench: Throughput) -> list[dict[str, str]]:
    return [dict(zip(COLUMNS, row, strict=True)) for row in table(bench)]


def test_figures_stand_beside_their_limits():
    plain_1, plain_4, one, four, two, both = shown(whole())
    assert (plain_1["replicas"], plain_1["questions/s"], plain_1["CPU ms/call"]) == ("plain", "8.00", "2.0")
    assert (plain_4["questions/s"], plain_4["cost"]) == ("4.00", "2.00")
    assert (one["questions/s"], one["generated/s"], one["prompt/s"]) == ("6.40", "64", "640")
    assert (one["cached"], one["bound"], one["cost"], one["scaling"]) == ("0.000", "0.000", "1.00", "1.00")
    assert (one["of plain"], one["CPU ms/call"]) == ("0.80", "5.0")
    assert (four["cached"], four["bound"], four["cost"], four["of plain"]) == ("0.720", "0.750", "2.00", "0.80")
    assert (two["scaling"], two["of plain"], two["CPU ms/call"]) == ("1.00", "0.80", "-")
    assert (both["cost"], both["scaling"], both["of plain"]) == ("3.20", "0.62", "0.50")


def test_what_has_nothing_to_be_compared_with_has_no_ratio():
    bench = Throughput({}, (Plain(1, reason="no engine"),), (BenchCell(2, 4, 8, measured(4, 4, 1.0)),))
    (row,) = shown(bench)
    assert [row[name] for name in ("cached", "cost", "scaling", "of plain", "CPU ms/call")] == ["-"] * 5
    assert row["bound"] == "0.750"
    (cell,) = [record for record in records(bench) if record["kind"] == "serve"]
    assert [cell[name] for name in ("cached_share", "cost_ratio", "scaling", "of_plain", "cpu_ms")] == [None] * 5


def test_cells_are_compared_at_their_own_concurrency():
    bench = Throughput({}, (), (BenchCell(1, 1, 8, measured(8, 1, 1.0)), BenchCell(1, 4, 32, measured(8, 4, 1.0))))
    assert [row["cost"] for row in shown(bench)] == ["1.00", "-"]


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


def test_nothing_measured_is_a_page_without_charts():
    bench = Throughput({"Model": "tiny"}, (), (BenchCell(4, 1, 8, None, "they need 8 GPUs", is_skipped=True),))
    assert charts(bench) == []
    assert "they need 8 GPUs" in page(bench)
    assert bench.n_failed == 0


@pytest.mark.parametrize(("members", "bound"), [(1, 0.0), (2, 0.5), (9, 8 / 9)])
def test_a_cache_serves_all_members_but_the_first(members, bound):
    (row,) = records(Throughput({}, (), (BenchCell(1, members, 8),)))
    assert row["cached_bound"] == pytest.approx(bound)


def test_the_terminals_table_is_aligned_and_explained():
    text = describe(whole())
    lines = text.splitlines()
    head = next(at for at, line in enumerate(lines) if "questions/s" in line)
    assert len({len(line) for line in lines[head : head + 7]}) == 1
    assert text.startswith("Model: tiny\nContext tokens: 100\n")
    assert "cost: time of m members over the time of one" in text


def test_json_and_csv_hold_the_same_rows():
    bench = whole()
    told = json.loads(as_json(bench))
    rows = list(csv.DictReader(io.StringIO(as_csv(bench))))
    assert told["facts"] == {"Model": "tiny", "Context tokens": 100}
    assert [list(row) for row in told["rows"]] == [list(rows[0])] * 6
    for record, row in zip(told["rows"], rows, strict=True):
        assert {name: "" if value is None else str(value) for name, value in record.items()} == row
    assert told["rows"][3]["cached_share"] == pytest.approx(0.72)
    assert told["rows"][5]["scaling"] == pytest.approx(0.625)


def test_charts_say_their_numbers_in_words():
    drawn = charts(whole())
    labels = [ET.fromstring(chart.svg).attrib["aria-label"] for chart in drawn]
    assert "m = 4, 8 in flight: 128 at 1, 160 at 2" in labels[0]
    assert "plain, n = 4: 160 at 1, 320 at 2" in labels[0]
    assert "1 replica, 8 in flight: 1 at 1, 2 at 4; 2 replicas, 8 in flight: 1 at 1, 3.2 at 4" in labels[1]
    assert "plain sampling: 1 at 1, 2 at 4" in labels[1]
    assert "0 at 1, 0.72 at 4" in labels[2]
    assert "1 replica, 8 in flight: 5 at 1, 5 at 4; plain: 2 at 1, 2 at 4" in labels[3]


def test_the_page_stands_alone_and_escapes_what_it_shows():
    bench = Throughput({"Model": HOSTILE}, (), (*whole().cells, BenchCell(1, 9, 8, reason=HOSTILE)))
    text = page(bench)
    assert "<script" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;[U+202E]" in text
    assert not re.search(r'(?:href|src)="(?!#)', text)
    assert text.count("<svg") == 4
    assert page(bench) == text


def test_files_are_written_and_replaced(tmp_path):
    directory = tmp_path / "new" / "bench"
    for bench in (Throughput({}), whole()):
        paths = write_throughput(bench, str(directory))
    assert [path.rsplit("/", 1)[1] for path in paths] == list(FILES)
    assert sorted(path.name for path in directory.iterdir()) == sorted(FILES)
    assert len(json.loads((directory / "throughput.json").read_text())["rows"]) == 6


def test_an_output_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(DataError, match="taken: cannot be made"):
        write_throughput(whole(), str(tmp_path / "taken"))
