"""Bundles: the same bytes for the same run, replayed without a model, and refused when they are not whole."""

from __future__ import annotations

import asyncio
import csv
import importlib.util
import json
import re
import shutil
import sys
import threading
import zipfile
from dataclasses import asdict, replace
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from kit.runs_here import index_here, run_here

from kohaku_ray.answering import bundle as job
from kohaku_ray.answering import replay
from kohaku_ray.answering.bundle import BundleSource, find_source, make_bundle, replay_bundle
from kohaku_ray.cli import main
from kohaku_ray.config import load_config
from kohaku_ray.errors import CodeRefusedError, ConfigError, ContextOverflowError, DataError
from kohaku_ray.extensions import refuse_named_code
from kohaku_ray.index.store import Index
from kohaku_ray.index.torch_model import load_model
from kohaku_ray.models.prompts import Prompts
from kohaku_ray.pages.run_text import describe_replays
from kohaku_ray.pages.sweep_tables import compute_sweep_stats, write_csv, write_markdown, write_tables
from kohaku_ray.records import Reply, digest
from kohaku_ray.run.collection.sources import questions_of
from kohaku_ray.run.exchange import bundle
from kohaku_ray.run.exchange.bundle import MANIFEST, compare_outputs
from kohaku_ray.run.record.directory import facts_checksum
from kohaku_ray.run.segments import Loaded, SegmentStore
from kohaku_ray.sample import path as sample_path
from kohaku_ray.storage import checksum
from kohaku_ray.sweep.collect import collect
from kohaku_ray.sweep.load import load_sweep
from kohaku_ray.sweep.plan import plan_sweep

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
    make_bundle(BundleSource({"run": f"{home}/run"}), f"{home}/run.zip", write_tables)
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


def zipped(files: dict[str, bytes], to: Path, *, fixed: bool = True) -> str:
    """Zip files again; ``fixed``: with a manifest that has their checksums."""
    manifest = json.loads(files[MANIFEST])
    if fixed:
        manifest["files"] = {
            name: {"size": len(data), "checksum": checksum(data)} for name, data in files.items() if name != MANIFEST
        }
        files = {**files, MANIFEST: json.dumps(manifest).encode()}
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
    make_bundle(BundleSource({"run": f"{home}/run"}), f"{home}/again.zip", write_tables)
    assert Path(f"{home}/again.zip").read_bytes() == Path(bundled).read_bytes()


@pytest.mark.parametrize("with_index", [False, True])
def test_a_replay_gives_every_table_again(home, tmp_path, with_index, monkeypatch):
    path = str(tmp_path / "one.zip")
    made = make_bundle(find_source(f"{home}/run"), path, write_tables, with_index=with_index)
    assert made.n_replies > 6
    monkeypatch.setattr(replay, "QueryEncoder", None)  # no encoder is loaded
    monkeypatch.setenv("OPENAI_API_KEY", "")
    if with_index:
        files = {name for name in files_in(path) if name.startswith("indexes/")}
        assert len(files) == sum(file.is_file() for file in Path(f"{home}/index").rglob("*"))
    [run] = replay_bundle(path, write_tables).runs

    async def cell():
        return replay_bundle(path, write_tables).runs

    assert [again.differences for again in asyncio.run(cell())] == [()], "in a running event loop, as a notebook has"
    assert run.differences == ()
    assert run.rounded == {}
    assert run.scores[0]["metric"] == "wattbot"
    assert run.n_questions == 3


def test_what_a_model_needs_is_recorded(make, tmp_path, tiny_encoder, monkeypatch):
    """A key and an address from the environment, and a tokenizer: gone when the bundle is replayed."""
    monkeypatch.setenv("OPENAI_BASE_URL", "http://secret-host.example/v1")
    shutil.copytree(tiny_encoder, tmp_path / "tokenizer")
    overrides = [f"deployments.gateway.tokenizer={tmp_path}/tokenizer", "kohaku.max_context_tokens=300"]
    run = make(*overrides, chat=says)
    make_bundle(BundleSource({"run": run}), f"{tmp_path}/one.zip", write_tables)
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "KOHAKU_MODEL"):
        monkeypatch.delenv(name)
    shutil.rmtree(tmp_path / "tokenizer")
    texts = texts_in(files_in(f"{tmp_path}/one.zip"))
    assert not [name for name, text in texts.items() if "secret" in text]
    [replayed] = replay_bundle(f"{tmp_path}/one.zip", write_tables).runs
    assert replayed.differences == ()
    assert replayed.model.startswith("openai:small-model")


