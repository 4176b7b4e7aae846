from kit.rows import check_rows

from kohaku_ray.retrieval import evidence
from kohaku_ray.retrieval.evidence import attribute, terms_of

PASSAGES = [
    ("energy", "Training draws 12 MW of power, and cooling draws 3 MW."),
    ("water", "Cooling takes water from the lake. Training takes none."),
    ("energy", "The grid of the valley is old."),
]


@check_rows(
    ("text", "doc_id"),
    [
        ("Training draws 12 MW of power.", "energy"),
        ("The text states: 'cooling takes water from a lake'.", "water"),  # what all passages say tells nothing
        ("Training and cooling.", "energy"),  # of equals the first
        ("An old valley grid", "energy"),
        ("Owls sleep by day.", None),
        ("", None),
    ],
)
def test_a_text_is_of_the_document_whose_passage_holds_most_of_its_terms(text, doc_id):
    assert attribute(text, terms_of(PASSAGES)) == doc_id


def test_a_rare_term_weighs_more_than_two_that_most_passages_have():
    passages = [("a", "power and cooling"), ("b", "power and cooling"), ("c", "tritium")]
    assert attribute("tritium for power and cooling", terms_of(passages)) == "c"


def test_without_a_passage_nothing_is_named_and_no_explanation_is_tokenised(monkeypatch):
    monkeypatch.setattr(evidence, "tokenise", None)
    assert attribute("Training draws 12 MW.", terms_of([])) is None
