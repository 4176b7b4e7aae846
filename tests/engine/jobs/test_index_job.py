"""The index job on a real cluster: what goes in comes out, once, however the files look."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from kit.answers import flags
from kit.ray_processes import our_processes
from kit.runs_here import index_here

from kohaku_ray.answering.local_index import LocalIndex
from kohaku_ray.checks.demand import Encoders
from kohaku_ray.cli import main
from kohaku_ray.collection.indexes import make_encoder
from kohaku_ray.collection.indexing import TEXT_SCHEMA, _bounds, parse, sorted_window, survey
from kohaku_ray.config import Config, load_config
from kohaku_ray.engine.jobs import index_stream
from kohaku_ray.engine.jobs.index import index_lease, run_index
from kohaku_ray.engine.jobs.index_stream import window_texts
from kohaku_ray.errors import ConfigError, DataError, IndexMismatchError
from kohaku_ray.index.chunks import TokenCounter
from kohaku_ray.index.identity import KEY_BYTES, token_counter
from kohaku_ray.index.nodes import KINDS
from kohaku_ray.index.pending import ParsedParts
from kohaku_ray.index.store import Index, all_files
from kohaku_ray.pages import terminal
from kohaku_ray.sample import path as sample_path


@pytest.fixture
def config_of(tiny_encoder):
    """Make the configuration of an index: its documents, its place, one encoder that loads at once."""

    def make(documents: Path, index: Path, *overrides: str) -> Config:
        defaults = [f"documents.paths=[{documents}]", "documents.metadata=null", f"index.path={index}"]
        defaults += ["index.encoders=1", f"index.encoder.model={tiny_encoder}"]
        return load_config("demo", [*defaults, *overrides])

    return make


def test_of_two_jobs_that_build_one_index_the_second_is_refused(config_of, tmp_path):
    """The end of one removed the other's parts, which then found "no document has any text to search"."""
    config = config_of(write(tmp_path / "docs", a__md="# a\n\nThe hall drew 41 MW."), tmp_path / "index")
    refused = pytest.raises(
        DataError, match=r"index .*/index belongs to process \d+ on .*: wait for the job .* index\.path"
    )
    with index_lease(config.index.path).hold(), refused:
        run_index(config)


def counter_of(config: Config) -> TokenCounter:
    return token_counter(config.index.encoder.model, config.index.encoder.revision)


def write(folder: Path, **files: str | bytes) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        path = folder / name.replace("__", ".")
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


BAD = {
    "junk__md": b"\x7fELF\x00\x01\x02" * 40,
    "latin__txt": b"caf\x81 au lait",
    "broken__json": '{"document_id": "x", "sections": [',
    "wrong__json": json.dumps({"document_id": "w", "sections": [{"title": "t", "paragraphs": [{"text": 17}]}]}),
    "colon__json": json.dumps({"document_id": "x" * 300, "title": "t", "text": "Some text.", "sections": []}),
    "empty__md": "",
}


@pytest.fixture(scope="module")
def indexed(cluster, tmp_path_factory) -> tuple[Config, int, str]:
    """The configuration of the sample collection beside bad files, the exit code of its job, and what it printed."""
    home = tmp_path_factory.mktemp("indexed")
    folder = write(home / "in", good__md="# Good\n\nA sentence that stays.", twin__txt="A text that is fine.", **BAD)
    write(folder / "deep", twin__txt="The same name in another directory.")
    paths = f"['sample:documents', '{folder}']"
    settings = {"documents.paths": paths, "index.path": f"{home}/index", "index.encoders": 2}
    with redirect_stdout(io.StringIO()) as printed:
        code = main(["index", "demo", *flags(settings)])
    return load_config("demo", [f"{key}={value}" for key, value in settings.items()]), code, printed.getvalue()


