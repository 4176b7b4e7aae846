"""The shipped collection is whole: files agree with one another, and every gold answer stands in what it cites."""

import csv
import json
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from kit.rows import check_rows

from kohaku_ray import sample
from kohaku_ray.collection.sources import find_sources, questions_of, resolve
from kohaku_ray.config import load_config
from kohaku_ray.documents.parse import parse_file
from kohaku_ray.errors import ConfigError
from kohaku_ray.records import BLANK, UNANSWERABLE
from kohaku_ray.systems.narrative.prepare import story_of

CONVERTED = {  # question id → (number as the document has it, factor to the asked unit)
    "s011": (1220.4, 1e3),  # MWh → kWh
    "s012": (73.0, 1e6),  # million requests → requests
    "s034": (96.0, 1e3),  # GWh → MWh
}
PARSED = {".pdf", ".html"}
COLUMNS = ["id", "question", "answer", "answer_value", "answer_unit", "ref_id", "ref_url", "supporting_materials"]
COLUMNS += ["explanation", "answer_type", "split"]
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
QUOTE = re.compile(r"(\w+): “([^”]+)”")


def rows(name: str) -> list[dict[str, str]]:
    with Path(sample.path(name)).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@cache
def raw_texts() -> dict[str, str]:
    """Each document's raw text; of JSON, PDF and HTML, the text of its paragraphs."""
    texts = {}
    for file in Path(sample.path("documents")).iterdir():
        if file.suffix in PARSED:
            document = parse_file(file.name, file.read_bytes())
            paragraphs = [document.title, *(p.text for s in document.sections for p in s.paragraphs)]
            texts[file.stem] = "\n\n".join(paragraphs)
            continue
        text = file.read_text(encoding="utf-8")
        if file.suffix == ".json":
            paragraphs = [p["text"] for s in json.loads(text)["sections"] for p in s["paragraphs"]]
            text = "\n\n".join(paragraphs)
        assert file.stem not in texts
        texts[file.stem] = text
    return texts


def plain(text: str) -> str:
    return " ".join(text.split()).casefold()


def numbers(text: str) -> set[float]:
    return {float(match.replace(",", "")) for match in NUMBER.findall(text)}


METADATA = {row["id"]: row for row in rows("metadata.csv")}
QUESTIONS = rows("questions.csv")
ANSWERABLE = [row for row in QUESTIONS if row["answer_value"] != BLANK]
UNANSWERED = [row for row in QUESTIONS if row["answer_value"] == BLANK]


def by_id(row: dict[str, str]) -> str:
    return row["id"]


def quotes(row: dict[str, str]) -> dict[str, list[str]]:
    by_document: dict[str, list[str]] = {}
    for doc_id, text in QUOTE.findall(row["supporting_materials"]):
        by_document.setdefault(doc_id, []).append(text)
    return by_document


def test_path_and_formats_of_everything():
    root = Path(sample.path())
    assert Path(sample.path("documents")) == root / "documents"
    suffixes = Counter(file.suffix for file in (root / "documents").iterdir())
    assert suffixes == {".md": 5, ".txt": 3, ".json": 2, ".pdf": 2, ".html": 1}


@pytest.mark.parametrize("name", ["question.csv", "documents/none.md", "../errors.py", "/etc/passwd"])
def test_path_names_what_exists(name):
    with pytest.raises(ConfigError) as caught:
        sample.path(name)
    message = str(caught.value)
    assert message.startswith(f"sample:{name} does not exist")
    for existing in ("questions.csv", "metadata.csv", "documents", "documents/halden2023.md"):
        assert existing in re.split(r"[ ,;]+", message)
    assert "__init__.py" not in message
    assert "__pycache__" not in message


def test_metadata_describes_every_document_once():
    table = rows("metadata.csv")
    assert sorted(row["id"] for row in table) == sorted(raw_texts())
    assert len({row["url"] for row in table}) == len(table)
    assert all(row["url"].startswith("https://example.org/") for row in table)
    for doc_id, text in raw_texts().items():
        assert "Invented for testing; figures are not measurements." in text.strip().splitlines()[-1], doc_id


