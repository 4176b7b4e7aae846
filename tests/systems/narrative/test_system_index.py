"""The same preparation over a real index on disk: its views, its depths and its node tables, without Ray."""

import numpy as np
import pyarrow as pa
import pytest
from index.small_index import IDENTITY, FakeEncoder, build_whole
from kit.scripted_tools import ScriptedTools, vector
from systems.narrative.stories import GARDEN, INDEX, PRISON, count, judged, offline, prepared, stories

from kohaku_ray.answering.local_index import LocalIndex
from kohaku_ray.errors import KohakuRayError
from kohaku_ray.index.assemble import texts_to_encode
from kohaku_ray.index.build import IndexSettings
from kohaku_ray.index.chunks import Chunks
from kohaku_ray.index.flatten import document_table, flatten
from kohaku_ray.index.identity import vector_keys
from kohaku_ray.index.nodes import NodeTable
from kohaku_ray.index.settings import IndexConfig
from kohaku_ray.index.store import Index
from kohaku_ray.systems.narrative import SYSTEM
from kohaku_ray.systems.narrative.label import CONTRADICT
from kohaku_ray.systems.narrative.novel import parse_novel

STORIES = stories()
BOOK = "The Prisoner of the Rock"


class WordEncoder(FakeEncoder):
    def encode_passages(self, texts):
        return np.stack([vector(text) for text in texts])


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("index") / "index")
    chunks = Chunks(unit="tokens", size=40, min_size=10, over="section")
    documents = [parse_novel(name, text.encode()) for name, text in (("The Garden", GARDEN), (BOOK, PRISON))]
    nodes = pa.concat_tables([flatten(document, chunks, count) for document in documents])
    settings = IndexSettings(IDENTITY, IndexConfig(chunks=chunks))
    texts = list(dict.fromkeys(texts_to_encode(NodeTable(nodes), settings.index)[1]))
    build_whole(
        path,
        nodes=nodes,
        documents=document_table(documents),
        keys=vector_keys(settings.encoder, texts),
        vectors=WordEncoder().encode_passages(texts),
        settings=settings,
        views=tuple(SYSTEM.views.values()),
    )
    return path


@pytest.fixture
def tools(path):
    return ScriptedTools(INDEX, offline, SYSTEM, index=LocalIndex(Index.open(path).shards[0], WordEncoder()))


@pytest.mark.parametrize("key", ["46", "137", "007", "9"])
def test_a_real_index_gives_what_the_plain_one_gives(tools, key):
    def told(dossier):
        return (
            (dossier.doc_id, dossier.title, dossier.knows_character, [claim.text for claim in dossier.claims]),
            {(passage.node_id, passage.chapter, passage.progress_pct, passage.text) for passage in dossier.passages},
            {(finding.rule, finding.node_id) for finding in dossier.check.findings},
        )

    real, plain = prepared(STORIES[key], tools), prepared(STORIES[key])
    assert told(real) == told(plain)
    similarities = [[claim.similarity for claim in dossier.claims] for dossier in (real, plain)]
    assert similarities[0] == pytest.approx(similarities[1], abs=1e-5)


def test_every_view_that_is_declared_is_searched_and_the_whole_book_is_there(tools, path):
    Index.open(path).require(SYSTEM.views.values())
    evidence = prepared(STORIES["46"], tools, evidence="book", k=1)
    assert len(evidence.passages) == 1
    assert [part.node_id for part in evidence.book] == [
        part.node_id for part in prepared(STORIES["46"], evidence="book").book
    ]
    assert judged(STORIES["137"], tools).prediction.answer_value == CONTRADICT


def test_an_unknown_book_lists_those_of_the_index(tools):
    with pytest.raises(KohakuRayError, match=f"the index has 'The Garden', '{BOOK}': correct it, or index the book"):
        prepared(STORIES["10"], tools)