def test_a_call_that_was_too_long_is_too_long_again(make, tmp_path):
    async def small(request) -> Reply:
        if request.n_chars > 6000:
            raise ContextOverflowError("the prompt was longer than the model takes")
        return await says(request)

    make_bundle(BundleSource({"run": make(chat=small)}), f"{tmp_path}/one.zip", write_tables)
    manifest = json.loads(files_in(f"{tmp_path}/one.zip")[MANIFEST])
    assert manifest["runs"]["run"]["refused"]
    assert replay_bundle(f"{tmp_path}/one.zip", write_tables).runs[0].differences == ()


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
        ("usage.parquet", lambda rows: rows[0].update(key="0" * 32), "prompts: 2 of "),
        ("usage.parquet", lambda rows: rows[0].update(wait_s=9.0), None),
    ],
)
def test_a_changed_table_is_named(bundled, tmp_path, file, change, message):
    files = files_in(bundled)
    name = f"runs/run/{file}"
    [run] = replay_bundle(
        zipped({**files, name: with_rows(files[name], change)}, tmp_path / "fixed.zip"), write_tables
    ).runs
    assert [line for line in run.differences if line.startswith(message or "")] == list(run.differences)
    assert bool(run.differences) == bool(message)


def with_facts(files: dict[str, bytes], **changed) -> dict[str, bytes]:
    """Change facts of the run, and its own checksum with them."""
    facts = {**json.loads(files["runs/run/run.json"]), **changed}
    return {**files, "runs/run/run.json": json.dumps({**facts, "checksum": facts_checksum(facts)}).encode()}


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("n_questions", 300),
        ("n_answers", 7),
        ("n_member_errors", 1),
        ("n_questions_in_error", 1),
        ("flags", {"uncited": 1}),
        ("errors", {"a time-out": 2}),
        ("stopped", "20 answers in a row got no reply"),
        ("n_calls", {"made": 1, "ledger": 0, "joined": 0}),
        ("system", "hybrid"),
        ("metrics", ["kaggle"]),
        ("lead", "plan"),
        ("limit", None),
        ("outputs", ["more.csv"]),
    ],
)
def test_a_changed_fact_is_named(bundled, tmp_path, name, other):
    files = files_in(bundled)
    changed = zipped(with_facts(files, **{name: other}), tmp_path / "fixed.zip")
    [line] = replay_bundle(changed, write_tables).runs[0].differences
    assert line.startswith(f"facts: run.json says {name} {other}, and ")
    facts = json.loads(files["runs/run/run.json"])
    del facts[name]
    older = {**files, "runs/run/run.json": json.dumps({**facts, "checksum": facts_checksum(facts)}).encode()}
    assert replay_bundle(zipped(older, tmp_path / "old.zip"), write_tables).same, "an older version wrote fewer facts"


def test_what_a_run_spent_is_that_of_its_calls(make, tmp_path):
    make_bundle(BundleSource({"run": make(chat=says)}), f"{tmp_path}/one.zip", write_tables)
    files = files_in(f"{tmp_path}/one.zip")
    spent = json.loads(files["runs/run/run.json"])["spent"]
    assert spent["completion_tokens"] > 0
    cheaper = with_facts(files, spent={**spent, "completion_tokens": 1})
    [line] = replay_bundle(zipped(cheaper, tmp_path / "two.zip"), write_tables).runs[0].differences
    assert line == f"facts: run.json says spent.completion_tokens 1, and {spent['completion_tokens']} follows"
    # What nothing else tells, such as the seconds, its own checksum covers.
    slower = with_text(files, "runs/run/run.json", b'"wall_s": ', b'"wall_s": 9')
    [line] = replay_bundle(zipped(slower, tmp_path / "three.zip"), write_tables).runs[0].differences
    assert line == "facts: run.json is not what the run wrote, its checksum is another"


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
    config = "\n" + files["runs/run/config.yaml"].decode()
    before, line, after = config.partition(f"\n{old}" if old.startswith("system") else old)
    assert line
    files["runs/run/config.yaml"] = f"{before}{line[: -len(old)]}{new}{after}".encode()
    return zipped(files, directory / "bad.zip")


