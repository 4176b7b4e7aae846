import pytest
from run_files import TABLE, TEXT, index

from kohaku_ray.pages.evidence import Excerpt, Place, Places, excerpt, open_index


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    opened, reason = open_index([str(index(tmp_path_factory.mktemp("index"), "a2024", "b2025"))])
    assert reason == ""
    return opened.nodes


def find(nodes, node_id, text):
    return Places(nodes, [node_id], {}).find(node_id, text)


def test_a_sentence_is_marked_inside_its_paragraph(nodes):
    text = "The hall drew 41 MW in May."
    place = find(nodes, "a2024:sec0:p0:s1", text)
    assert place.path == ("Report", "Load", "paragraph 0", "sentence 1")
    assert place.page == 4
    assert excerpt(place, text, 900, 300) == Excerpt("Servers hum. ", text, " Fans spin faster in June.", False)


def test_a_paragraph_is_the_whole_match(nodes):
    assert excerpt(find(nodes, "a2024:sec0:p0", TEXT), TEXT, 900, 300) == Excerpt("", TEXT, "", True)


def test_a_table_keeps_its_rows(nodes):
    assert excerpt(find(nodes, "b2025:sec0:p1", TABLE), TABLE, 900, 300) == Excerpt("", TABLE, "", True, has_rows=True)


def test_long_surroundings_and_matches_are_cut():
    place = Place(("d",), None, "a" * 50 + "MATCH" + "b" * 50, 50, 55)
    assert excerpt(place, "MATCH", 900, 10) == Excerpt(f"… {'a' * 10}", "MATCH", f"{'b' * 10} …", False)
    assert excerpt(place, "MATCH", 2, 10).match == "MA … [3 more characters]"


def test_a_text_that_the_run_has_cut_is_shown_whole(nodes):
    place = find(nodes, "a2024:sec0:p0", TEXT[:20])
    assert place.path == ("Report", "Load", "paragraph 0")
    assert excerpt(place, TEXT[:20], 900, 300).match == TEXT


def test_a_section_named_as_its_document_is_said_once(tmp_path):
    opened, _ = open_index([str(index(tmp_path / "index", "a2024", title="Load"))])
    assert find(opened.nodes, "a2024:sec0:p0", TEXT).path == ("Load", "paragraph 0")


def test_an_index_that_has_changed_is_not_believed(nodes):
    place = find(nodes, "a2024:sec0:p0:s1", "The hall drew 7 MW.")
    assert place == Place(("a2024", "sec0", "p0", "s1"))
    assert excerpt(place, "The hall drew 7 MW.", 900, 300) == Excerpt("", "The hall drew 7 MW.", "", True)


def test_without_an_index_the_id_is_the_path():
    places = Places(None, ["a2024:sec0:p1"], {"a2024": "Annual report"})
    assert places.find("a2024:sec0:p1", "x").path == ("Annual report", "sec0", "p1")


def test_a_node_the_index_lacks_keeps_its_id_as_path(nodes):
    assert find(nodes, "gone:sec0:p0", "x").path == ("gone", "sec0", "p0")


def test_the_first_index_that_can_be_read_is_taken(tmp_path):
    there = str(index(tmp_path / "index", "a2024"))
    opened, reason = open_index([str(tmp_path / "nowhere"), there])
    assert (opened.directory.path, reason) == (there, "")
    opened, reason = open_index([str(tmp_path / "nowhere")])
    assert opened is None
    assert f"there is no index at {tmp_path / 'nowhere'}" in reason


def test_a_damaged_index_is_none(tmp_path):
    path = index(tmp_path / "index", "a2024")
    file = next((path / "nodes").iterdir())
    file.write_bytes(b"x" * file.stat().st_size)
    opened, reason = open_index([str(path)])
    assert opened is None
    assert reason
