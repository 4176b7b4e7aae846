import sys
import types
from pathlib import Path

import numpy as np
import pytest
from index.small_index import FakeEncoder, index_documents, paragraph
from run_files import index

from kohaku_ray.api import Run
from kohaku_ray.config import load_config
from kohaku_ray.documents.model import Attachment, Document, Paragraph, Section
from kohaku_ray.errors import DataError
from kohaku_ray.index.nodes import PARAGRAPH
from kohaku_ray.index.store import Index
from kohaku_ray.pages.index_map import N_COLOURS, document_colours, principal, sample_rows, write_index_map


@pytest.fixture(autouse=True)
def _no_umap(monkeypatch):
    monkeypatch.setitem(sys.modules, "umap", None)  # importing it fails, whatever is installed


@pytest.fixture(scope="module")
def index_path(tmp_path_factory):
    return str(index(tmp_path_factory.mktemp("map") / "index", "a2024", "_b", "c$x$"))


def test_principal_components_find_the_plane_the_points_lie_in():
    rng = np.random.default_rng(0)
    plane = rng.normal(size=(200, 2)) * (3, 1)
    basis = np.linalg.qr(rng.normal(size=(8, 2)))[0]
    points, share = principal((plane @ basis.T + 5).astype(np.float32))
    assert share == pytest.approx(1, abs=1e-6)
    assert np.var(points[:, 0]) > np.var(points[:, 1])
    apart = np.linalg.norm(plane[:, None] - plane[None], axis=-1)
    np.testing.assert_allclose(np.linalg.norm(points[:, None] - points[None], axis=-1), apart, atol=1e-4)


@pytest.mark.parametrize("vectors", [np.ones((1, 5)), np.ones((4, 5)), np.arange(3).reshape(3, 1)])
def test_degenerate_vectors_are_drawn_all_the_same(vectors):
    points, share = principal(vectors.astype(np.float32))
    assert points.shape == (len(vectors), 2)
    assert np.isfinite(points).all()
    assert share == pytest.approx(1)


def test_scarce_kinds_come_whole():
    kinds = np.array([0] * 3 + [3] * 1000)
    assert np.bincount(kinds[sample_rows(kinds, 100)]).tolist() == [3, 0, 0, 97]


def test_the_map_is_the_same_every_time_and_takes_names_as_they_are(index_path, tmp_path):
    first = write_index_map(index_path)
    assert first == f"{index_path}/map.svg"
    text = Path(first).read_text(encoding="utf-8")
    assert all(f">{name}<" in text for name in ("a2024", " _b", "c$x$"))
    again = write_index_map(index_path, str(tmp_path / "again.svg"))
    assert Path(again).read_text(encoding="utf-8") == text


def test_the_papers_figure_6_is_drawn_of_a_runs_index(index_path, tmp_path):
    run = Run(load_config("paper", ["model=extractive", f"index.path={index_path}", f"run={tmp_path}/run"]))
    drawn = run.draw_map(str(tmp_path / "figure6.svg"))
    assert drawn == str(tmp_path / "figure6.svg")
    assert Path(drawn).read_text(encoding="utf-8") == Path(write_index_map(index_path)).read_text(encoding="utf-8")
    assert run.draw_map() == f"{index_path}/map.svg"