def test_the_job_makes_the_index_that_one_process_makes(indexed, tmp_path):
    """The stages that all other tests use where the job is not their subject."""
    config, _, printed = indexed
    index = Index.open(config.index.path)
    here = config.model_copy(update={"index": config.index.model_copy(update={"path": f"{tmp_path}/index"})})
    counts = index_here(here)["counts"]
    alone = Index.open(here.index.path)
    names = ("n_documents", "n_nodes", "n_sentences", "n_terms", "n_encoded", "n_vectors")
    assert {name: index.manifest["counts"][name] for name in names} == {name: counts[name] for name in names}
    assert f"{counts['n_encoded']} texts encoded" in printed
    for role in ("nodes", "documents"):
        assert index.shards[0].files[role]["checksum"] == alone.shards[0].files[role]["checksum"]
    assert index.rejects.to_pylist() == alone.rejects.to_pylist()
    rows = np.arange(len(index.nodes))
    np.testing.assert_allclose(index.node_vectors(rows), alone.node_vectors(rows), atol=1e-5)
    kinds = [KINDS[code] for code in index.nodes.kind]
    assert kinds.count("sentence") == counts["n_sentences"] > 500
    assert len(index.documents) == len(list(Path(sample_path("documents")).iterdir())) + 3
    documents = {row["doc_id"]: row for row in index.documents.to_pylist()}
    assert documents["kestrel2024"]["url"] == "https://example.org/reports/kestrel2024-power"


def test_vectors_are_the_encoders_and_parents_their_childrens_mean(sample_here):
    index = Index.open(sample_here)
    encoder = make_encoder(load_config("demo"))
    sentences = np.flatnonzero(index.nodes.kind == KINDS.index("sentence"))[::40]
    texts = [index.nodes.text_of(int(row)) for row in sentences]
    np.testing.assert_allclose(index.node_vectors(sentences), encoder.encode_passages(texts), atol=1e-5)
    paragraph = int(np.flatnonzero(index.nodes.kind == KINDS.index("paragraph"))[5])
    child_texts = [index.nodes.text_of(row) for row in index.nodes.children(paragraph)]
    assert index.nodes.tokens[paragraph] == counter_of(load_config("demo"))(child_texts).sum() > 0
    section = int(np.flatnonzero(index.nodes.kind == KINDS.index("section"))[3])
    children = np.array(index.nodes.children(section))
    lengths = np.array([len(index.nodes.text_of(int(row))) for row in children], float)
    mean = lengths @ index.node_vectors(children)
    np.testing.assert_allclose(index.node_vectors(np.array([section]))[0], mean / np.linalg.norm(mean), atol=1e-5)


def gathered(config, *file_lists, n_encoders):
    """What tasks that parse lists of files leave: the work, and blocks of texts in the order of the lists."""
    firsts = np.cumsum([0, *map(len, file_lists)]).tolist()
    batches = [
        pa.table(
            {
                "at": range(first, first + len(files)),
                "file": list(map(str, files)),
                "name": [file.name for file in files],
            }
        )
        for first, files in zip(firsts, file_lists, strict=False)
    ]
    tables = [parse(batch, config, "j") for batch in batches]
    work, *_ = survey(config, "j", 2.0**40)
    ParsedParts(config.index.path, "j").clear()
    window = sorted_window(pa.concat_tables(tables), n_encoders).to_pylist()
    for block in window:
        block["shard"] = [sorted(shards) for shards in block["shard"]]  # of a text in several, in no order
    return work, window


def test_texts_come_once_the_longest_first_in_blocks_of_like_cost(tmp_path, config_of):
    stories = {
        f"story{part}__txt": " ".join(
            f"{'Very ' * (n % 23)}Long rack {n} of hall {part} drew {n * 7 % 997} kW." for n in range(part, 400)
        )
        + " This one stands in every story."
        for part in range(3)
    }
    folder = write(tmp_path / "in", **stories)
    config = config_of(folder, tmp_path / "index")
    files = sorted(folder.iterdir())
    work, texts = gathered(config, files[:1], files[1:], n_encoders=2)
    together = [
        {"key": key, "n_tokens": n, "text": text}
        for block in texts
        for key, n, text in zip(block["key"], block["n_tokens"], block["text"], strict=True)
    ]
    assert work.n_texts == len(together) == len({row["text"] for row in together}) == 400 + 399 + 398 + 1
    assert together == sorted(together, key=lambda row: (-row["n_tokens"], row["key"]))
    n_tokens = counter_of(config)([row["text"] for row in together]) + 2
    assert [row["n_tokens"] for row in together] == n_tokens.tolist()
    costs = [sum(block["n_tokens"]) for block in texts]
    assert sum(costs) == work.n_tokens
    assert len(costs) > 4
    assert max(costs[:-1]) - min(costs[:-1]) <= together[0]["n_tokens"]
    assert gathered(config, files[1:], files[:1], n_encoders=2) == (work, texts)


