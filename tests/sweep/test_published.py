"""The paper's data: the figures are those of PAPER.md, and presets and docs/paper.md hold what it states."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from kit.rows import check_rows

from kohaku_ray.config import load_config
from kohaku_ray.config.load import parse_file
from kohaku_ray.sweep.paper import facts_of
from kohaku_ray.sweep.published import PAPER, read_paper

ROOT = Path(__file__).resolve().parents[2]
ROWS = {
    "Table 1, Figure 8": {
        "jina-embeddings-v3 (768)": "v3",
        "jina-embeddings-v3 (768) + captions": "v3+captions",
        "jina-embeddings-v4 (512) + images": "v4+images",
    },
    "Table 1, Figure 10": {"none": "none", "frequency": "frequency", "score": "score", "combined": "combined"},
    "Table 1, Figure 11": {"2": "2 queries", "4": "· 4", "6": "· 6"},
    "Table 2, Figure 12": {"context_first": "C→Q", "question_first": "Q→C"},
    "Table 2, Figure 13": {"0": "BM25 0", "2": "· 2", "4": "· 4", "8": "· 8"},
    "Table 2, Figure 14": {"0": "retries 0", "1": "· 1", "2": "· 2"},
    "Table 9, Figure 9": {"captions": "captions", "captions and images": "sent"},
    "Tables 4 (left) and 11, Figure 17": {"false": "off", "true": "on"},
}
"""What PAPER.md calls the rows of a table, where it names each."""

ORDERS = {
    "Table 3, Figure 16": ("nano", "5-mini", "oss", "mistral", "gemini", "kimi", "grok"),
    "Table 8, Figure 7": ("nano", "5-mini", "oss", "mistral", "kimi"),
    "Tables 4 (right) and 10, Figure 18": ("independent", "ref", "answer", "union", "intersection"),
}
"""Tables whose rows PAPER.md has on one line in this order."""


@pytest.fixture(scope="module")
def listed(data_path) -> str:
    """What the paper says, as it was read."""
    source = data_path.parent / "PAPER.md"
    if not source.is_file():
        pytest.skip(f"no list of the paper's figures at {source}")
    return source.read_text(encoding="utf-8")


OF_TABLES = {place: table["reported"] for place, table in parse_file(PAPER)["tables"].items() if "reported" in table}
"""By place: figures that no cell can have."""


def rows(place: str) -> dict[str, str]:
    """The figures of each row, as PAPER.md writes them."""
    by_row: dict[str, list[str]] = {}
    for (row, *_), figure in read_paper().tables[place].figures["score"].items():
        by_row.setdefault(row, []).append(f"{figure:.3f}".removeprefix("0"))
    return {row: " ".join(written) for row, written in by_row.items()}


def test_every_table_with_scores_is_compared():
    with_scores = {place for place, table in read_paper().tables.items() if "score" in table.figures}
    assert with_scores == {*ROWS, *ORDERS}


@check_rows("place", ROWS)
def test_every_figure_is_the_papers(place, listed):
    written = rows(place)
    assert [row for row in written if f"{ROWS[place][row]} {written[row]}" not in listed] == []


@pytest.mark.parametrize("place", ORDERS)
def test_figures_in_an_order_are_the_papers(place, listed):
    figures = rows(place)
    in_order = [next(text for row, text in figures.items() if word in row) for word in ORDERS[place]]
    pattern = "[^\\n]*".join(map(re.escape, in_order))
    assert re.search(pattern, listed)


def test_what_deduplication_leaves_is_the_papers(listed):
    figures, spread = read_paper().tables["Table 6"].figures, OF_TABLES["Table 6"]
    cells = []
    for column, mode in enumerate(("none", "node", "tree")):
        matches, snippets, characters = (f"{of_mode[mode,]:,.1f}".removesuffix(".0") for of_mode in figures.values())
        cells.append((matches, snippets, characters))
        for name, of_mode in figures.items():
            sd = [*([None] if len(spread[name]) == 2 else []), *spread[name]][column]
            digits = 0 if name.startswith("characters") else 1
            assert f"{of_mode[mode,]:,.{digits}f}" + (f" ± {sd:,}" if sd else "") in listed


REPORTED = {
    (place, name): values if isinstance(values, list) else [values]
    for place, of_name in OF_TABLES.items()
    for name, values in of_name.items()
}


def numbers_in(text: str) -> set[float]:
    """All numbers of a text, without their signs."""
    return {float(number.replace(",", "")) for number in re.findall(r"\d{1,3}(?:,\d{3})+|\d*\.\d+|\d+", text)}


@check_rows(("place", "name"), REPORTED)
def test_every_reported_figure_is_the_papers(place, name, listed):
    assert {abs(value) for value in REPORTED[place, name]} <= numbers_in(listed)


DOCS = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")


def test_every_figure_that_docs_call_the_papers_is_in_its_data():
    """`.884` and `26.8 %` are the paper's in docs/paper.md, ours have a digit before the point and no such unit."""
    paper = read_paper()
    known = {score for table in paper.tables.values() for of in table.figures.values() for score in of.values()}
    known |= {abs(value) for values in REPORTED.values() for value in values}
    classes = OF_TABLES["Table 12"]
    counts = [values[0] if isinstance(values, list) else values for values in classes.values()]
    known |= {round(100 * count / classes["errors"], 1) for count in counts}  # worked out, as is said there
    own, _, _ = DOCS.partition("## What holds on a small model")
    told = re.findall(r"(?<![\d.])\.\d{3,4}", own) + [text[:-2] for text in re.findall(r"\d+\.\d %", own)]
    assert len(told) > 40
    assert [figure for figure in told if float(figure) not in known] == []