def test_code_that_a_replay_does_not_need_is_not_imported(bundled, tmp_path, monkeypatch):
    """What is recorded needs no encoder; where one would be loaded all the same, its code is refused."""
    for old, new in (
        ("trust_remote_code: false\n", "trust_remote_code: true\n"),
        ("    system: kohaku\n", "    system: evilmod:SYSTEM\n"),  # of a deployment: replies are recorded, too
    ):
        assert replay_bundle(with_code(bundled, tmp_path, monkeypatch, old, new), write_tables).same
    for setting in ("model=package:evilmod", "trust_remote_code=true"):
        with refuse_named_code("trust it"), pytest.raises(CodeRefusedError, match=r"is code .*: trust it"):
            load_model(load_config("default", [f"index.encoder.{setting}"]).index.encoder)
    assert not (tmp_path / "imported").exists()


def test_numbers_that_another_processor_rounds_are_no_difference(bundled):
    files = {name.removeprefix("runs/run/"): data for name, data in files_in(bundled).items()}
    tables = {name: data for name, data in files.items() if name.endswith(".parquet") and name != job.RECORDED}

    def move(by):
        def change(rows):
            row = next(row for row in rows if row["scores"])
            row["scores"] = [(name, value + by) for name, value in row["scores"]]

        return {**tables, "trace.parquet": with_rows(tables["trace.parquet"], change)}

    assert compare_outputs(tables, move(1e-7)).differences == []
    assert compare_outputs(tables, move(1e-7)).rounded == {"trace.scores": 1}
    assert compare_outputs(tables, move(1e-2)).differences


def test_what_a_vote_reads_is_equal_to_the_last_digit_or_a_difference(bundled):
    files = {name.removeprefix("runs/run/"): data for name, data in files_in(bundled).items()}
    tables = {name: data for name, data in files.items() if name.endswith(".parquet") and name != job.RECORDED}

    def voted(by):
        def change(rows):
            rows[0]["group_weights"] = [weight + by for weight in rows[0]["group_weights"]] or [by]

        return {**tables, "votes.parquet": with_rows(tables["votes.parquet"], change)}

    assert compare_outputs(voted(0.0), voted(1e-7)).rounded == {"votes.group_weights": 1}
    assert compare_outputs(voted(0.0), voted(1e-2)).differences
    [run] = replay_bundle(bundled, write_tables).runs
    told = describe_replays([asdict(replace(run, rounded={"trace.scores": 1163}))])
    assert "  1,163 rows with another processor's rounding, in trace.scores alone" in told


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
    make_bundle(BundleSource({"run": run}), f"{tmp_path}/without.zip", write_tables)
    make_bundle(BundleSource({"run": run}), f"{tmp_path}/with.zip", write_tables, with_index=True)
    without, whole = (files_in(f"{tmp_path}/{name}.zip") for name in ("without", "with"))
    trace = " ".join(" ".join(texts_in(without).values()).split())
    assert not [sentence for sentence in sentences if sentence in trace]
    assert [
        sentence for sentence in sentences if sentence in str(texts_in({"t.parquet": whole["runs/run/trace.parquet"]}))
    ]


