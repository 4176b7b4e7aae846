"""Bundles: the same bytes for the same run, replayed without a model, and refused when they are not whole."""

from __future__ import annotations

import asyncio
import csv
import importlib.util
import json
import re
import runpy
import shutil
import sys
import threading
import zipfile
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from kit.runs_here import index_here, run_here

from kohaku_ray import sample
from kohaku_ray.answering import bundle, replay
from kohaku_ray.answering.bundle import MANIFEST, make_bundle, replay_bundle
from kohaku_ray.cli import main
from kohaku_ray.collection.sources import questions_of
from kohaku_ray.config import load_config
from kohaku_ray.errors import CodeRefusedError, ConfigError, ContextOverflowError, DataError
from kohaku_ray.extensions import refuse_named_code
from kohaku_ray.index.store import Index
from kohaku_ray.index.torch_model import load_model
from kohaku_ray.models.prompts import Prompts
from kohaku_ray.records import Reply, digest
from kohaku_ray.sample import path as sample_path
from kohaku_ray.store.directory import facts_checksum
from kohaku_ray.store.segments import Loaded, SegmentStore

DOCUMENTS = sorted(map(str, Path(sample_path("documents")).glob("*.md")))
REPLY = json.dumps(
    {"explanation": "It is said there.", "answer": "It is 12.", "answer_value": 12, "answer_unit": "kWh", "ref_id": []}
)


def settings(home: Path, encoder: str, *more: str) -> list[str]:
    overrides = [f"index.path={home}/index", f"ledger.path={home}/ledger", f"index.encoder.model={encoder}"]
    return [*overrides, f"documents.paths={DOCUMENTS}", "questions.limit=3", "ensemble.members=2", *more]


async def says(request) -> Reply:
    plans = "queries" in str(request.schema)
    return Reply(
        '{"queries": ["energy of a data centre"]}' if plans else REPLY, prompt_tokens=100, completion_tokens=20
    )


async def one_in_two_says(request) -> Reply:
    """Half of the members know the same answer, the others abstain."""
    value = 1383.9 if request.seed % 2 else "is_blank"
    reply = {"explanation": "", "answer": "1383.9 MWh", "answer_value": value, "answer_unit": "MWh"}
    return Reply(json.dumps({**reply, "ref_id": ["halden2023"]}))


@pytest.fixture(scope="module")
def home(tmp_path_factory, tiny_encoder) -> Path:
    """A directory with an index and a finished run of the baseline."""
    home = tmp_path_factory.mktemp("bundles")
    config = load_config("demo", settings(home, tiny_encoder, f"run={home}/run"))
    index_here(config)
    run_here(config)
    return home


@pytest.fixture(scope="module")
def bundled(home) -> str:
    make_bundle(f"{home}/run", f"{home}/run.zip")
    return f"{home}/run.zip"


@pytest.fixture
def make(home, tmp_path, tiny_encoder, monkeypatch):
    """Make a run on the same index, with a ledger of its own, with ``chat`` of a server; returns its directory."""

    def make(*overrides: str, chat=None) -> str:
        defaults = settings(home, tiny_encoder, f"run={tmp_path}/own", f"ledger.path={tmp_path}/ledger", *overrides)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
        monkeypatch.setenv("KOHAKU_MODEL", "small-model")
        return run_here(load_config(["demo", "models/openai"] if chat else "demo", defaults), chat)

    return make


def files_in(path: str) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def zipped(files: dict[str, bytes], to: Path) -> str:
    """Zip files again."""
    with zipfile.ZipFile(to, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return str(to)


def with_rows(data: bytes, change) -> bytes:
    """Change rows of a Parquet table."""
    table = pq.read_table(pa.BufferReader(data))
    rows = table.to_pylist()
    change(rows)
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), sink)
    return sink.getvalue().to_pybytes()