def test_texts_of_rejected_files_are_no_work(tmp_path, config_of):
    first = write(tmp_path / "a", same__txt="Taken from the first file of that name.", broken__pdf=b"%PDF-1.7 no")
    second = write(tmp_path / "b", same__txt="Never read.")
    config = config_of(first, tmp_path / "index")
    work, _ = gathered(config, sorted(second.iterdir()), sorted(first.iterdir()), n_encoders=1)
    assert (work.n_texts, work.n_documents) == (1, 1)
    assert [Path(file).relative_to(tmp_path).as_posix() for file, _ in work.rejects] == ["a/broken.pdf", "b/same.txt"]
    assert "rename one of them" in work.rejects[1][1]


@pytest.mark.parametrize(
    ("n_tokens", "n_encoders", "sizes"),
    [
        ([], 2, []),
        ([1], 2, [1]),
        ([9000, 10, 10, 10], 2, [1, 3]),  # a text dearer than a block has one to itself
        ([4] * 10_000, 1, [1024] * 9 + [784]),  # small ones would not pay
        ([4] * 100_000, 1, [3125] * 29 + [2343, 1758, 1318]),  # the last ones end together
        ([1] * 1_000_000, 1, [8192, 8192]),
    ],
)
def test_blocks_are_neither_tiny_nor_too_few_nor_too_long(n_tokens, n_encoders, sizes):
    bounds = _bounds(np.array(n_tokens, np.int64), n_encoders)
    assert bounds[-1] == len(n_tokens)
    assert np.diff(bounds)[: len(sizes)].tolist() == sizes
    assert (np.diff(bounds) > 0).all()
    assert len(set(n_tokens)) > 1 or (np.diff(np.diff(bounds)) <= 0).all()


@pytest.mark.parametrize("n_encoders", [1, 2])
@pytest.mark.parametrize(("n_tokens", "rows"), [(32, 4096), (200, 1024), (3, 43_690)])
def test_an_encoder_on_a_gpu_gets_windows_of_four_blocks_of_262144_tokens_in_blocks_of_131072(
    n_encoders, n_tokens, rows
):
    n_texts = window_texts(Encoders(n_encoders, gpu=True))
    assert n_texts * 32 == n_encoders * 4 * 262_144
    numbers = np.arange(n_texts)
    keys = [number.to_bytes(KEY_BYTES, "big") for number in numbers.tolist()]
    columns = [keys, np.full(n_texts, n_tokens), numbers.astype(str), numbers % 2, [[number] for number in numbers]]
    texts = pa.table(columns, schema=TEXT_SCHEMA)
    blocks = sorted_window(texts, n_encoders, gpu=True)
    sizes = pc.list_value_length(blocks["text"]).to_pylist()
    assert sum(sizes) == n_texts
    assert min(sizes[:-1], default=rows) * n_tokens >= min(131_072 - n_tokens, n_texts * n_tokens)
    assert sizes[0] == min(rows, n_texts)
    assert [int(text) for block in blocks["text"].to_pylist() for text in block] == numbers.tolist()
    assert [ids for block in blocks["ids"].to_pylist() for ids in block] == [[number] for number in numbers.tolist()]


def test_a_window_of_encoders_on_cpus_is_the_same_for_any_number_of_them():
    assert {window_texts(Encoders(n, gpu=False)) for n in (1, 2, 8)} == {65_536}