@check_rows(("place", "name"), REPORTED)
def test_what_no_cell_can_have_stands_in_docs(place, name):
    assert {abs(value) for value in REPORTED[place, name]} <= numbers_in(DOCS)


def test_table_6_stands_in_docs():
    figures = read_paper().tables["Table 6"].figures.values()
    assert {figure for of_mode in figures for figure in of_mode.values()} <= numbers_in(DOCS)


def test_the_paper_searches_sixty_four_matches():
    """A.2: "the 4 × 16 = 64 raw matches"; Algorithm 1 searches the n planned queries alone."""
    settings = load_config("paper").settings
    assert settings.queries * settings.top_k == 64


def test_preset_paper_holds_what_the_paper_states():
    facts = facts_of(load_config(["paper", "encoders/jina_v3"]))
    stated = read_paper().tables["Table 1, Figure 10"].settings
    differing = {key: (facts.get(key), value) for key, value in stated.items() if facts.get(key) != value}
    assert set(differing) == {"answered by", "runs"}, "preferred by the sweeps"


def test_preset_paper_best_holds_the_best_of_each_table(monkeypatch):
    monkeypatch.setenv("OPENROUTER_API_KEY", "k")
    monkeypatch.delenv("KOHAKU_MODEL", raising=False)
    facts = facts_of(load_config("paper_best"))
    for place in (
        *("Table 1, Figure 8", "Table 1, Figure 10", "Table 1, Figure 11", "Table 2, Figure 12", "Table 2, Figure 13"),
        *("Table 2, Figure 14", "Table 3, Figure 16", "Tables 4 (left) and 11, Figure 17"),
    ):
        table = read_paper().tables[place]
        at_16 = {
            labels: score
            for labels, score in table.figures["score"].items()
            if "top_k" not in [*table.axes][-1] or labels[-1] == "16"
        }
        best = max(at_16, key=at_16.__getitem__)
        own = {key for labels in table.axes.values() for choice in labels.values() for key in choice}
        setting = {key: value for key, value in table.setting_of(best).items() if key in own - {"kohaku.image_top_k"}}
        assert {key: facts[key] for key in setting} == setting, place
    strategies = read_paper().tables["Tables 4 (right) and 10, Figure 18"].figures["score"]
    assert (
        facts["ensemble.vote.strategy"]
        == max((label for label in strategies if label[1] == "15"), key=strategies.__getitem__)[0]
    )
    images = read_paper().tables["Table 9, Figure 9"].figures["score"]
    sent, n_images = max(images, key=images.__getitem__)
    assert (facts["kohaku.send_images"], facts["kohaku.image_top_k"]) == (
        str(sent == "captions and images").lower(),
        n_images,
    )