def texts_in(files: dict[str, bytes]) -> dict[str, str]:
    """All that can be read in a bundle, by file."""
    texts = {}
    for name, data in files.items():
        if name.endswith(".parquet"):
            texts[name] = json.dumps(pq.read_table(pa.BufferReader(data)).to_pylist(), ensure_ascii=False, default=str)
        elif name.endswith(".arrow"):
            texts[name] = json.dumps(pa.ipc.open_file(pa.BufferReader(data)).read_all().to_pylist(), ensure_ascii=False)
        else:
            texts[name] = data.decode()
    return texts


def test_the_same_run_gives_the_same_bytes(home, bundled):
    make_bundle(f"{home}/run", f"{home}/again.zip")
    assert Path(f"{home}/again.zip").read_bytes() == Path(bundled).read_bytes()


@pytest.mark.parametrize("with_index", [False, True])
def test_a_replay_gives_every_table_again(home, tmp_path, with_index, monkeypatch):
    path = str(tmp_path / "one.zip")
    made = make_bundle(f"{home}/run", path, with_index=with_index)
    assert made.n_replies > 6
    monkeypatch.setattr(replay, "QueryEncoder", None)  # no encoder is loaded
    monkeypatch.setenv("OPENAI_API_KEY", "")
    if with_index:
        files = {name for name in files_in(path) if name.startswith("index/")}
        assert len(files) == sum(file.is_file() for file in Path(f"{home}/index").rglob("*"))
    run = replay_bundle(path)

    async def cell():
        return replay_bundle(path)

    assert asyncio.run(cell()).differences == (), "in a running event loop, as a notebook has"
    assert run.differences == ()
    assert run.scores[0]["metric"] == "wattbot"
    assert run.n_questions == 3


def test_what_a_model_needs_is_recorded(make, tmp_path, tiny_encoder, monkeypatch):
    """A key and an address from the environment, and a tokenizer: gone when the bundle is replayed."""
    monkeypatch.setenv("OPENAI_BASE_URL", "http://secret-host.example/v1")
    shutil.copytree(tiny_encoder, tmp_path / "tokenizer")
    overrides = [f"deployments.gateway.tokenizer={tmp_path}/tokenizer", "kohaku.max_context_tokens=300"]
    run = make(*overrides, chat=says)
    make_bundle(run, f"{tmp_path}/one.zip")
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "KOHAKU_MODEL"):
        monkeypatch.delenv(name)
    shutil.rmtree(tmp_path / "tokenizer")
    texts = texts_in(files_in(f"{tmp_path}/one.zip"))
    assert not [name for name, text in texts.items() if "secret" in text]
    replayed = replay_bundle(f"{tmp_path}/one.zip")
    assert replayed.differences == ()
    assert replayed.model.startswith("openai:small-model")


def test_a_call_that_was_too_long_is_too_long_again(make, tmp_path):
    async def small(request) -> Reply:
        if request.n_chars > 6000:
            raise ContextOverflowError("the prompt was longer than the model takes")
        return await says(request)

    run = make(chat=small)
    make_bundle(run, f"{tmp_path}/one.zip")
    usage = pq.read_table(f"{run}/usage.parquet", columns=["role"])["role"].to_pylist()
    assert "answer" not in usage, "calls without a reply are in no table of calls"
    assert replay_bundle(f"{tmp_path}/one.zip").differences == ()