@pytest.mark.slow
def test_indexing_again_encodes_only_what_is_new_and_a_job_that_fails_or_loses_something_leaves_the_index(
    cluster, tmp_path, monkeypatch, config_of
):
    folder = write(
        tmp_path / "in",
        one__md="# One\n\nThe first hall draws 4 MW. It is cooled by air.",
        two__md="# Two\n\nThe second hall draws 5 MW. It is cooled by water.",
    )
    config = config_of(folder, tmp_path / "index")
    first, again = (index_here(config)["counts"] for _ in range(2))
    assert (first["n_encoded"], first["n_reused"]) == (4, 0)
    assert (again["n_encoded"], again["n_reused"]) == (0, 4)
    write(
        folder, two__md="# Two\n\nThe second hall draws 6 MW. It is cooled by water.", three__md="# Three\n\nA third."
    )
    os.unlink(folder / "one.md")
    before = {path: path.read_bytes() for path in (tmp_path / "index").rglob("*") if path.is_file()}

    def fail(*_):
        raise DataError("no encoder today")

    def parse_alone(config, blocks, *_):
        blocks.materialize()
        return ()

    whole = index_stream._parse
    with monkeypatch.context() as patch:
        patch.setattr(index_stream, "_encode", fail)
        with pytest.raises(DataError, match="no encoder today"):
            run_index(config)
        patch.setattr(index_stream, "_encode", parse_alone)
        patch.setattr(index_stream, "_parse", lambda config, files, name, keep: whole(config, files[:-1], name, keep))
        with pytest.raises(DataError, match="2 files given to parse, 1 came back"):
            run_index(config)
    wait_for_the_reducer()
    now = {path: path.read_bytes() for path in (tmp_path / "index").rglob("*") if path.is_file()}
    assert now == before, "a job that fails while it parses or encodes leaves the index as it was"
    last = index_here(config)["counts"]
    assert (last["n_encoded"], last["n_reused"]) == (2, 1)
    index = Index.open(str(tmp_path / "index"))
    texts = [index.nodes.text_of(row) for row in range(len(index.nodes))]
    assert index.documents["doc_id"].to_pylist() == ["three", "two"]
    assert not [text for text in texts if "first" in text or "5 MW" in text]
    kept = {name.name for name in (tmp_path / "index").rglob("*") if name.is_file()}
    assert kept == {"manifest.json", *(os.path.basename(entry["name"]) for entry in all_files(index.manifest).values())}

    def lose(*_):
        return {"n_documents": 1, "n_rejects": 0, "note": ""}

    monkeypatch.setattr(index_stream, "join_shards", lose)
    with pytest.raises(DataError, match=r"gave 2 documents and rejected 0 files but the index at .* has 1 and 0"):
        run_index(config)


def test_every_bad_file_is_a_reject_with_its_reason(indexed):
    config, code, printed = indexed
    assert code == 3
    index = Index.open(config.index.path)
    rejects = {Path(row["file"]).name: row["reason"] for row in index.rejects.to_pylist()}
    assert set(rejects) == {name.replace("__", ".") for name in BAD}
    assert "is ELF, not MD" in rejects["junk.md"]
    assert "UTF-8" in rejects["latin.txt"]
    assert "sections[0].paragraphs[0].text" in rejects["wrong.json"]
    assert "has 300 characters" in rejects["colon.json"]
    of_sample = {Path(file).stem for file in Path(sample_path("documents")).iterdir()}
    assert set(index.documents["doc_id"].to_pylist()) - of_sample == {"deep-twin", "good", "in-twin"}, (
        "files of one name get their folder"
    )
    assert "6 files rejected" in printed


