"""The command line: exit codes, messages, and what it does not load."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from kit.installed import loaded_after, needs
from kit.runs_here import index_here, run_here
from run_files import small_run

from kohaku_ray.checks.run import check_run
from kohaku_ray.cli import commands, main
from kohaku_ray.cli.arguments import EXAMPLES, make_parser
from kohaku_ray.config import load_config
from kohaku_ray.evaluation.submissions import read_submission
from kohaku_ray.pages.terminal import INTERRUPTED
from kohaku_ray.store.storage import Directory

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
    "import kohaku_ray.evaluation.report, kohaku_ray.answering.vote_files",
    "import kohaku_ray.store.directory, kohaku_ray.evaluation.compare",
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
    modules = ("engine.actors.members", "collection.indexing", "collection.image_encoding")
    assert not loaded_after("\n".join(f"import kohaku_ray.{module}" for module in modules), "ray.serve")


def test_the_answer_job_imports_before_ray_starts_what_it_needs_for_that_alone():
    code = "import kohaku_ray.api, kohaku_ray.engine.jobs.answer"
    assert not loaded_after(code, "ray.serve", "polars", "pandas", "matplotlib")


def test_a_parquet_table_is_read_without_pyarrow_dataset(tmp_path):
    Directory(str(tmp_path)).write_parquet("t.parquet", pa.table({"n": pa.array([1, 2])}))
    read = f"Directory({str(tmp_path)!r}).read_parquet('t.parquet')"
    code = f"from kohaku_ray.store.storage import Directory; assert len({read}) == 2"
    assert not loaded_after(code, "pyarrow.dataset", "pandas")


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("validate a.yaml b.yaml", "one CONFIG is taken, further ones by --with: --with b.yaml"),
        ("sweep rerank my.yaml", "a configuration is taken by --base: --base my.yaml"),
        ("ask my.yaml How much?", 'the question goes on after "How": put all its words in quotes'),
        ("answer my.yaml --sett seed=1", "unrecognized arguments: --sett seed=1 (did you mean --set?)"),
        ("init a b", "unrecognized arguments: b"),
    ],
)
def test_words_that_are_left_over_are_answered_with_the_option_that_takes_them(typed, answer, capsys):
    with pytest.raises(SystemExit) as ended:
        main(typed.split())
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith(f"kohaku-ray {typed.split()[0]}: error: {answer}\n")


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
        (["score", "--truth", "/etc", "/none.csv"], 2, "/etc is a directory and no file: name a file, such as /etc/"),
        (["show", "/none", "q1"], 2, "/none: there is no such directory: give that of a run"),
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
    assert main(["score", str(tmp_path / "run" / "submission.csv")]) == 2
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
    assert not (tmp_path / "run").exists()


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
    assert "1 of 4 questions have no id, first at line 5" in printed
    assert "1 id is used more than once (first 'q1': line 2, line 3)" in printed
    assert "1 of 2 questions have no gold answer (q2)" in printed
    (tmp_path / "q.csv").write_text(rows.replace("q1,Which", "q3,Which").replace("\n,Why", "\nq4,Why"))
    assert main(["validate", "default", *given]) == 2
    cites = (
        f"warning: {tmp_path}/q.csv: the gold answers cite 1 document not there (zebra): correct ref_id, or add them"
    )
    assert f"{cites} to documents.paths, unless files name their documents themselves\n" in capsys.readouterr().out


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
    assert "the gold answers cite 1 document not there (zebra)" in capsys.readouterr().out
    (tmp_path / "q.csv").write_text("id,question,answer_value,ref_id\nq1,What?,4,[row1]\nq2,Which?,5,[row2]\n")
    assert main(["validate", "default", *given]) == 0
    assert "warning: the gold" not in capsys.readouterr().out, "they are of the rows, by their own ids"


def test_answer_refuses_the_gold_that_validate_refuses(capsys, tmp_path):
    (tmp_path / "docs").mkdir()
    for name in ("a.txt", "wine_data.tex"):
        (tmp_path / "docs" / name).write_text("The campus used 1200 m3 of water.")
    (tmp_path / "docs" / "b.pdf").write_bytes(b"no PDF")
    flags = [f"documents.paths=[{tmp_path}/docs]", "documents.metadata=null", f"questions.path={tmp_path}/q.csv"]
    flags += [f"index.path={tmp_path}/index", f"ledger.path={tmp_path}/ledger", f"run={tmp_path}/run"]
    index_here(load_config("demo", flags))
    given = ["demo", *(part for flag in flags for part in ("--set", flag))]
    faults = {
        "q1,How much?,1200,[a]\nq2,Who?,,": "1 of 2 questions have no gold answer (q2)",
        "q1,How much?,1200,[wine_data]": "the gold answers cite 1 file whose suffix is not read",
        "q1,How much?,1200,[b]": "the gold answers cite b, which was rejected: b.pdf",
    }
    for rows, fault in faults.items():
        (tmp_path / "q.csv").write_text(f"id,question,answer_value,ref_id\n{rows}\n")
        said = []
        for command in ("validate", "answer"):
            assert main([command, *given]) == 2
            said += [line for line in capsys.readouterr().err.splitlines() if fault in line]
        assert len(said) == 2, fault
        assert said[0].removeprefix("error: ") == said[1].removeprefix("error: ")
    assert not (tmp_path / "run").exists()
    # A part of a collection may be answered from, as the cluster page does.
    (tmp_path / "q.csv").write_text("id,question,answer_value,ref_id\nq1,How much?,1200,[zebra]\n")
    cites = (
        f"warning: {tmp_path}/q.csv: the gold answers cite 1 document not there (zebra): correct ref_id, or add them"
    )
    assert main(["validate", *given]) == 0
    assert f"{cites} to documents.paths\n" in capsys.readouterr().out
    told: list[str] = []
    check_run(load_config("demo", flags), "answer", told.append)
    assert f"answer  {cites} to documents.paths" in told


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
def test_rows_in_error_may_be_no_failure_of_a_job(stopped, n_errors, flags, code):
    arguments = make_parser().parse_args(["answer", "demo", *flags])
    assert commands._rows_code(arguments, n_errors, is_finished=not stopped) == code


@pytest.mark.parametrize("command", ["index", "answer", "sweep"])
def test_every_command_of_a_job_can_take_rows_in_error_for_success(command, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert "--rows-in-error-ok" in capsys.readouterr().out


def test_an_interrupt_of_which_a_library_makes_an_error_of_its_own_is_the_one_line(capsys, monkeypatch):
    """Pydantic does, while it builds its validators."""
    from kohaku_ray.engine.jobs import index

    def run_index(*_):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            list(range(10**6))
        except BaseException as end:
            raise ValueError from end

    monkeypatch.setattr(index, "run_index", run_index)
    assert main(["index", "demo"]) == 1
    assert capsys.readouterr().err == f"{INTERRUPTED}\n"


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


def test_a_hint_names_the_configuration_that_was_typed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("my.yaml").write_text("base: demo\n")
    typed = ["my.yaml", "--with", "fast", "--set", "run=runs/a b"]
    assert main(["answer", *typed]) == 2
    hint = "build one with `kohaku-ray index my.yaml --with fast --set 'run=runs/a b'`"
    assert capsys.readouterr().err.endswith(f"{hint}\n")
    assert main(["validate", *typed]) == 0
    assert f"{hint}\n" in capsys.readouterr().out


def test_each_commands_example_works(tmp_path, monkeypatch, capsys):
    """As it is typed; of what starts Ray, up to where it does: its configuration is loaded."""
    monkeypatch.chdir(tmp_path)
    assert main(["init", ".", "--gold"]) == 0
    Path("documents/report2023.md").write_text("# Water\n\nThe campus used 1200 m3 of water in 2023.\n")
    Path("questions.csv").write_text("id,question,answer_value,ref_id\nq001,How much water was used?,1200,report2023\n")
    config = load_config("my.yaml", ["documents.metadata=null"])
    index_here(config)
    run_here(config)
    for copy in ("a", "b"):
        shutil.copytree("runs/mine", f"runs/{copy}")
    codes = {}
    for name, example in EXAMPLES.items():
        arguments = shlex.split(example)[1:] if name != "completion" else shlex.split(shlex.split(example)[1][2:-1])[1:]
        if name in {"index", "answer", "bench"}:
            codes[name] = commands._load(make_parser().parse_args(arguments)) is None
        else:
            codes[name] = main(arguments)
    assert codes == dict.fromkeys(EXAMPLES, 0), capsys.readouterr().err
