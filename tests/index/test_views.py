import pytest
from small_index import files_of

from kohaku_ray.errors import ConfigError, IndexMismatchError
from kohaku_ray.index.build import IndexSettings, views_with_old
from kohaku_ray.index.settings import Bm25Config, IndexConfig
from kohaku_ray.index.store import Index
from kohaku_ray.index.views import View, check_views, united

NODES = View(("sentence", "paragraph"), dense=True)
PARAGRAPHS = View(("paragraph",), lexical=True)
SECTIONS = View(("section",), dense=True, lexical=True)


def views(path) -> tuple[View, ...]:
    return Index.open(str(path)).views


@pytest.mark.parametrize(
    "arguments",
    [
        {"kinds": (), "dense": True},
        {"kinds": ("sentence",)},
        {"kinds": ("sentence", "chapter"), "dense": True},
    ],
)
def test_a_view_of_no_kind_or_no_search_is_refused(arguments):
    with pytest.raises(ConfigError, match=r"name kinds of .*sentence.*, and search them by vectors, terms or both"):
        View(**arguments)


def test_a_missing_view_is_named_with_those_there_are_and_the_way_out():
    views = united([NODES, PARAGRAPHS])
    check_views("/x", views, [NODES, View(("paragraph", "sentence"), dense=True), PARAGRAPHS])
    known = r"its views are paragraph \(lexical\), paragraph\+sentence \(dense\)"
    way_out = r"`kohaku-ray index CONFIG`, or `run\.index\(\)` in Python, adds it without encoding anything twice"
    for needed, view in [
        (SECTIONS, "dense view of section"),
        (View(("paragraph",), dense=True), "dense view of paragraph"),
        (View(NODES.kinds, dense=True, lexical=True), r"lexical view of paragraph\+sentence"),
    ]:
        with pytest.raises(IndexMismatchError, match=rf"the index at /x has no {view}; {known}: {way_out}"):
            check_views("/x", views, [NODES, needed])
    with pytest.raises(IndexMismatchError, match="its views are none"):
        check_views("/x", [], [NODES])


def test_a_view_holds_the_nodes_of_its_kinds_that_can_be_found(tmp_path, build, documents):
    every = [View((kind,), dense=True, lexical=True) for kind in ("sentence", "paragraph", "section", "document")]
    build(tmp_path, documents("a", "b"), views=every)
    index = Index.open(str(tmp_path))
    names = {
        kind: [
            index.nodes.node_id(row) for row in index.shards[0].vectors([kind]).rows if index.nodes.doc_id(row) == "a"
        ]
        for kind in ("sentence", "paragraph", "section", "document")
    }
    assert names == {
        "sentence": [f"a:sec0:p{paragraph}:s{sentence}" for paragraph in (0, 1) for sentence in (0, 1)],
        "paragraph": ["a:sec0:p0", "a:sec0:p1", "a:sec2:p0"],
        "section": ["a:sec0", "a:sec1", "a:sec2"],
        "document": ["a"],
    }
    for kind in ("sentence", "paragraph"):
        assert index.shards[0].terms([kind]).rows.tolist() == index.shards[0].vectors([kind]).rows.tolist()


def test_a_view_is_added_without_encoding_anything(tmp_path, build, documents, fake_encoder):
    first = build(tmp_path, documents("a", "b"))
    before = {role: (tmp_path / entry["name"]).read_bytes() for role, entry in files_of(tmp_path).items()}
    encoder = fake_encoder()
    summary = build(tmp_path, documents("a", "b"), encoder, views=[SECTIONS])
    assert encoder.asked == []
    assert (summary["n_encoded"], summary["n_reused"]) == (0, first["n_encoded"])
    assert views(tmp_path) == united([NODES, PARAGRAPHS, SECTIONS])
    after = {role: (tmp_path / entry["name"]).read_bytes() for role, entry in files_of(tmp_path).items()}
    assert {role: after[role] for role in before} == before, "the old views are what they were"
    added = [f"{part}-section" for part in ("places", "postings", "rows", "statistics", "terms")]
    assert sorted(after.keys() - before.keys()) == added


def test_views_of_other_settings_are_not_kept(tmp_path, build, documents, fake_encoder):
    settings = IndexSettings(fake_encoder().identity)
    other = IndexSettings(settings.encoder, IndexConfig(bm25=Bm25Config(language="fr")))
    assert views_with_old(str(tmp_path / "none"), settings, [SECTIONS]) == (SECTIONS,)
    build(tmp_path, documents("a"))
    assert views_with_old(str(tmp_path), settings, [SECTIONS]) == united([NODES, PARAGRAPHS, SECTIONS])
    assert views_with_old(str(tmp_path), other, [SECTIONS]) == (SECTIONS,)
    build(tmp_path, documents("a"), views=[SECTIONS], language="fr")
    assert views(tmp_path) == (SECTIONS,)
    (tmp_path / files_of(tmp_path)["nodes"]["name"]).unlink()
    assert views_with_old(str(tmp_path), other, [NODES]) == united([NODES])