@pytest.mark.slow
def test_a_file_that_takes_too_long_or_is_a_pipe_is_a_reject_and_holds_nothing_up(tmp_path, config_of):
    endless = "Rack 7 drew 40 kW, and so on. " * 500_000
    folder = write(tmp_path / "in", good__md="# Good\n\nA sentence that stays.", endless__txt=endless)
    os.mkfifo(folder / "pipe.md")
    work = index_here(config_of(folder, tmp_path / "index", "documents.timeout_s=1"))["work"]
    rejects = {Path(file).name: reason for file, reason in work.rejects}
    assert set(rejects) == {"endless.txt", "pipe.md"}
    assert "are not parsed after 1 s" in rejects["endless.txt"]
    assert "set documents.timeout_s above 1" in rejects["endless.txt"]
    assert "is no regular file" in rejects["pipe.md"]
    assert Index.open(str(tmp_path / "index")).documents["doc_id"].to_pylist() == ["good"]


def wait_for_the_reducer(longest_s: float = 5.0) -> None:
    """Wait until the reducer, which goes on without its job, has come and gone; it may be too fast to be seen."""
    deadline, seen = time.monotonic() + longest_s, False
    while time.monotonic() < deadline:
        titles = [title for title, _ in our_processes()]
        is_there = any(title.startswith("ray::reduce_shard") for title in titles)
        if seen and not is_there:
            return
        seen |= is_there
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("index.encoder.dim=128", r"without encoder\.dim but the configuration says 128"),
        ("index.encoder.query_prompt='query: '", r"without encoder\.query_prompt but the configuration says 'query: '"),
        ("index.weights=tokens", r"weights 'chars' but the configuration says 'tokens'"),
    ],
)
def test_an_index_of_other_settings_is_refused_with_both_values(sample_here, override, message):
    with pytest.raises(IndexMismatchError, match=message):
        LocalIndex.open(load_config("demo", [f"index.path={sample_here}", override]))