def test_gold_materials_stay_out_and_the_score_is_the_same(make, home, tmp_path):
    rows = list(csv.DictReader(Path(sample_path("questions.csv")).read_text(encoding="utf-8").splitlines()))
    with (tmp_path / "q.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0], "supporting_materials"])
        writer.writeheader()
        writer.writerows({**row, "supporting_materials": "A sentence of the document."} for row in rows)
    make_bundle(BundleSource({"run": make(f"questions.path={tmp_path}/q.csv")}), f"{tmp_path}/one.zip", write_tables)
    assert "A sentence of the document." not in str(texts_in(files_in(f"{tmp_path}/one.zip")))
    (tmp_path / "q.csv").unlink()
    assert replay_bundle(f"{tmp_path}/one.zip", write_tables).runs[0].differences == ()


def test_own_templates_and_a_planner_per_member_are_replayed(make, home, tmp_path):
    templates = Path(job.__file__).parents[1] / "systems" / "kohaku" / "templates"
    shutil.copytree(templates, tmp_path / "mine")
    run = make(f"prompts={tmp_path}/mine", "ensemble.scope=question", "ensemble.members=3", "ensemble.early_stop=value")
    make_bundle(BundleSource({"a": run, "b": f"{home}/run"}), f"{tmp_path}/two.zip", write_tables)
    shutil.rmtree(tmp_path / "mine")
    assert [(run.name, run.differences) for run in replay_bundle(f"{tmp_path}/two.zip", write_tables).runs] == [
        ("a", ()),
        ("b", ()),
    ]


def test_the_index_must_be_the_same(home, bundled, tmp_path, tiny_encoder):
    shutil.copytree(f"{home}/index", tmp_path / "moved")
    assert replay_bundle(bundled, write_tables, f"{tmp_path}/moved").runs[0].differences == ()
    with pytest.raises(DataError, match=r"holds no index, and there is no index at .*none.*--index DIR"):
        replay_bundle(bundled, write_tables, f"{tmp_path}/none")
    overrides = settings(tmp_path, tiny_encoder, f"run={tmp_path}/run", f"documents.paths={DOCUMENTS[:1]}")
    index_here(load_config("demo", overrides))
    with pytest.raises(DataError, match=r"is not that of .* made from other documents .*--index DIR"):
        replay_bundle(bundled, write_tables, f"{tmp_path}/index")
    manifest = json.loads((tmp_path / "moved" / "manifest.json").read_text())
    del manifest["checksum"]
    manifest["settings"]["weights"] = "uniform"
    whole = {**manifest, "checksum": digest(manifest, 16, "")}
    (tmp_path / "moved" / "manifest.json").write_text(json.dumps(whole))
    with pytest.raises(DataError, match="made with other settings"):
        replay_bundle(bundled, write_tables, f"{tmp_path}/moved")


def test_an_index_is_digested_in_pieces_as_bundles_have_it_whole(home, monkeypatch):
    index = Index.open(f"{home}/index")
    whole = digest(index.nodes.table.select(["node_id", "title", "text"]).to_pydict())
    for n_rows in (1, 7, len(index.nodes)):
        monkeypatch.setattr(bundle, "_ROWS_AT_ONCE", n_rows)
        assert bundle.IndexIdentity.of(index).documents == whole


def test_a_replay_without_faiss_names_the_extras_and_compares_nothing(bundled, monkeypatch):
    """It said "differs from the bundle" of a plain install, with a lower score."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'kohaku-ray\[cpu\]', or 'kohaku-ray\[gpu\]'"):
        replay_bundle(bundled, write_tables)


def test_what_cannot_be_replayed_is_not_bundled(home, make, tmp_path, monkeypatch):
    out = f"{tmp_path}/one.zip"
    with pytest.raises(DataError, match="is no finished run: "):
        make_bundle(BundleSource({"run": f"{home}/index"}), out, write_tables)
    shutil.copytree(f"{home}/run", tmp_path / "run")
    (tmp_path / "run" / "votes.parquet").write_bytes(b"x")
    with pytest.raises(DataError, match=r"votes.parquet is not what the run wrote"):
        make_bundle(BundleSource({"run": f"{tmp_path}/run"}), out, write_tables)
    of_a_server = make(chat=says)
    monkeypatch.delenv("KOHAKU_MODEL")
    with pytest.raises(ConfigError, match="was made with KOHAKU_MODEL in the environment: set what it was made with"):
        make_bundle(BundleSource({"run": of_a_server}), out, write_tables)
    monkeypatch.setattr(replay, "questions_of", lambda config: questions_of(config)[:2])
    with pytest.raises(DataError, match=r"is not the same when it is made again .*votes: 1 of 3 rows"):
        make_bundle(BundleSource({"run": f"{home}/run"}), out, write_tables)
    monkeypatch.setattr(SegmentStore, "load", lambda self, mine: Loaded({}, ()))
    with pytest.raises(DataError, match=r"lacks (\d+) of \1 replies"):
        make_bundle(BundleSource({"run": f"{home}/run"}), out, write_tables)
    assert not Path(out).exists()


@pytest.fixture
def sweep_of(home, tmp_path, tiny_encoder):
    """Write a sweep of these tables, with two seeds, and make the first of its runs; ``chat`` stands for models."""

    def write(tables: list[dict], n_made: int, n_runs: int, chat=None) -> str:
        overrides = dict(text.split("=", 1) for text in settings(home, tiny_encoder))
        keys = {key: yaml.safe_load(value) for key, value in overrides.items()} | {"ledger.path": f"{tmp_path}/ledger"}
        values = {"base": "demo", "set": keys, "seeds": [0, 1], "tables": tables, "runs": f"{tmp_path}/runs"}
        (tmp_path / "sweep.yaml").write_text(yaml.safe_dump({**values, "output": f"{tmp_path}/out"}, sort_keys=False))
        runs = list(plan_sweep(load_sweep(f"{tmp_path}/sweep.yaml")).runs.values())
        assert len(runs) == n_runs
        for config in runs[:n_made]:
            run_here(config, chat)
        return f"{tmp_path}/sweep.yaml"

    return write


DEPTH = {"name": "depth", "axes": {"kohaku.top_k": [2, 8]}, "show": ["tokens", "attempts"]}
RULE, SIZE = "ensemble.vote.ignore_blank", "ensemble.members"
VOTES = {
    "name": "votes",
    "pool": {"members": 4},
    "set": {"kohaku.max_retries": 0},
    "axes": {RULE: [True, False], SIZE: [1, 3]},
}


@pytest.fixture
def swept(sweep_of) -> str:
    """A sweep of two cells with two seeds, all runs made but the last."""
    return sweep_of([DEPTH], 3, 4)


def test_a_sweep_gives_its_tables_again(swept, tmp_path, capsys):
    assert main(["bundle", swept, f"{tmp_path}/sweep.zip"]) == 0
    files = files_in(f"{tmp_path}/sweep.zip")
    assert b"tokens" in files["sweep/depth.csv"]
    capsys.readouterr()
    assert main(["replay", f"{tmp_path}/sweep.zip"]) == 0
    out = capsys.readouterr().out
    assert files["sweep/depth.md"].decode() in out
    assert out.count("made again, every table the same") == 3
    files["sweep/depth.csv"] = files["sweep/depth.csv"].replace(b"0.", b"1.", 1)
    assert main(["replay", zipped(files, tmp_path / "fixed.zip")]) == 1
    assert "depth.csv: 1 of " in capsys.readouterr().out


def test_a_study_of_recorded_members_gives_its_tables_again(sweep_of, tmp_path, capsys):
    sweep = sweep_of([VOTES], 1, 1, one_in_two_says)
    plan = plan_sweep(load_sweep(sweep))
    (as_swept,) = compute_sweep_stats(collect(plan, {}, metric=plan.metric))
    assert main(["bundle", sweep, f"{tmp_path}/sweep.zip"]) == 0
    assert files_in(f"{tmp_path}/sweep.zip")["sweep/votes.csv"].decode() == write_csv(as_swept)
    mean = {(cell.labels[RULE], cell.labels[SIZE]): cell.total.mean() for cell in as_swept.table.cells}
    assert mean["true", "3"] > mean["false", "3"], "cells that vote alike would hide what each votes by"
    assert main(["replay", f"{tmp_path}/sweep.zip"]) == 0
    assert write_markdown(as_swept) in capsys.readouterr().out
    files = files_in(f"{tmp_path}/sweep.zip")
    manifest = json.loads(files[MANIFEST])
    manifest["sweep"]["studied"].popitem()
    files[MANIFEST] = json.dumps(manifest).encode()
    assert main(["replay", zipped(files, tmp_path / "less.zip")]) == 1
    assert "votes.csv: not there any more" in capsys.readouterr().out


def test_a_study_whose_run_is_not_made_is_left_out(sweep_of, tmp_path):
    assert main(["bundle", sweep_of([DEPTH, VOTES], 4, 5), f"{tmp_path}/sweep.zip"]) == 0
    files = files_in(f"{tmp_path}/sweep.zip")
    assert [name for name in files if name.startswith("sweep/")] == ["sweep/depth.csv", "sweep/depth.md"]


def test_a_missing_run_is_said_as_a_sweep_is(capsys):
    assert main(["bundle", "runs/none", "out.zip"]) == 2
    assert "no such file and no such sweep" in capsys.readouterr().err


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
        values = yaml.safe_load(files["runs/run/config.yaml"])
        values["index"]["path"] = address
        files["runs/run/config.yaml"] = yaml.safe_dump(values).encode()
        refused(
            zipped(files, tmp_path / "bad.zip"), r"names one at an address, .* that was not asked: give --index", capsys
        )
        server.shutdown()
    assert not asked


def refused(path: Path | str, message: str, capsys) -> None:
    before = set(Path(path).parent.rglob("*"))
    assert main(["replay", str(path)]) == 2
    error = capsys.readouterr().err
    assert re.search(message, error), error
    assert len(error.strip().splitlines()) == 1
    assert set(Path(path).parent.rglob("*")) == before


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: b"id,answer\n1,2\n" * 1000, "is no bundle, or a torn one"),
        (lambda data: data[: len(data) // 2], "is no bundle, or a torn one"),
        (lambda data: data[:2000] + bytes([data[2000] ^ 1]) + data[2001:], "torn one|is not what was bundled"),
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
    refused(bundled, r"unpacks to .* bytes, at most 1,000 bytes are read: bundle fewer runs", capsys)


def with_text(files: dict[str, bytes], start: str, old: bytes, new: bytes) -> dict[str, bytes]:
    """Change the text of the file whose name begins so."""
    [name] = [name for name in files if name.startswith(start)]
    assert old in files[name]
    return {**files, name: files[name].replace(old, new, 1)}


def with_manifest(files: dict[str, bytes], **values) -> dict[str, bytes]:
    return {**files, MANIFEST: json.dumps({**json.loads(files[MANIFEST]), **values}).encode()}


def with_run(files: dict[str, bytes], name: str = "run", **values) -> dict[str, bytes]:
    """A manifest whose run names something else."""
    [run] = json.loads(files[MANIFEST])["runs"].values()
    return with_manifest(files, runs={name: {**run, **values}})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda files: {**files, "more.txt": b"x"}, "in its manifest, not in both"),
        (lambda files: with_text(files, "runs/run/config.yaml", b"seed: 0", b"seed: 1"), "its checksum is another"),
        (
            lambda files: with_manifest(files, format=2, version="9.9"),
            r"has bundle format 2 \(written by kohaku_ray 9.9\), and this version, .*, reads 1",
        ),
        (lambda files: {"a.txt": b"x", MANIFEST: b"{}"}, "has bundle format None"),
        (lambda files: with_manifest(files, runs={"run": {"index": 3}}), r"bundle.json is damaged \(runs.run.index"),
        (lambda files: with_run(files, seed=0), r"bundle.json is damaged \(runs.run.seed"),
    ],
)
def test_a_bundle_whose_manifest_is_not_its_own_is_refused(bundled, tmp_path, capsys, change, message):
    refused(zipped(change(files_in(bundled)), tmp_path / "bad.zip", fixed=False), message, capsys)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda files: with_text(files, "ledger/", b"explanation", b"explanatiom"), "is not what its name says"),
        (lambda files: {**files, "../out": b"out"}, "leads out of the bundle"),
        (lambda files: {**files, "/etc/out": b"out"}, "leads out of the bundle"),
        (lambda files: {**files, "a/../../out": b"out"}, "leads out of the bundle"),
        (lambda files: with_run(files, questions="../../etc/passwd"), r"names '\.\./\.\./etc/passwd', which the"),
        (lambda files: with_run(files, prompts="/tmp"), "names '/tmp', which the bundle does not hold"),
        (lambda files: with_run(files, index="../.."), r"names 'index \.\./\.\.', which the bundle does not hold"),
        (lambda files: with_run(files, "../x"), r"names 'runs/\.\./x/config.yaml', which the bundle does not hold"),
    ],
)
def test_a_bundle_that_names_what_it_does_not_hold_is_refused(bundled, tmp_path, capsys, change, message):
    refused(zipped(change(files_in(bundled)), tmp_path / "bad.zip"), message, capsys)


def test_a_score_of_another_version_is_named_with_both_values(bundled, tmp_path):
    files = files_in(bundled)
    [run] = json.loads(files[MANIFEST])["runs"].values()
    first, *others = run["scores"]
    classes = {**first["errors"], "rounding": first["errors"]["rounding"] + 1}
    changed = with_run(files, scores=[{**first, "errors": classes}, *others])
    [replayed] = replay_bundle(zipped(changed, tmp_path / "old.zip"), write_tables).runs
    expected = f"scores: {first['metric']} errors {classes} in the bundle, {first['errors']} here"
    assert replayed.differences == (expected,)
