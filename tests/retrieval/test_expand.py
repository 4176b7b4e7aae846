from small_tree import image, tree

from kohaku_ray.retrieval.context import expand

NODES = tree(
    a=[
        ("Power", ["A one. B two. C three. D four. E five. F six. G seven."]),
        ("Water", ["P one.", "Q one. Q two.", "M one. M two. M three.", "R one. R two.", image("Fig one."), image()]),
    ]
)


def leaves(match, **limits):
    given = {"paragraph_tokens": 100, "siblings": 1, "section_tokens": 100} | limits
    group = expand(NODES, NODES.row_of(match), **given)
    return [NODES.text_of(row) for row in group.leaves], group


def test_a_sentence_brings_its_paragraph_itself_first_then_outward():
    texts, group = leaves("a:sec0:p0:s2")
    assert texts == ["C three.", "D four.", "B two.", "E five.", "A one.", "F six.", "G seven."]
    assert group.title is None


def test_a_paragraph_just_short_enough_comes_whole():
    assert len(leaves("a:sec0:p0:s2", paragraph_tokens=14)[0]) == 7
    assert len(leaves("a:sec0:p0:s2", paragraph_tokens=13)[0]) == 3


def test_of_a_longer_paragraph_only_the_siblings_come():
    assert leaves("a:sec0:p0:s3", paragraph_tokens=5)[0] == ["D four.", "E five.", "C three."]
    assert leaves("a:sec0:p0:s0", paragraph_tokens=5, siblings=2)[0] == ["A one.", "B two.", "C three."]
    assert leaves("a:sec0:p0:s0", paragraph_tokens=5, siblings=0)[0] == ["A one."]


def test_a_paragraph_comes_in_reading_order_with_its_title_and_the_section_around():
    texts, group = leaves("a:sec1:p2")
    assert texts == [
        *("M one.", "M two.", "M three."),
        *("R one.", "Q two.", "R two.", "Q one.", "Fig one.", "P one."),
    ]
    assert NODES.node_id(group.title) == "a:sec1"


def test_the_section_around_is_bounded_on_top_of_the_paragraph():
    assert leaves("a:sec1:p2", section_tokens=4)[0][3:] == ["R one.", "Q two."]
    assert leaves("a:sec1:p2", section_tokens=5)[0][3:] == ["R one.", "Q two."]
    assert leaves("a:sec1:p2", section_tokens=0)[0] == ["M one.", "M two.", "M three."]


def test_captions_around_a_match_are_told_from_text():
    _, group = leaves("a:sec1:p2")
    assert {NODES.text_of(leaf): NODES.node_id(image) for leaf, image in group.captions.items()} == {
        "Fig one.": "a:sec1:p4"
    }


def test_a_matched_caption_is_text():
    for match in ("a:sec1:p4", "a:sec1:p4:s0"):
        texts, group = leaves(match, section_tokens=0)
        assert texts == ["Fig one."]
        assert not group.captions