SAYING_EACH_BLOCK = """
import sys
from kohaku_ray.pages import terminal
terminal.LINES_EVERY_S = (0.0, 0.0)  # on a fast machine the first line, after 2 s, would be the last
from kohaku_ray.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_an_interrupted_job_repeats_no_finished_block_and_a_large_document_is_spread_over_the_encoders(
    cluster, tmp_path, capsys, monkeypatch
):
    import ray.data

    sentences = [f"Sensor {n} in hall {n % 13} reported {n * 31 % 1009} watts at minute {n}." for n in range(2400)]
    folder = write(tmp_path / "in", long__txt=" ".join(sentences))
    settings = {"documents.paths": f"[{folder}]", "documents.metadata": "null", "index.path": str(tmp_path / "index")}
    settings |= {"cluster.address": cluster}
    command = [sys.executable, "-c", SAYING_EACH_BLOCK, "index", "demo", *flags(settings | {"index.encoders": "1"})]
    job = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    for line in job.stderr:
        if line.startswith("encode"):
            n_done = int(line.split(" of ")[0].split()[-1])
            break
    os.kill(job.pid, signal.SIGKILL)
    job.wait()
    time.sleep(1)
    assert not (tmp_path / "index" / "manifest.json").exists()
    # On a busy machine one encoder would have done all before the other has loaded.
    monkeypatch.setattr(ray.data.DataContext.get_current(), "wait_for_min_actors_s", 300)
    monkeypatch.setattr(terminal, "LINES_EVERY_S", (0.0, 0.0))
    capsys.readouterr()
    again = [f"{key}={value}" for key, value in (settings | {"index.encoders": "2"}).items()]
    summary = run_index(load_config("demo", again))
    left = sum(summary.texts_by_encoder)
    assert n_done > 100
    assert 0 < left <= len(sentences) - n_done
    assert len(summary.texts_by_encoder) == 2
    progress = [line for line in capsys.readouterr().err.splitlines() if line.startswith("encode")]
    assert len(progress) > 1, "it says how far it is before all is done"
    assert progress[-1].endswith(f" {left} of {left} texts")
    assert "/s  " in progress[-1]  # before the first texts are done there is no speed
    assert Index.open(str(tmp_path / "index")).manifest["counts"]["n_vectors"] >= len(sentences)
    assert not list((tmp_path / "index").glob("pending/*"))


@pytest.mark.slow
def test_news_files_become_documents_with_chunks_and_every_row_is_one_or_a_reject(tmp_path, monkeypatch, tiny_encoder):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3]))
    sample = Path(sample_path("news"), "articles.csv").read_bytes()
    header = sample.decode().splitlines()[0]
    extra = [
        "1001,other,,,x.example,Other,Ce numéro est déjà pris.,0,,",
        "9001,digue-rupture,,,x.example,Again,Ce nom est déjà pris.,0,,",
        "9002,kept,,,x.example,Kept,Ce document reste.,0,,",
        "9002,kept,,,x.example,Kept,Cette ligne est en double.,1,,",
        "9003,empty,,,x.example,Empty,,0,,",
    ]
    more = "\n".join([header, *extra, ""])
    folder = write(tmp_path / "in", articles__csv=sample, more__csv=more, wrong__csv="text\nNo columns.\n")
    overrides = [
        "system=tests.own_system.news_pieces:SYSTEM",
        f"documents.paths=[{folder}]",
        f"index.path={tmp_path}/index",
    ]
    config = load_config(None, [*overrides, f"index.encoder.model={tiny_encoder}"])
    found = index_here(config)
    counts, work, index = found["counts"], found["work"], Index.open(config.index.path)
    rows = list(csv.DictReader(io.StringIO(sample.decode())))
    assert counts["n_paragraphs"] == len(rows) + 1
    assert index.documents["doc_id"].to_pylist() == sorted({row["doc_id"] for row in rows} | {"kept"})
    rejects = {row["file"].removeprefix(f"{folder}/"): row["reason"] for row in index.rejects.to_pylist()}
    parts = ("line 5", "line 6", "other", "digue-rupture")
    assert set(rejects) == {"wrong.csv", *(f"more.csv: {part}" for part in parts)}
    assert rejects["more.csv: other"] == (
        f"par_id '1001' is already that of {folder}/articles.csv: digue-rupture: rename one of them"
    )
    assert rejects["more.csv: digue-rupture"].startswith("doc_id 'digue-rupture' is already that of")
    assert "lacks the columns par_id" in rejects["wrong.csv"]
    assert (work.n_files, len(work.rejects)) == (3, 5)
    nodes, paragraph = index.nodes, index.nodes.row_of("kept:sec0:p0")
    assert nodes.attributes_of(paragraph)["document_netloc"] == "x.example"
    chunk = nodes.row_of("digue-rupture:c1")
    assert nodes.tokens[chunk] == counter_of(config)([nodes.text_of(chunk)])[0] > 0
    assert nodes.tokens[0] == sum(nodes.tokens[row] for row in nodes.children(0))
    assert counts["n_chunks"] == len(index.shards[0].vectors(("chunk",))) > 1
    vectors = index.node_vectors(np.array([chunk]))
    np.testing.assert_allclose(vectors, make_encoder(config).encode_passages([nodes.text_of(chunk)]), atol=1e-5)


@pytest.mark.parametrize(
    ("overrides", "kind", "message"),
    [
        (["index.path={}/file/index"], DataError, r"cannot write .*file/index"),
        (["index.encoders=64"], ConfigError, r"the cluster has 6 CPUs but 64 encoders need 64"),
        (["index.encoder.model=package:no_such_encoder"], ConfigError, r"package:no_such_encoder"),
        # An encoder that loads nowhere: found by its files, refused by the worker that loads it.
        (["index.encoder.model={}/model"], ConfigError, r"model"),
        (["documents.paths=[{}/void]"], DataError, r"void holds no documents"),
        (["documents.paths=[{}/junk]"], DataError, r"of 1 file none can be used; the first: .*junk.md"),
    ],
)
def test_what_cannot_work_is_said(cluster, tmp_path, config_of, overrides, kind, message):
    """Before any encoding, or as the error of the stage that met it."""
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "void").mkdir()
    write(tmp_path / "model", config__json="{}", modules__json="[]")
    write(tmp_path / "junk", junk__md=b"\x00\x01")
    folder = write(tmp_path / "in", a__md="# A\n\nText.")
    with pytest.raises(kind, match=message):
        run_index(config_of(folder, tmp_path / "i", *(override.format(tmp_path) for override in overrides)))
