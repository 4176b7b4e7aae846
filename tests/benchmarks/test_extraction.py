"""benchmarks/extraction.py on made files: what is right counts, and what is glued, shifted or lost does not."""

import importlib
import json
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def modules(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("extraction"), importlib.import_module("extraction_made")


@pytest.mark.parametrize("name", ["stacked", "marks"])
def test_tables_of_two_formats_arrive_whole(modules, tmp_path, name):
    extraction, made = modules
    [table] = [table for table in made.TABLES if table.name == name]
    for ending in ("html.html", "word.docx"):
        path = tmp_path / f"{name}_{ending}"
        made.ways()[ending](path, table)
        truth = json.loads(json.dumps(made.expected(table, False, False)))
        assert extraction.score(truth, extraction.read_by_us(path)) == ([], len(table.truth()), [], 0)


def test_sentences_arrive_whole(modules, tmp_path):
    extraction, made = modules
    path = tmp_path / "prose.html"
    made.ways()["html.html"](path, None)
    truth = made.expected(None, True, False)
    assert extraction.score(truth, extraction.read_by_us(path))[2] == []


@pytest.mark.parametrize(
    ("grid", "is_right"),
    [
        ([["Model", "MWh"], ["GPT-3", "1,287 [a]"]], True),
        ([["Model", "MWh"], ["GPT-3", "1,287<sup>a</sup>"]], True),
        ([["Model", "MWh"], ["GPT-3", "1,287a"]], False),
        ([["Model", "Days"], ["GPT-3", "1,287"]], False),
        ([["Model", "MWh"], ["OPT", "1,287"]], False),
        ([["GPT-3", "1,287"]], False),
        ([["Model", "MWh"], ["GPT-3", ""], ["", "1,287"]], True),  # a label over two rows
    ],
)
def test_a_cell_is_right_in_its_row_and_under_its_name_alone(modules, grid, is_right):
    cell = {"keys": ["GPT-3"], "names": ["MWh"], "text": "1,287", "mark": "a"}
    assert modules[0].is_in_grid(grid, cell) is is_right


def test_a_name_over_two_columns_counts_for_both(modules):
    grid = [["Model", "Energy", ""], ["", "MWh", "kWh"], ["GPT-3", "1,287", "0.004"]]
    cell = {"keys": ["GPT-3"], "names": ["Energy", "kWh"], "text": "0.004", "mark": ""}
    assert modules[0].is_in_grid(grid, cell)
    assert not modules[0].is_in_grid(grid, {**cell, "names": ["Energy", "MWh"]})


def test_lost_invented_and_changed_numbers(modules, tmp_path, monkeypatch):
    extraction, _ = modules
    path = tmp_path / "page.html"
    path.write_text("<title>x</title><p>It used 2.09 MWh, 1287 kWh and 4000 litres in that year.</p>")
    monkeypatch.setattr(extraction, "text_of", lambda document: "It used 2.093 MWh, 1287 kWh and 77.5 of it.")
    loss = extraction.measure_file(path)
    assert loss.n_numbers == 3
    assert sorted(loss.lost) == ["2.09", "4000"]
    assert sorted(loss.invented) == ["2.093", "77.5"]
    assert loss.changed == ["2.09 → 2.093"]
