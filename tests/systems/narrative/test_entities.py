"""People and places in a text, by spaCy."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohaku_ray.errors import ConfigError
from kohaku_ray.systems.narrative.reasoning import entities
from kohaku_ray.systems.narrative.reasoning.entities import BookNames, read_names

BOOK = [
    "“Yes,” said Edmond Dantès. Dantès bowed. Kai-Koumou rose. Kai-Koumou turned. They went from the Château d’If "
    "to Rome, and from Rome to the Château d’If, and lived in Rome."
] * 2
NAMES = read_names(BOOK, min_count=2)


def found(text: str, names: BookNames = NAMES, *, fuzzy: bool = False) -> list[tuple[str, str, str]]:
    return [(text[e.start : e.end], e.kind, e.name) for e in names.entities(text, fuzzy=fuzzy)]


def test_names_are_found_across_lines_accents_and_possessives() -> None:
    assert found("Edmond\nDantès’s cell in the Chateau d'If, not DANTES or Dante.") == [
        ("Edmond\nDantès", "person", "Edmond Dantès"),
        ("Chateau d'If", "place", "Château d’If"),
    ]


def test_nearly_a_name_counts_where_asked_for() -> None:
    text = "Then came Kai-Kumu, and Dantez and Napoleon."
    assert found(text) == []
    assert found(text, fuzzy=True) == [("Kai-Kumu", "person", "Kai-Koumou"), ("Dantez", "person", "Edmond Dantès")]


def test_a_place_that_the_book_lacks_is_known_by_its_preposition() -> None:
    assert found("He lived in Hobart and sailed to New Norfolk in January.") == [
        ("Hobart", "place", "Hobart"),
        ("New Norfolk", "place", "New Norfolk"),
    ]


def test_a_trained_pipeline_adds_what_the_book_lacks(tmp_path: Path) -> None:
    import spacy

    trained = spacy.blank("en")
    labels = {"Napoleon": "PERSON", "Dantes": "GPE", "now": "DATE"}
    patterns = [{"label": label, "pattern": text} for text, label in labels.items()]
    trained.add_pipe("entity_ruler", name="ner").add_patterns(patterns)
    trained.to_disk(tmp_path / "pipeline")
    names = read_names(BOOK, min_count=2, model=str(tmp_path / "pipeline"))
    assert found("Napoleon saw Dantès now", names) == [
        ("Napoleon", "person", "Napoleon"),
        ("Dantès", "person", "Edmond Dantès"),
    ]


def test_an_installed_trained_pipeline_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    import spacy

    loaded = []
    monkeypatch.setattr(spacy.util, "is_package", lambda name: name == "en_core_web_md")
    monkeypatch.setattr(spacy, "load", lambda name, exclude: loaded.append(name) or spacy.blank("en"))
    assert found("Dantès", read_names(BOOK, min_count=2)) == [("Dantès", "person", "Edmond Dantès")]
    assert loaded == ["en_core_web_md"]


def test_an_unknown_pipeline_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"narrative\.model is 'no_such_model', which spaCy cannot load"):
        found("Dantès", read_names(BOOK, model="no_such_model"))


def test_without_spacy_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(ConfigError, match=r"pip install 'kohaku-ray\[narrative\]'"):
        found("Dantès", read_names(BOOK))


def test_importing_the_rules_loads_no_spacy() -> None:
    code = "import sys, kohaku_ray.systems.narrative.reasoning.findings; sys.exit('spacy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_trained_pipeline_is_english() -> None:
    assert all(name.startswith("en_core_web_") for name in entities.TRAINED)


@given(st.text(alphabet="Dantès EdmondKai-Koumou’'s\n.“”Château d’If", max_size=60))
def test_any_text_gives_spans_in_order_without_overlap(text: str) -> None:
    spans = [(e.start, e.end) for e in NAMES.entities(text, fuzzy=True)]
    assert all(0 <= start < end <= len(text) for start, end in spans)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