def test_questions_are_of_every_kind_and_five_have_no_answer():
    assert list(QUESTIONS[0]) == COLUMNS
    assert len({row["id"] for row in QUESTIONS}) == len({row["question"] for row in QUESTIONS}) == len(QUESTIONS) == 41
    kinds = {(row["answer_type"], row["split"]) for row in ANSWERABLE}
    assert kinds == {(k, s) for k in ("number", "range", "boolean", "name") for s in ("public", "private")}
    assert len(UNANSWERED) == 5
    for row in UNANSWERED:
        assert row["answer"] == UNANSWERABLE
        assert [row[c] for c in ("ref_id", "ref_url", "supporting_materials", "explanation")] == [BLANK] * 4
    corpus = plain(" ".join(raw_texts().values()))
    for term in ("Boreal-400B", "Pacific", "hospital", "chief executive"):
        assert any(term in row["question"] for row in UNANSWERED)
        assert term.casefold() not in corpus


@check_rows("row", ANSWERABLE)
def test_every_reference_exists_and_is_quoted_verbatim(row):
    cited = quotes(row)
    assert list(cited) == json.loads(row["ref_id"])
    assert json.loads(row["ref_url"]) == [METADATA[doc_id]["url"] for doc_id in cited]
    for doc_id, texts in cited.items():
        for text in texts:
            assert plain(text) in plain(raw_texts()[doc_id])


@check_rows("row", ANSWERABLE)
def test_gold_value_stands_in_every_cited_quote(row):
    value, kind = row["answer_value"], row["answer_type"]
    for texts in quotes(row).values():
        quoted = " ".join(texts)
        if kind == "boolean":
            assert row["answer"] == {"1": "TRUE", "0": "FALSE"}[value]
        elif kind == "name":
            assert plain(value) in plain(quoted)
        elif kind == "range":
            low, high = json.loads(value)
            assert low < high
            assert {float(low), float(high)} <= numbers(quoted)
        elif row["id"] in CONVERTED:
            in_document, factor = CONVERTED[row["id"]]
            assert in_document in numbers(quoted)
            assert float(value) == pytest.approx(in_document * factor, rel=1e-12)
        else:
            assert float(value) in numbers(quoted)


def test_every_document_is_cited():
    assert {doc_id for row in ANSWERABLE for doc_id in json.loads(row["ref_id"])} == set(METADATA)


def test_some_facts_are_confirmed_by_several_documents():
    assert sum(len(json.loads(row["ref_id"])) > 1 for row in ANSWERABLE) >= 5


def test_values_come_in_every_spelling():
    """Thousands separators and scientific notation in the documents; percentages, plain names and ranges as answers."""
    quoted = " ".join(row["supporting_materials"] for row in ANSWERABLE)
    assert re.search(r"\d,\d{3}", quoted)
    assert re.search(r"\de\d", quoted)
    assert sum(row["answer_unit"] == "percent" for row in ANSWERABLE) >= 5


def test_made_documents_are_small_and_their_script_makes_the_same_bytes(tmp_path):
    script = Path(__file__).parents[2] / "scripts" / "make_sample_documents.py"
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True, capture_output=True)
    made = sorted(tmp_path.iterdir())
    assert [file.name for file in made] == ["ebba2024.html", "ferro2025.pdf", "orlo2025.pdf"]
    for file in made:
        assert file.read_bytes() == Path(sample.path(f"documents/{file.name}")).read_bytes()
        assert file.stat().st_size < 60_000


def test_the_narrative_sample_has_every_column_that_the_documentation_names():
    """A newcomer's stories need the columns that ``narrative`` reads; the package shows them."""
    config = load_config("demo_narrative")
    stories = [story_of(item) for item in questions_of(config)]
    [book] = find_sources(config)
    assert "Title: The Keeper of Skarn" in Path(book).read_text()
    assert {story.book_name for story in stories} == {"The Keeper of Skarn"}
    assert all(story.character and story.content for story in stories)
    columns = Path(resolve(config.questions.path)).read_text().splitlines()[0].split(",")
    page = (Path(__file__).parents[2] / "docs" / "systems.md").read_text()
    assert all(f"| `{column}` |" in page for column in columns)