@pytest.mark.parametrize(
    ("paragraph_vectors", "n_shards", "counted"),
    [
        ("averaged", 1, "4 paragraphs, 8 sentences, 2 images"),
        ("full", 1, "8 sentences, 4 full paragraphs, 2 images"),
        ("both", 1, "4 paragraphs, 8 sentences, 4 full paragraphs, 2 images"),
        ("both", 2, "4 paragraphs, 8 sentences, 4 full paragraphs, 2 images"),
    ],
)
def test_images_and_full_paragraphs_have_marks_of_their_own(tmp_path, paragraph_vectors, n_shards, counted):
    """KohakuRAG's Figure 6: a paragraph's mean, its own text's vector, and an image are three things."""
    plain, image = paragraph("It used 5 kWh.", "It rose."), Attachment("image", f"images/{'a' * 32}.png", "A chart")
    documents = [
        Document(name, f"Report {name}", (Section("Energy", (plain, plain, Paragraph("", attachment=image))),))
        for name in ("one", "two")
    ]
    index_documents(tmp_path / "index", documents, paragraph_vectors=paragraph_vectors, n_shards=n_shards)
    text = Path(write_index_map(str(tmp_path / "index"))).read_text(encoding="utf-8")
    assert f"2 documents, 2 sections, {counted}<" in text
    assert (">full paragraph<" in text) == (paragraph_vectors != "averaged")
    assert ">image<" in text
    index = Index.open(str(tmp_path / "index"))
    rows = np.flatnonzero(index.nodes.kind == PARAGRAPH)
    vectors = index.node_vectors(rows, own_text=True)
    has = vectors.any(axis=1)
    names = [f"{name}:sec0:p{number}" for name in ("one", "two") for number in (0, 1) if paragraph_vectors == "both"]
    assert [index.nodes.node_id(row) for row in rows[has]] == names
    if names:
        np.testing.assert_allclose(vectors[has], FakeEncoder().encode_passages([plain.text] * 4), atol=1e-6)
        assert (np.abs(index.node_vectors(rows[has]) - vectors[has]).max(axis=1) > 0.01).all()


def test_umap_is_used_where_it_is_installed_and_the_nodes_are_few(index_path, tmp_path, monkeypatch):
    asked = []

    class Umap:
        def __init__(self, **settings):
            asked.append(settings)

        def fit_transform(self, vectors):
            return vectors[:, :2]

    monkeypatch.setitem(sys.modules, "umap", types.SimpleNamespace(UMAP=Umap))
    text = Path(write_index_map(index_path, str(tmp_path / "u.svg"))).read_text(encoding="utf-8")
    assert "node vectors by UMAP" in text
    assert asked[0]["random_state"] == 0
    monkeypatch.setattr("kohaku_ray.pages.index_map.MAX_UMAP_NODES", 5)
    text = Path(write_index_map(index_path, str(tmp_path / "p.svg"))).read_text(encoding="utf-8")
    assert "node vectors by PCA" in text
    assert len(asked) == 1


def test_the_largest_documents_have_colours_of_their_own():
    ids = [f"d{number:02}" for number in range(30) for _ in range(1 + (number >= 20) * 5)]
    colours = document_colours(ids)
    assert len(set(colours.values())) == len(colours) == N_COLOURS
    assert {f"d{number}" for number in range(20, 30)} <= set(colours)


def test_a_large_index_is_sampled_and_a_picture_is_the_same_every_time(index_path, tmp_path):
    text = Path(write_index_map(index_path, str(tmp_path / "few.svg"), max_nodes=12)).read_text(encoding="utf-8")
    assert "A sample of at most 12: evenly spaced nodes of each kind." in text
    first, again = (Path(write_index_map(index_path, str(tmp_path / "map.png"))).read_bytes() for _ in range(2))
    assert first.startswith(b"\x89PNG")
    assert first == again


@pytest.mark.parametrize(
    ("index", "output", "message"),
    [
        ("map", "map.gif", r"map\.gif: the map is an \.svg or a \.png file, not \.gif"),
        ("map", "nowhere/map.svg", r"map\.svg: cannot be written \(No such file or directory\)"),
        ("nothing", None, "there is no index at"),
        ("s3://bucket/index", None, "the index is at s3://bucket/index, no local directory: say where the map goes"),
    ],
)
def test_what_cannot_be_drawn_is_refused(index_path, tmp_path, index, output, message):
    path = {"map": index_path, "nothing": str(tmp_path)}.get(index, index)
    with pytest.raises(DataError, match=message):
        write_index_map(path, output and str(tmp_path / output))