def test_a_changed_template_is_named_as_other_prompts(bundled, monkeypatch, capsys):
    render = Prompts.render

    def otherwise(self, role, variables):
        prompt = render(self, role, variables)
        return prompt if role != "answer" else type(prompt)(prompt.system, f"{prompt.user} Be brief.", prompt.variables)

    monkeypatch.setattr(Prompts, "render", otherwise)
    assert main(["replay", bundled]) == 1
    assert "run: differs from the bundle\n  prompts: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("votes.parquet", lambda rows: rows[1].update(answer_value="9"), "votes: 1 of 3 rows of votes.parquet differ"),
        ("votes.parquet", lambda rows: rows.pop(), "votes: 1 of 2 rows of votes.parquet differ"),
        ("trace.parquet", lambda rows: rows[2].update(text="x"), "steps: 1 of "),
        # Another processor may round them otherwise; no prompt and no vote is made of them.
        ("trace.parquet", lambda rows: [row.update(scores=[("x", 0.1)]) for row in rows], None),
        ("votes.parquet", lambda rows: rows[0].update(group_weights=[0.3]), None),
        ("usage.parquet", lambda rows: rows[0].update(key="0" * 32), "prompts: 2 of "),
        ("usage.parquet", lambda rows: rows[0].update(wait_s=9.0), None),
    ],
)
def test_a_changed_table_is_named(bundled, tmp_path, file, change, message):
    files = files_in(bundled)
    name = f"run/{file}"
    run = replay_bundle(zipped({**files, name: with_rows(files[name], change)}, tmp_path / "fixed.zip"))
    assert [line for line in run.differences if line.startswith(message or "")] == list(run.differences)
    assert bool(run.differences) == bool(message)


def with_facts(files: dict[str, bytes], **changed) -> dict[str, bytes]:
    """Change facts of the run, and its own checksum with them."""
    facts = {**json.loads(files["run/run.json"]), **changed}
    return {**files, "run/run.json": json.dumps({**facts, "checksum": facts_checksum(facts)}).encode()}


def test_facts_that_the_run_did_not_write_are_named(bundled, tmp_path):
    changed = with_text(files_in(bundled), "run/run.json", b'"wall_s": ', b'"wall_s": 9')
    [line] = replay_bundle(zipped(changed, tmp_path / "fixed.zip")).differences
    assert line == "facts: run.json is not what the run wrote, its checksum is another"


@pytest.mark.parametrize("with_index", [False, True])
def test_a_changed_file_is_named_and_one_with_texts_by_the_checksum_of_the_run(home, tmp_path, with_index):
    made = f"{tmp_path}/one.zip"
    make_bundle(f"{home}/run", made, with_index=with_index)
    files = files_in(made)
    assert ("run/submission.csv" in files) == with_index
    files["run/answers.jsonl"] += b"\n"
    facts = json.loads(files["run/run.json"])
    facts["checksums"]["submission.csv"] = "0" * 32
    files["run/run.json"] = json.dumps({**facts, "checksum": facts_checksum(facts)}).encode()
    if with_index:
        files["run/submission.csv"] += b"\n"
    run = replay_bundle(zipped(files, tmp_path / "fixed.zip"))
    assert run.differences == ("submission.csv: its bytes are others", "answers.jsonl: its bytes are others")


CODE = "from pathlib import Path\nPath('imported').touch()\n"


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("system: kohaku\n", "system: evilmod:SYSTEM\n", "system evilmod:SYSTEM"),
        ("system: kohaku\n", "system: ${NOBODY:-evilmod:SYSTEM}\n", "system evilmod:SYSTEM"),
        ("metrics: null\n", "metrics: [wattbot, evilmod:METRIC]\n", "metric evilmod:METRIC"),
        ("  format: null\n", "  format: evilmod:NEWS\n", "format evilmod:NEWS"),  # attack5 A3
    ],
)
def test_code_that_a_bundle_names_is_not_imported(bundled, tmp_path, monkeypatch, capsys, old, new, named):
    bad = with_code(bundled, tmp_path, monkeypatch, old, new)
    refused(bad, rf"{re.escape(named)} is code .*; nothing was imported: give --trust-code", capsys)
    assert not (tmp_path / "imported").exists()
    main(["replay", "--trust-code", bad])
    assert (tmp_path / "imported").exists()
    assert "--trust-code" not in capsys.readouterr().err
    sys.modules.pop("evilmod", None)


def with_code(bundled, directory, monkeypatch, old, new):
    (directory / "evilmod.py").write_text(CODE)
    monkeypatch.chdir(directory)
    files = files_in(bundled)
    config = "\n" + files["run/config.yaml"].decode()
    before, line, after = config.partition(f"\n{old}" if old.startswith("system") else old)
    assert line
    files["run/config.yaml"] = f"{before}{line[: -len(old)]}{new}{after}".encode()
    return zipped(files, directory / "bad.zip")


