"""Images of an index, on a disk and on an object store."""

import pytest
from figure_pdfs import as_bytes, picture
from small_index import IDENTITY, VIEWS, FakeEncoder, build_whole

from kohaku_ray.documents.figures import ImageSource, images_of
from kohaku_ray.documents.parse import parse_documents
from kohaku_ray.errors import DataError
from kohaku_ray.index.assemble import texts_to_encode
from kohaku_ray.index.build import IndexSettings
from kohaku_ray.index.flatten import document_table, flatten
from kohaku_ray.index.identity import vector_keys
from kohaku_ray.index.images import Images, image_table, write_image
from kohaku_ray.index.nodes import NodeTable
from kohaku_ray.index.settings import IndexConfig
from kohaku_ray.store.storage import Directory


def document(folder, seed):
    folder.mkdir(exist_ok=True)
    (folder / "a.png").write_bytes(as_bytes(picture(seed=seed)))
    text = b"A plant uses energy, see Figure 1.\n\n![Figure 1: Energy](a.png)\n"
    (document,) = parse_documents(str(folder / "x.md"), text, images=ImageSource()).documents
    return document


def build(path, document):
    for _, _, image in images_of(document):
        write_image(Directory(path), image)
    nodes = flatten(document)
    _, texts = texts_to_encode(NodeTable(nodes), IndexConfig())
    return build_whole(
        path,
        nodes=nodes,
        documents=document_table([document]),
        keys=vector_keys(IDENTITY, texts),
        vectors=FakeEncoder().encode_passages(texts),
        settings=IndexSettings(encoder=IDENTITY, images={"captions": "printed"}),
        views=VIEWS,
        images=image_table(document, "printed"),
    )


@pytest.mark.parametrize("where", ["disk", "s3"])
def test_images_are_read_again(where, tmp_path, request):
    path = str(tmp_path / "index") if where == "disk" else request.getfixturevalue("s3").uri("index/images")
    first = document(tmp_path / "docs", 1)
    assert build(path, first)["n_images"] == 1
    ((_, _, image),) = images_of(first)
    images = Images.open(path)
    (row,) = images.rows
    assert (row["digest"], row["doc_id"], row["caption"]) == (image.digest, "x", "Figure 1: Energy")
    assert row["mentions"] == ["A plant uses energy, see Figure 1."]
    assert images.read(image.digest) == image.data
    build(path, document(tmp_path / "docs", 2))
    pngs = [name for name in Directory(path).names() if name.endswith(".png")]
    assert pngs == [f"images/{Images.open(path).rows[0]['digest']}.png"] != [f"images/{image.digest}.png"]
    with pytest.raises(DataError, match=rf"images/{image.digest}\.png is missing"):
        Images.open(path).read(image.digest)
