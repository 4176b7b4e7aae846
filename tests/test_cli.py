"""The command line: exit codes, messages, and what it does not load."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from kit.installed import loaded_after, needs
from run_files import small_run

from kohaku_ray.cli import main
from kohaku_ray.cli.arguments import EXAMPLES, make_parser
from kohaku_ray.evaluation.submissions import read_submission
from kohaku_ray.index import gpu
from kohaku_ray.pages.terminal import INTERRUPTED
from kohaku_ray.run.checks import free_gpus
from kohaku_ray.storage import Directory

HEAVY = (
    "ray",
    "torch",
    "faiss",
    "vllm",
    "pymupdf",
    "transformers",
    "sentence_transformers",
    "polars",
    "sklearn",
    "scipy.stats",
)


LIGHT = (
    "import kohaku_ray",
    "import kohaku_ray.cli\ntry: kohaku_ray.cli.main(['--help'])\nexcept SystemExit: pass",
    "from kohaku_ray.config import load_config; load_config('demo')",
    "import kohaku_ray.systems.kohaku, kohaku_ray.systems.hybrid, kohaku_ray.systems.narrative",
    "import kohaku_ray.evaluation.report, kohaku_ray.run.exchange.vote_files",
    "import kohaku_ray.run.record.directory, kohaku_ray.evaluation.compare",
    "from kohaku_ray.sweep.load import load_sweep; load_sweep('paper')",
)


def test_nothing_heavy_is_loaded():
    """All in one process: what the first of them loads would be there after each."""
    told = "\n".join(f"{code}\nprint(*sorted({set(HEAVY)!r} & set(sys.modules)), file=sys.stderr)" for code in LIGHT)
    done = subprocess.run([sys.executable, "-c", f"import sys\n{told}"], capture_output=True, text=True, check=True)
    assert dict(zip(LIGHT, done.stderr.splitlines(), strict=True)) == dict.fromkeys(LIGHT, "")


def test_a_process_that_splits_texts_loads_the_tokenizers_of_nltk_alone():
    code = """