def test_code_that_a_replay_does_not_need_is_not_imported(bundled, tmp_path, monkeypatch):
    """What is recorded needs no encoder; where one would be loaded all the same, its code is refused."""
    for old, new in (
        ("trust_remote_code: false\n", "trust_remote_code: true\n"),
        ("    system: kohaku\n", "    system: evilmod:SYSTEM\n"),  # of a deployment: replies are recorded, too
    ):
        assert replay_bundle(with_code(bundled, tmp_path, monkeypatch, old, new)).same
    for setting in ("model=package:evilmod", "trust_remote_code=true"):
        with refuse_named_code("trust it"), pytest.raises(CodeRefusedError, match=r"is code .*: trust it"):
            load_model(load_config("default", [f"index.encoder.{setting}"]).index.encoder)
    assert not (tmp_path / "imported").exists()


def test_without_the_index_replies_alone_quote_documents(home, bundled, make, tmp_path):
    sentences = {
        " ".join(row["text"].split())
        for row in Index.open(f"{home}/index").nodes.table.to_pylist()
        if row["kind"] in ("sentence", "paragraph") and len(row["text"] or "") > 40
    }
    assert len(sentences) > 100
    replies = " ".join(row["reply"] or "" for row in pq.read_table(f"{home}/run/answers.parquet").to_pylist())
    replies += " ".join(texts_in({n: d for n, d in files_in(bundled).items() if n.startswith("ledger/")}).values())
    quoted = {
        sentence
        for sentence in sentences
        if sentence in replies or json.dumps(sentence, ensure_ascii=False)[1:-1] in replies
    }
    texts = {name: " ".join(text.split()) for name, text in texts_in(files_in(bundled)).items()}
    assert quoted
    assert not [(name, item) for item in sentences - quoted for name, text in texts.items() if item in text]
    # With a model that quotes nothing, none at all; and with the index, the trace has its texts.
    run = make(chat=says)
    make_bundle(run, f"{tmp_path}/without.zip")
    make_bundle(run, f"{tmp_path}/with.zip", with_index=True)
    without, whole = (files_in(f"{tmp_path}/{name}.zip") for name in ("without", "with"))
    trace = " ".join(" ".join(texts_in(without).values()).split())
    assert not [sentence for sentence in sentences if sentence in trace]
    assert [sentence for sentence in sentences if sentence in str(texts_in({"t.parquet": whole["run/trace.parquet"]}))]


def test_gold_materials_stay_out_and_the_score_is_the_same(make, home, tmp_path):
    rows = list(csv.DictReader(Path(sample_path("questions.csv")).read_text(encoding="utf-8").splitlines()))
    with (tmp_path / "q.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0], "supporting_materials"])
        writer.writeheader()
        writer.writerows({**row, "supporting_materials": "A sentence of the document."} for row in rows)
    make_bundle(make(f"questions.path={tmp_path}/q.csv"), f"{tmp_path}/one.zip")
    assert "A sentence of the document." not in str(texts_in(files_in(f"{tmp_path}/one.zip")))
    (tmp_path / "q.csv").unlink()
    assert replay_bundle(f"{tmp_path}/one.zip").differences == ()


def test_own_templates_and_a_planner_per_member_are_replayed(make, home, tmp_path):
    templates = Path(bundle.__file__).parents[1] / "systems" / "kohaku" / "templates"
    shutil.copytree(templates, tmp_path / "mine")
    run = make(f"prompts={tmp_path}/mine", "ensemble.scope=question", "ensemble.members=3", "ensemble.early_stop=value")
    make_bundle(run, f"{tmp_path}/one.zip")
    shutil.rmtree(tmp_path / "mine")
    assert replay_bundle(f"{tmp_path}/one.zip").differences == ()


def test_the_index_must_be_the_same(home, bundled, tmp_path, tiny_encoder, monkeypatch):
    shutil.copytree(f"{home}/index", tmp_path / "moved")
    assert replay_bundle(bundled, f"{tmp_path}/moved").differences == ()
    with pytest.raises(DataError, match=r"holds no index, and there is no index at .*none.*--index DIR"):
        replay_bundle(bundled, f"{tmp_path}/none")
    files = files_in(bundled)
    values = yaml.safe_load(files["run/config.yaml"])
    values["index"]["path"] = "/home/maker/project/moved"
    files["run/config.yaml"] = yaml.safe_dump(values).encode()
    elsewhere = zipped(files, tmp_path / "elsewhere.zip")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(DataError, match=r"no index at /home/maker/project/moved.* a directory of such a name here"):
        replay_bundle(elsewhere)
    with pytest.raises(DataError, match=r"no index: `kohaku-ray index reproduce` makes it, here at runs/rep"):
        replay_bundle(sample.path("bundles/SmolLM2-135M.zip"))  # users6.md 10: a path of the maker's machine
    monkeypatch.chdir(tmp_path)  # where the end of that path is one
    assert replay_bundle(elsewhere).same
    overrides = settings(tmp_path, tiny_encoder, f"run={tmp_path}/run", f"documents.paths={DOCUMENTS[:1]}")
    index_here(load_config("demo", overrides))
    with pytest.raises(DataError, match=r"is not that of .* or from other documents .*--index DIR"):
        replay_bundle(bundled, f"{tmp_path}/index")
    manifest = json.loads((tmp_path / "moved" / "manifest.json").read_text())
    del manifest["checksum"]
    manifest["settings"]["weights"] = "uniform"
    whole = {**manifest, "checksum": digest(manifest, 16, "")}
    (tmp_path / "moved" / "manifest.json").write_text(json.dumps(whole))
    with pytest.raises(DataError, match="made with other settings or"):
        replay_bundle(bundled, f"{tmp_path}/moved")


def test_an_index_is_digested_in_pieces_as_it_is_whole(home, monkeypatch):
    index = Index.open(f"{home}/index")
    whole = bundle.identify_index(index)
    for n_rows in (1, 7, len(index.nodes)):
        monkeypatch.setattr(bundle, "_ROWS_AT_ONCE", n_rows)
        assert bundle.identify_index(index) == whole


def test_whatever_a_run_reads_of_an_index_identifies_it(tmp_path, tiny_encoder):
    """The demo's index has the texts of `reproduce`'s and other tables: it passed, and 24 of 30 rows differed."""

    def identify(document: str, metadata: str = "sample:metadata.csv") -> str:
        documents = [f"documents.paths=['{sample_path(document)}']", f"documents.metadata={metadata}"]
        config = load_config("demo", settings(tmp_path, tiny_encoder, *documents))
        index_here(config)
        return bundle.identify_index(Index.open(config.index.path))

    moved = tmp_path / "moved.csv"  # submissions give the addresses of documents
    moved.write_text(Path(sample_path("metadata.csv")).read_text().replace("//example.org/", "//example.net/"))
    of_tree = identify("trees/halden2023.json")
    assert len({of_tree, identify("documents/halden2023.md"), identify("trees/halden2023.json", str(moved))}) == 3
    assert identify("trees/halden2023.json") == of_tree


def test_a_replay_without_faiss_names_the_extras_and_compares_nothing(bundled, monkeypatch):
    """It said "differs from the bundle" of a plain install, with a lower score."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'kohaku-ray\[cpu\]', or 'kohaku-ray\[gpu\]'"):
        replay_bundle(bundled)


def test_what_cannot_be_replayed_is_not_bundled(home, make, tmp_path, monkeypatch):
    out = f"{tmp_path}/one.zip"
    with pytest.raises(DataError, match="is no finished run: "):
        make_bundle(f"{home}/index", out)
    shutil.copytree(f"{home}/run", tmp_path / "run")
    (tmp_path / "run" / "votes.parquet").write_bytes(b"x")
    with pytest.raises(DataError, match=r"votes.parquet is not what the run wrote"):
        make_bundle(f"{tmp_path}/run", out)
    of_a_server = make(chat=says)
    monkeypatch.delenv("KOHAKU_MODEL")
    with pytest.raises(ConfigError, match="was made with KOHAKU_MODEL in the environment: set what it was made with"):
        make_bundle(of_a_server, out)
    monkeypatch.setattr(replay, "questions_of", lambda config: questions_of(config)[:2])
    with pytest.raises(DataError, match=r"is not the same when it is made again .*votes: 1 of 3 rows"):
        make_bundle(f"{home}/run", out)
    monkeypatch.setattr(SegmentStore, "load", lambda self, mine: Loaded({}, ()))
    with pytest.raises(DataError, match=r"lacks (\d+) of \1 replies"):
        make_bundle(f"{home}/run", out)
    assert not Path(out).exists()


# Bad input: one plain line each, exit 2.


@pytest.mark.parametrize("address", ["s3://b/${SECRET_OF_MINE}?endpoint_override={here}&scheme=http", "${ELSEWHERE}"])
def test_a_bundle_tells_no_address_what_the_environment_holds(bundled, tmp_path, monkeypatch, capsys, address):
    monkeypatch.setenv("SECRET_OF_MINE", "hunter2secret")
    monkeypatch.setenv("ELSEWHERE", "s3://bucket/index")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "hunter2secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2secret")
    with ThreadingTCPServer(("127.0.0.1", 0), BaseRequestHandler) as server:
        asked = []
        monkeypatch.setattr(server, "process_request", lambda request, peer: (asked.append(peer), request.close()))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = address.replace("{here}", f"127.0.0.1:{server.server_address[1]}")
        files = files_in(bundled)
        values = yaml.safe_load(files["run/config.yaml"])
        values["index"]["path"] = address
        files["run/config.yaml"] = yaml.safe_dump(values).encode()
        refused(
            zipped(files, tmp_path / "bad.zip"), r"names one at an address, .* that was not asked: give --index", capsys
        )
        server.shutdown()
    assert not asked


def refused(path: Path | str, message: str, capsys, code: int = 2) -> None:
    before = set(Path(path).parent.rglob("*"))
    assert main(["replay", str(path)]) == code
    error = capsys.readouterr().err
    assert re.search(message, error), error
    assert len(error.strip().splitlines()) == 1
    assert set(Path(path).parent.rglob("*")) == before


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: b"id,answer\n1,2\n" * 1000, "is no bundle, or a torn one"),
        (lambda data: data[: len(data) // 2], "is no bundle, or a torn one"),
        (lambda data: data[:2000] + bytes([data[2000] ^ 1]) + data[2001:], "torn one"),
    ],
    ids=["no zip", "torn", "byte"],
)
def test_a_file_that_is_no_whole_bundle_is_refused_in_one_line(bundled, tmp_path, capsys, damage, message):
    (tmp_path / "bad.zip").write_bytes(damage(Path(bundled).read_bytes()))
    refused(tmp_path / "bad.zip", message, capsys)
    refused(tmp_path / "none.zip", "no such file", capsys)
    (tmp_path / "directory").mkdir()
    refused(tmp_path / "directory", "is no bundle", capsys)


def test_a_bundle_that_is_too_large_is_not_unpacked(bundled, capsys, monkeypatch):
    monkeypatch.setattr(bundle, "MOST_BYTES", 1000)
    refused(bundled, r"unpacks to .* bytes, at most 1,000 bytes are read: leave the index out", capsys)


def with_text(files: dict[str, bytes], start: str, old: bytes, new: bytes) -> dict[str, bytes]:
    """Change the text of the file whose name begins so."""
    [name] = [name for name in files if name.startswith(start)]
    assert old in files[name]
    return {**files, name: files[name].replace(old, new, 1)}


def without(files: dict[str, bytes], word: str) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if word not in name}


def with_manifest(files: dict[str, bytes], **values) -> dict[str, bytes]:
    return {**files, MANIFEST: json.dumps({**json.loads(files[MANIFEST]), **values}).encode()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda files: with_manifest(files, format=1, version="0.1.0"),
            r"has bundle format 1 \(written by kohaku_ray 0.1.0\), .*, reads 3: make it anew .* `kohaku-ray bundle RUN",
        ),
        (lambda files: {"a.txt": b"x", MANIFEST: b"{}"}, "has bundle format None"),
        (lambda files: with_manifest(files, index=3), r"bundle.json is damaged \(index"),
        (lambda files: with_manifest(files, questions="../../etc/passwd"), r"bundle.json is damaged \(questions"),
        (lambda files: with_manifest(files, models=[]), r"bundle.json is damaged \(models"),
    ],
)
def test_a_bundle_whose_manifest_is_not_its_own_is_refused(bundled, tmp_path, capsys, change, message):
    refused(zipped(change(files_in(bundled)), tmp_path / "bad.zip"), message, capsys)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda files: with_text(files, "ledger/", b"explanation", b"explanatiom"), "is not what its name says"),
        (lambda files: {**files, "../out": b"out"}, "leads out of the bundle"),
        (lambda files: {**files, "/etc/out": b"out"}, "leads out of the bundle"),
        (lambda files: {**files, "a/../../out": b"out"}, "leads out of the bundle"),
        (lambda files: without(files, "questions"), r"holds no inputs/questions\.\*"),
        (lambda files: without(files, "trace"), r"holds no run/trace\.parquet"),
        (lambda files: without(files, "recorded"), r"holds no recorded\.parquet"),
    ],
)
def test_a_bundle_that_lacks_files_or_leads_out_is_refused(bundled, tmp_path, capsys, change, message):
    refused(zipped(change(files_in(bundled)), tmp_path / "bad.zip"), message, capsys)


def test_a_bundle_may_name_settings_that_left_at_their_defaults(bundled, tmp_path):
    files = files_in(bundled)
    values = yaml.safe_load(files["run/config.yaml"])
    values["kohaku"]["check_value"] = False
    files["run/config.yaml"] = yaml.safe_dump(values).encode()
    assert replay_bundle(zipped(files, tmp_path / "older.zip")).same


@pytest.mark.parametrize("key", ["deployments", "kohaku", "ensemble"])
@pytest.mark.parametrize("other", ["evilmod:SYSTEM", True, ["evilmod:A"], {"evilmod": "evilmod:A"}])
def test_a_section_that_is_none_is_refused_in_one_line_or_not_needed(home, bundled, tmp_path, monkeypatch, key, other):
    (tmp_path / "evilmod.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    files = files_in(bundled)
    values = yaml.safe_load(files["run/config.yaml"])
    files["run/config.yaml"] = yaml.safe_dump({**values, key: other}).encode()
    bad = zipped(files, tmp_path / "bad.zip")
    if key == "deployments":  # replies are recorded
        assert replay_bundle(bad).same
    else:
        with pytest.raises(ConfigError):
            replay_bundle(bad, f"{home}/index")
    assert not (tmp_path / "imported").exists()


def test_a_bundle_is_packed_anew_from_its_replies_with_what_this_version_makes_of_them(home, bundled, tmp_path, capsys):
    repack = runpy.run_path(str(Path(__file__).parents[2] / "scripts/repack_bundles.py"))["repack"]
    files = files_in(bundled)
    same = zipped(files, tmp_path / "same.zip")
    assert repack(same, f"{home}/index") == []
    assert files_in(same).keys() == files.keys()
    assert files_in(same)["recorded.parquet"] == files["recorded.parquet"]
    was = with_rows(files["run/votes.parquet"], lambda rows: rows[1].update(answer_value="9"))
    older = with_manifest({**files, "run/votes.parquet": was}, index="0" * 16)
    old = zipped(older, tmp_path / "old.zip")
    refused(old, "or from other documents", capsys, 2)
    [change] = repack(old, f"{home}/index")
    assert change.startswith("votes: 1 of 3 rows of votes.parquet differ")
    assert replay_bundle(old).same