from kohaku_ray.documents.text.sentences import split_sentences
from kohaku_ray.index.terms import tokenise
assert len(split_sentences("Dr. Smith came. He left.")) == 2
assert tokenise("The energies of it") == ["energies"]
assert tokenise("les énergies", "fr") == ["énerg"]
"""
    assert not loaded_after(code, *HEAVY)
    later = "import nltk; assert nltk.word_tokenize and nltk.stem.PorterStemmer().stem('runs') == 'run'"
    assert loaded_after(code + later, "sklearn")


def test_a_process_that_calls_no_application_starts_without_serve():
    modules = ("engine.actors.members", "run.collection.indexing", "run.collection.image_encoding")
    assert not loaded_after("\n".join(f"import kohaku_ray.{module}" for module in modules), "ray.serve")


def test_the_answer_job_imports_before_ray_starts_what_it_needs_for_that_alone():
    code = "import kohaku_ray.api, kohaku_ray.engine.jobs.answer"
    assert not loaded_after(code, "ray.serve", "polars", "pandas", "matplotlib")


def test_a_parquet_table_is_read_without_pyarrow_dataset(tmp_path):
    Directory(str(tmp_path)).write_parquet("t.parquet", pa.table({"n": pa.array([1, 2])}))
    read = f"Directory({str(tmp_path)!r}).read_parquet('t.parquet')"
    code = f"from kohaku_ray.storage import Directory; assert len({read}) == 2"
    assert not loaded_after(code, "pyarrow.dataset", "pandas")


def test_vote_over_files_needs_no_cluster(tmp_path, capsys):
    lines = {
        "a.csv": "q1,5,['x']\nq2,is_blank,is_blank\n",
        "b.csv": "q1,7,['y']\nq2,is_blank,is_blank\n",
        "c.csv": "q1,5.001,['x']\n",
    }
    files = [str(tmp_path / name) for name in lines]
    for file, text in zip(files, lines.values(), strict=True):
        Path(file).write_text(f"id,answer_value,ref_id\n{text}")
    out = str(tmp_path / "out.csv")
    assert main(["vote", *files, "--strategy", "answer_priority", "--ignore-blank", "-o", out]) == 0
    rows = read_submission(out).rows
    assert (rows["q1"].answer_value, rows["q1"].ref_ids) == ("5", ("x",))
    assert rows["q2"].answer_value == "is_blank"
    printed = capsys.readouterr().out
    assert "2 questions, 3 members, 1 abstained" in printed
    assert "c.csv: 1 question missing, counted as blank: q2" in printed


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["validate", "demo", "--set", "kohaku.topk=3"], 2, "did you mean kohaku.top_k?"),
        (["validate", "demo", "--set", "cluster.retriever.replicas=500"], 2, "CPUs but 500 retrievers"),
        (["validate", "demo", "--set", "questions.path=/none.csv"], 2, "/none.csv cannot be read"),
        (
            ["validate", "demo", "--set", "deployments.extractive.window_tokens=512"],
            2,
            "max_tokens is 1,024 but the window of extractive is 512 tokens, for prompt and reply together",
        ),
        (["validate", "demo", "--set", "questions.path=sample:none.csv"], 2, "does not exist"),
        (
            ["validate", "demo", "--set", "deployments.big={kind: vllm, model: m}", "--set", "roles.answer.model=big"],
            2,
            "the cluster has 0 GPUs but 1 retriever and 1 replica of big need 1",
        ),
        (
            ["validate", "demo", "--set", "questions.path=/etc"],
            2,
            "/etc is a directory and no file: name a file, such as",
        ),
        (["validate", "/etc"], 2, "/etc: a directory and no file"),
        (
            ["answer", "configs/sweeps/paper.yaml"],
            2,
            "is a sweep (it has tables) and no run: give it to `kohaku-ray sweep`",
        ),
        (["score", "--truth", "/etc", "/none.csv"], 1, "/etc is a directory and no file: name a file, such as /etc/"),
        (["show", "/none", "q1"], 1, "/none: there is no such directory: give that of a run"),
    ],
)
def test_what_is_wrong_is_one_line_and_an_exit_code(arguments, code, message, capsys, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")  # a hub may be asked for the models named here
    assert main(arguments) == code
    printed = capsys.readouterr().err
    assert printed.startswith("kohaku-ray: ")
    assert message in printed
    assert "Traceback" not in printed


def test_validate_says_all_that_is_wrong_and_what_it_found(capsys, tmp_path):
    (tmp_path / "docs").mkdir()
    for name in ("a.md", "b.md", "c.txt"):
        (tmp_path / "docs" / name).write_text("text")
    for name in ("rows.jsonl", "notes.odt", "figure.png", ".hidden.odt", "q.jsonl"):
        (tmp_path / "docs" / name).write_text("text")
    (tmp_path / "meta.csv").write_text("id,title\na,A\nzebra,Z\n")
    (tmp_path / "docs" / "q.jsonl").write_text('{"id": "1", "question": "What?"}\n')
    flags = [f"documents.paths=[{tmp_path}/docs]", f"documents.metadata={tmp_path}/meta.csv", "prompts=/none"]
    flags += [f"questions.path={tmp_path}/docs/q.jsonl", "cluster.retriever.replicas=500", f"run={tmp_path}/run"]
    assert main(["validate", "default", *(part for flag in flags for part in ("--set", flag))]) == 2
    printed = capsys.readouterr()
    assert "documents: 3 files (2 .md, 1 .txt)" in printed.out
    left_out = (
        f"2 files there have suffixes that are not read: {tmp_path}/docs/notes.odt, {tmp_path}/docs/rows.jsonl (name"
    )
    assert left_out in printed.out
    assert "metadata: 2 rows, 1 of them for no document (zebra)" in printed.out
    assert "not scored: it has no gold answers: it has no column answer_value, ref_id; " in printed.out
    assert "valid" not in printed.out.splitlines()
    assert "top_k_final" not in printed.out
    errors = printed.err.splitlines()
    assert len(errors) == 2
    assert any("/none" in line for line in errors)
    assert any("500 retrievers" in line for line in errors)


def test_a_run_is_scored_against_its_own_questions(capsys, tmp_path):
    run = small_run(tmp_path / "run")
    truth = tmp_path / "t.csv"
    truth.write_text("id,answer_value,ref_id\nq1,41,a2024\n")
    (tmp_path / "run" / "config.yaml").write_text(f"questions: {{path: {truth}}}\n")
    assert main(["score", str(run), "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert main(["score", str(run), "--truth", str(truth), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == scores
    assert main(["score", str(tmp_path / "run" / "submission.csv")]) == 1
    assert "give --truth" in capsys.readouterr().err


def test_all_missing_documents_are_named_at_once(capsys):
    assert main(["validate", "demo", "--set", "documents.paths=[/none/a, /none/b]"]) == 2
    printed = capsys.readouterr().err
    assert "/none/a does not exist" in printed
    assert "/none/b does not exist" in printed


@pytest.mark.parametrize(
    "text", ["base: demo\ndocuments: {paths: [d]}\n", "kohaku: {top_k: 8}\n", "run: r\n", "model: m\n"]
)
def test_a_runs_configuration_is_no_sweep(capsys, tmp_path, text):
    (tmp_path / "mine.yaml").write_text(text)
    assert main(["sweep", str(tmp_path / "mine.yaml")]) == 2
    assert "is a run's configuration (it has " in capsys.readouterr().err


def test_a_vllm_configuration_for_another_cluster_validates_without_vllm_here(capsys, tmp_path):
    flags = [
        *("--set", "deployments.big={kind: vllm, model: m}"),
        *("--set", "roles.answer.model=big"),
        *("--set", "cluster.address=auto"),
        *("--set", f"run={tmp_path}/run"),
    ]
    assert main(["validate", "demo", *flags]) == 0
    printed = capsys.readouterr().out
    assert "deployments.big: vllm" in printed
    assert "demand: 2 CPUs and 1 GPU for" in printed
    assert "cluster.retriever.gpus and index.build_gpus are auto: what is free when the job joins auto" in printed
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("n_gpus", "faiss_lacks", "overrides", "lines"),
    [
        (
            *(0, "", ()),
            ["GPUs: this machine has none, so that everything runs on its CPUs"],
        ),
        (
            *(1, "", ("index.factory='IVF64,Flat'",)),
            [
                "GPUs: cluster.retriever.gpus auto is 1: each of 1 retriever gets a GPU, of unknown size",
                "GPUs: index.build_gpus auto is 1: a GPU is free once all is encoded",
                "GPUs: index.search_device auto is cuda",
            ],
        ),
        (
            *(1, "FAISS is for CPUs", ("index.build_gpus=0",)),
            [
                "GPUs: cluster.retriever.gpus auto is 0: FAISS is for CPUs",
                "GPUs: index.search_device auto is cpu: retrievers have no GPU",
            ],
        ),
        (
            *(2, "", ("index.build_gpus=1", "cluster.retriever.gpus=0.5")),
            ["GPUs: index.search_device auto is cuda"],
        ),
        (2, "", ("index.build_gpus=1", "cluster.retriever.gpus=0.5", "index.search_device=cpu"), []),
    ],
)
def test_validate_says_what_auto_becomes_of_gpus_and_why(
    capsys, monkeypatch, tmp_path, n_gpus, faiss_lacks, overrides, lines
):
    monkeypatch.chdir(tmp_path)  # away from the demo's index, if it was made
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(free_gpus, "local_gpus", lambda: n_gpus)
    monkeypatch.setattr(gpu, "without_gpu_support", lambda: faiss_lacks)
    assert main(["validate", "demo", *(part for override in overrides for part in ("--set", override))]) == 0
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith("GPUs: ")]
    assert [line[: len(expected)] for line, expected in zip(shown, lines, strict=True)] == lines


@needs("vllm")
def test_a_model_that_may_not_be_downloaded_is_said_not_to_be_there(capsys, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    big = "deployments.big={kind: vllm, model: nobody/nothing, cpus: 1}"
    assert main(["validate", "demo", "--set", big, "--set", "roles.answer.model=big"]) == 2
    assert "model is nobody/nothing and HF_HUB_OFFLINE is set, but no downloaded model" in capsys.readouterr().err


def test_what_the_environment_gave_is_in_no_message(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HIDDEN", "hunter2secret")
    (tmp_path / "own.yaml").write_text(f"base: demo\nindex: {{path: '{tmp_path}/${{HIDDEN}}'}}\n")
    assert main(["validate", str(tmp_path / "own.yaml")]) == 0
    printed = capsys.readouterr()
    assert "there is no index at" in printed.out
    assert "hunter2secret" not in printed.out + printed.err
    (tmp_path / "own.yaml").write_text(f"base: demo\nquestions: {{path: '{tmp_path}/${{HIDDEN}}.csv'}}\n")
    assert main(["validate", str(tmp_path / "own.yaml")]) == 2
    printed = capsys.readouterr()
    assert "${HIDDEN}.csv" in printed.err
    assert "hunter2secret" not in printed.out + printed.err


def test_validate_names_odd_gold_and_a_metric_that_there_is_not(capsys, tmp_path):
    (tmp_path / "q.csv").write_text('id,question,answer_value,ref_id\nq1,What?,"[5,4]",[halden2023]\n')
    flags = ["--set", f"questions.path={tmp_path}/q.csv", "--set", f"run={tmp_path}/run"]
    assert main(["validate", "demo", *flags, "--set", "questions.metrics=[wattbot2026]"]) == 0
    assert "q1: the band [5,4] has its low end 5 above its high end 4" in capsys.readouterr().out
    assert main(["validate", "demo", *flags, "--set", "questions.metrics=[wattbot2025]"]) == 2
    assert "metric wattbot2025: no such metric (did you mean wattbot2026?)" in capsys.readouterr().err


def test_validate_names_all_faults_of_the_questions_at_once(capsys, tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.txt").write_text("text")
    rows = "id,question,answer_value,ref_id\nq1,What?,4,[a]\nq1,Which?,5,[zebra]\nq2,Who?,,\n,Why?,7,[a]\n"
    (tmp_path / "q.csv").write_text(rows)
    flags = [f"documents.paths=[{tmp_path}/docs]", f"questions.path={tmp_path}/q.csv", f"run={tmp_path}/run"]
    given = [part for flag in flags for part in ("--set", flag)]
    assert main(["validate", "default", *given]) == 2
    printed = capsys.readouterr().err
    assert "1 of 4 questions have no id, first at row 4" in printed
    assert "1 id is used more than once (first 'q1', rows 1, 2)" in printed
    assert "1 of 2 questions have no gold answer (q2)" in printed
    (tmp_path / "q.csv").write_text(rows.replace("q1,Which", "q3,Which").replace("\n,Why", "\nq4,Why"))
    assert main(["validate", "default", *given]) == 2
    assert "the gold answers cite 1 document not there (zebra): correct ref_id" in capsys.readouterr().err
    (tmp_path / "docs" / "b.md").write_text("---\nid: zebra\n---\ntext")  # a file that names its document itself
    (tmp_path / "q.csv").write_text("id,question,answer_value,ref_id\nq1,What?,4,[a]\nq3,Which?,5,[zebra]\n")
    assert main(["validate", "default", *given]) == 0
    assert "warning: the gold answers cite 1 document" in capsys.readouterr().out


def test_validate_says_that_gold_cites_a_file_of_a_suffix_that_is_not_read(capsys, tmp_path):
    """users5.md 2.8: valid before the index, "not there" after it, while the file is there, beside two CSV files."""
    (tmp_path / "docs").mkdir()
    for name in ("a.txt", "wine_data.tex", "table.csv"):
        (tmp_path / "docs" / name).write_text("text\n1\n")
    (tmp_path / "q.csv").write_text("id,question,answer_value,ref_id\nq1,What?,4,[a]\nq2,Which?,5,[wine_data]\n")
    flags = [f"documents.paths=[{tmp_path}/docs]", f"questions.path={tmp_path}/q.csv", f"run={tmp_path}/run"]
    given = [part for flag in flags for part in ("--set", flag)]
    assert main(["validate", "default", *given]) == 2
    printed = capsys.readouterr()
    cited = f"the gold answers cite 1 file whose suffix is not read ({tmp_path}/docs/wine_data.tex)"
    assert printed.err.count(cited) == 1
    assert "not there" not in printed.out + printed.err
    (tmp_path / "q.csv").write_text("id,question,answer_value,ref_id\nq1,What?,4,[a]\nq2,Which?,5,[zebra]\n")
    assert main(["validate", "default", *given]) == 0, "a row of the CSV may be it"
    assert "warning: the gold answers cite 1 document not there (zebra)" in capsys.readouterr().out
    (tmp_path / "q.csv").write_text("id,question,answer_value,ref_id\nq1,What?,4,[row1]\nq2,Which?,5,[row2]\n")
    assert main(["validate", "default", *given]) == 0
    assert "warning: the gold" not in capsys.readouterr().out, "they are of the rows, by their own ids"


@pytest.mark.parametrize("preset", ["demo", "demo_narrative", "hybrid"])
def test_the_packages_own_collections_are_valid(preset, capsys, tmp_path):
    assert main(["validate", preset, "--set", f"index.path={tmp_path}/index", "--set", f"run={tmp_path}/run"]) == 0
    assert "warning" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("stopped", "n_errors", "flags", "code"),
    [
        ("", 1, [], 3),
        ("", 1, ["--rows-in-error-ok"], 0),
        ("", 0, ["--rows-in-error-ok"], 0),
        ("20 answers in a row got no reply", 1, ["--rows-in-error-ok"], 3),  # a repeat may mend it
    ],
)
def test_rows_in_error_may_be_no_failure_of_a_job(monkeypatch, tmp_path, capsys, stopped, n_errors, flags, code):
    from kohaku_ray.engine.jobs import batch

    def run_batch(*_):
        return batch.BatchSummary("out.jsonl", n_errors=Counter(request_failed=n_errors), stopped=stopped)

    monkeypatch.setattr(batch, "run_batch", run_batch)
    assert main(["batch", "in.jsonl", str(tmp_path / "out.jsonl"), "--with", "models/ollama", *flags]) == code
    capsys.readouterr()


@pytest.mark.parametrize("command", ["index", "answer", "sweep", "batch"])
def test_every_command_of_a_job_can_take_rows_in_error_for_success(command, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert "--rows-in-error-ok" in capsys.readouterr().out


def test_an_interrupt_of_which_a_library_makes_an_error_of_its_own_is_the_one_line(capsys, tmp_path, monkeypatch):
    """Pydantic does, while it builds its validators."""
    from kohaku_ray.engine.jobs import batch

    def run_batch(*_):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            list(range(10**6))
        except BaseException as end:
            raise ValueError from end

    monkeypatch.setattr(batch, "run_batch", run_batch)
    assert main(["batch", "in.jsonl", str(tmp_path / "out.jsonl"), "--with", "models/ollama"]) == 1
    assert capsys.readouterr().err == f"{INTERRUPTED}\n"


def test_each_commands_example_is_a_command_that_parses(capsys):
    parser = make_parser()
    for name, example in EXAMPLES.items():
        command = shlex.split(example.removeprefix('eval "$(').removesuffix(')"'))
        assert parser.parse_args(command[1:]).name == name
        with pytest.raises(SystemExit) as ended:
            main(["help", name])
        assert ended.value.code == 0
        assert " ".join(example.split()) in " ".join(capsys.readouterr().out.split())


def test_a_mistyped_command_or_choice_is_answered_by_the_nearest(capsys):
    for command, meant in ((["anwser", "demo"], "answer"), (["vote", "a", "-o", "b", "--strategy", "unoin"], "union")):
        with pytest.raises(SystemExit) as ended:
            main(command)
        assert ended.value.code == 2
        assert f"(did you mean {meant}?)" in capsys.readouterr().err


def test_docs_print_a_page_or_their_list(capsys):
    assert main(["docs"]) == 0
    topics = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert {"commands", "sweeps", "paper"} < {*topics}
    assert main(["docs", "sweeps"]) == 0
    assert capsys.readouterr().out.startswith("# Sweeps\n")
    assert main(["docs", "sweep"]) == 2
    assert "sweep is no page (did you mean sweeps?)" in capsys.readouterr().err


def test_an_answer_without_an_index_is_a_matter_of_configuration(tmp_path, capsys):
    places = [f"run={tmp_path}/run", f"index.path={tmp_path}/none", f"ledger.path={tmp_path}/ledger"]
    assert main(["answer", "demo", *(part for place in places for part in ("--set", place))]) == 2
    assert "there is no index at" in capsys.readouterr().err


def test_the_map_takes_the_name_of_a_preset(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["map", "demo"]) == 2
    assert "there is no index at" in (error := capsys.readouterr().err)
    assert "at demo:" not in error
