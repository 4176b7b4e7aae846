"""A run's directory: what survives a run that is refused, what a new configuration takes away, what is noted."""

import contextlib
import csv
import html
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from kit.damage import damaged
from run_files import CONFIG, FACTS, answer, ballot, item, plan, small_run, small_truth, write_run

from kohaku_ray.checks.gold import GoldFindings
from kohaku_ray.cli import main
from kohaku_ray.config import load_config
from kohaku_ray.errors import ConfigError, DataError
from kohaku_ray.models.summary import AnswerSummary
from kohaku_ray.pages.report import write_report
from kohaku_ray.pages.score_text import describe_run
from kohaku_ray.pages.score_text import describe_scores as render
from kohaku_ray.runs.facts import changed_settings, facts_of, run_record
from kohaku_ray.runs.scoring import score_run, scores_of
from kohaku_ray.runs.truth import own_truth, truth_of
from kohaku_ray.store.directory import RunDirectory, baseline_note, seal_page
from kohaku_ray.store.storage import checksum


def contents(path):
    return {file.relative_to(path): (file.read_bytes(), file.stat().st_mtime_ns) for file in path.rglob("*")}


def config_of(run, *overrides):
    return load_config("demo", [f"run={run}", f"index.path={run}/index", f"ledger.path={run}/ledger", *overrides])


def test_the_check_leaves_nothing_behind_and_touches_nothing_that_is_there(tmp_path):
    run = small_run(tmp_path / "run")
    before = contents(run)
    RunDirectory(str(run)).check_writable()
    assert contents(run) == before
    RunDirectory(str(tmp_path / "new" / "run")).check_writable()
    assert not (tmp_path / "new").exists()
    (tmp_path / "empty").mkdir()
    RunDirectory(str(tmp_path / "empty")).check_writable()
    assert (tmp_path / "empty").is_dir()
    (tmp_path / "file").write_text("here")
    with pytest.raises(DataError, match=r"/file: cannot be made \(File exists\)"):
        RunDirectory(str(tmp_path / "file")).check_writable()


REFUSED = {
    "no such questions": (["questions.path=/none.csv"], DataError),
    "no such metadata": (["documents.metadata=/none.csv"], DataError),
    "no such templates": (["prompts=/none"], ConfigError),
    "more than the cluster has": (["ensemble.members=3", "deployments.extractive.replicas=500"], ConfigError),
    "no index": (["ensemble.members=2"], DataError),
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_run_that_is_refused_leaves_the_old_outputs(tmp_path, monkeypatch, why):
    from kohaku_ray.checks import run
    from kohaku_ray.engine import session
    from kohaku_ray.engine.jobs import answer as job

    monkeypatch.setattr(session, "connect", lambda _: contextlib.nullcontext(False))
    monkeypatch.setattr(job.ray, "cluster_resources", lambda: {"CPU": 2.0})
    monkeypatch.setattr(job.ray, "nodes", lambda: [{"Alive": True, "Resources": {"CPU": 2.0}}])
    monkeypatch.setattr(session, "open_ledger", lambda *_: SimpleNamespace(used=contextlib.nullcontext))

    def no_actors(config, *_):
        raise DataError(f"there is no index at {config.index.path}")

    monkeypatch.setattr(session, "ActorPool", no_actors)
    if why != "no index":
        index = SimpleNamespace(n_shards=1)
        stands_in = {"open_index": index, "identity_of": "", "difference": "", "parser_note": ""}
        stands_in["check_gold"] = GoldFindings("")
        for name, item in stands_in.items():
            monkeypatch.setattr(run, name, lambda *_, stand_in=item, **__: stand_in)
    old = small_run(tmp_path / "run")
    before = contents(old)
    overrides, error = REFUSED[why]
    with pytest.raises(error):
        job.run_answer(config_of(old, *overrides))
    assert contents(old) == before


def test_the_settings_of_a_run_are_noted_for_every_preset():
    """Also where the defaults alone would be refused: narrative's default judge has no seeds for five members."""
    noted = {name: changed_settings(load_config(name)) for name in ("demo", "narrative", "hybrid_vllm")}
    assert noted["demo"] == {"documents.metadata": "sample:metadata.csv"}
    assert (noted["narrative"]["system"], noted["narrative"]["ensemble.members"]) == ("narrative", "1")
    assert noted["hybrid_vllm"]["roles.answer.model"] == "qwen"


def test_a_run_under_way_notes_what_it_is(tmp_path):
    run = tmp_path / "run"
    directory = RunDirectory(str(run))
    directory.check_writable()
    config = config_of(run, "questions.limit=3")
    directory.begin(run_record(config))
    facts = json.loads((run / "run.json").read_text())
    settings = {"documents.metadata": "sample:metadata.csv", "questions.limit": "3"}
    assert facts == {"status": "running", **facts_of(config), "settings": settings}
    assert (facts["system"], facts["limit"], facts["metrics"]) == ("kohaku", 3, ["wattbot", "kaggle"])
    directory.finish(run_record(config), AnswerSummary(str(run), n_questions=3), "")
    facts = json.loads((run / "run.json").read_text())
    assert (facts["status"], facts["n_questions"], facts["limit"]) == ("finished", 3, 3)


def test_the_same_configuration_keeps_the_outputs_and_another_takes_them_away(tmp_path):
    run = small_run(tmp_path / "run")
    for name in ("dossier.md", "mine.txt", "report.html"):
        (run / name).write_text("x")
    config = config_of(run)
    (run / "config.yaml").unlink()
    directory = RunDirectory(str(run))
    directory.begin(run_record(config))  # no configuration before: nothing to tell apart
    assert (run / "answers.parquet").exists()
    (run / "run.json").write_text(json.dumps(FACTS | {"outputs": ["dossier.md"]}))
    directory.begin(run_record(config))
    assert (run / "dossier.md").exists()
    (run / "run.json").write_text(json.dumps(FACTS | {"outputs": ["dossier.md", "../outside.txt", "/"]}))
    (tmp_path / "outside.txt").write_text("x")
    directory.begin(run_record(config_of(run, "seed=1")))
    assert sorted(file.name for file in run.iterdir()) == ["config.yaml", "mine.txt", "run.json"]
    assert (tmp_path / "outside.txt").exists()


def test_rows_in_error_are_those_of_answers_and_steps(tmp_path):
    trace = [
        *plan("q1", "fine"),
        *plan("q2", "two", "three", error="bad plan"),
        item("q3", "argue", member=1, error="x"),
    ]
    run = small_run(tmp_path / "run", trace=trace)
    assert RunDirectory(str(run)).rows_in_error() == {("q2", -1), ("q3", 1), ("q4", 2)}
    (run / "trace.parquet").unlink()
    assert RunDirectory(str(run)).rows_in_error() == {("q4", 2)}
    assert RunDirectory(str(tmp_path / "none")).rows_in_error() == frozenset()


def test_the_baseline_is_named_for_what_it_answered(tmp_path):
    assert baseline_note({"baselines": [], "n_answering": 1}) == ""
    assert baseline_note({"baselines": ["one"], "n_answering": 1}).startswith("Answered by the extractive backend: no")
    mixed = [
        "deployments.big={kind: openai, base_url: 'http://localhost/v1', model: m}",
        "ensemble.members=2",
        "ensemble.models=[big, extractive]",
    ]
    facts = facts_of(config_of(tmp_path, *mixed))
    assert (facts["baselines"], facts["n_answering"]) == (["extractive"], 2)
    assert facts["models"]["answer"] == ["big (openai)", "extractive (extractive)"]
    assert baseline_note(facts).startswith("Answered in part by the extractive backend (extractive): a baseline")


@pytest.mark.parametrize("system", ["kohaku", "nowhere.to_be_found:SYSTEM"])
def test_a_runs_own_questions_are_its_truth_whatever_answered_them(tmp_path, monkeypatch, system):
    truth = small_truth(tmp_path / "truth.csv")
    monkeypatch.setenv("QUESTIONS", str(tmp_path))
    monkeypatch.delenv("KEY", raising=False)
    config = (
        f"system: {system}\nquestions: {{path: '${{QUESTIONS}}/truth.csv'}}\ndeployments: {{a: {{key: '${{KEY}}'}}}}\n"
    )
    run = small_run(tmp_path / "run", config=config)
    assert own_truth(str(run)) == truth_of([str(tmp_path), str(run)]) == str(truth)
    with pytest.raises(DataError, match=r"no run's directory among them names its questions: give --truth CSV"):
        truth_of([str(truth)])
    with pytest.raises(DataError, match=r"nosuch\.csv: no such file or directory"):
        truth_of([str(truth), "nosuch.csv"])
    truth.unlink()
    assert own_truth(str(run)) is None


def said_of(config, summary):
    return describe_run(summary, facts_of(config), config.ensemble.members, *scores_of(config, summary))


def limited_run(tmp_path, limit):
    """A run of the first questions of a larger truth file, and its configuration."""
    truth = small_truth(tmp_path / "truth.csv")
    rows = list(csv.reader(truth.read_text().splitlines()))
    more = [[f"x{number}", *rows[1][1:]] for number in range(3)]
    with truth.open("a", newline="") as handle:
        csv.writer(handle).writerows(more)
    config = config_of(tmp_path / "run", f"questions.path={truth}", *([f"questions.limit={limit}"] if limit else []))
    return small_run(
        tmp_path / "run", facts=FACTS | {"limit": limit}, config=CONFIG + f"questions: {{path: {truth}}}"
    ), config


@pytest.mark.parametrize(("limit", "n", "missing"), [(4, 4, 0), (None, 7, 3)])
def test_page_and_terminal_score_the_same_questions(tmp_path, limit, n, missing):
    run, config = limited_run(tmp_path, limit)
    printed = said_of(config, AnswerSummary(str(run), n_questions=4, n_answers=12))
    scored, _ = score_run(str(run), config.questions.path, ["wattbot", "kaggle"], limit)
    assert [(record["n"], record["missing"]) for record in scored.report.records] == [(n, missing)] * 2
    for record in scored.report.records:
        assert f"{record['score']:.4f}" in printed
    with open(write_report(str(run)), encoding="utf-8") as handle:
        page = handle.read()
    for record in scored.report.records:
        assert f"<b>{record['score']:.4f}</b>" in page
        assert f'<td class="n">{n}</td></tr>' in page
    assert (f"run: {missing} missing, scored 0 and not compared: " in page) == (missing > 0)
    assert render(scored.report).splitlines()[2].split()[-1] == str(missing)


def test_a_run_is_scored_by_the_metrics_of_its_questions(tmp_path):
    truth = small_truth(tmp_path / "truth.csv")
    config = config_of(tmp_path / "run", f"questions.path={truth}", "questions.metrics=[wattbot2026, exact]")
    run = small_run(tmp_path / "run", facts=FACTS | facts_of(config), config=CONFIG + f"questions: {{path: {truth}}}")
    scored, _ = scores_of(config, AnswerSummary(str(run), n_questions=4, n_answers=12))
    assert [record["metric"] for record in scored.report.records] == ["wattbot2026", "exact"]
    with open(write_report(str(run)), encoding="utf-8") as handle:
        assert "wattbot2026" in handle.read()


def test_page_and_terminal_warn_of_few_documents_and_of_an_encoder_that_is_not_here(tmp_path):
    given = [answer("q1", member, "41", flags=["few_sources"] if member else []) for member in range(3)]
    config = config_of(tmp_path / "run", "index.prefer=[encoders/jina_v4]")
    facts = FACTS | facts_of(config)
    run = write_run(tmp_path / "run", [(ballot("q1", "How many MW?", given), given)], facts=facts)
    printed = said_of(config, AnswerSummary(str(run), n_questions=1, n_answers=3, flags={"few_sources": 2}))
    page = html.unescape(Path(write_report(str(run))).read_text(encoding="utf-8"))
    for warning in (
        "2 of 3 answers rest on a context of fewer than three texts",
        "preferred is jinaai/jina-embeddings-v4 (encoders/jina_v4), which this machine does not have",
    ):
        assert warning in printed
        assert warning in page


def test_a_limit_is_not_that_of_another_truth_file(tmp_path):
    run, _ = limited_run(tmp_path, 4)
    truth = tmp_path / "truth.csv"
    head, *rows = truth.read_text().splitlines()
    truth.write_text("\n".join([head, *reversed(rows)]) + "\n")
    scored, _ = score_run(str(run), str(truth), ["exact"], 4)
    assert (len(scored.truth.rows), scored.report.records[0]["n"]) == (7, 7)


@pytest.mark.parametrize(
    ("text", "metric", "message"),
    [
        ("id\nq1\n", "exact", "Nothing is scored: t.csv has no gold answers: it has no column answer_value"),
        (
            "id,answer_value,ref_id\nz9,1,a\n",
            "exact",
            "Nothing is scored: none of the 1 ids of t.csv is in the run: there it is z9, here q1: make the ids agree.",
        ),
        ("id,answer_value,ref_id\nq1,1,a\n", "nowhere.at_all:M", "Nothing is scored: metric nowhere.at_all:M"),
    ],
)
def test_what_cannot_be_scored_says_why_on_the_terminal_too(tmp_path, text, metric, message):
    truth = tmp_path / "t.csv"
    truth.write_text(text)
    run = small_run(tmp_path / "run")
    scored, why_not = score_run(str(run), str(truth), [metric], None)
    assert scored is None
    assert why_not.startswith(message)
    if metric == "exact":
        config = config_of(run, f"questions.path={truth}")
        assert message in said_of(config, AnswerSummary(str(run), n_questions=4, n_answers=12))


@pytest.fixture
def finished(tmp_path):
    run = small_run(tmp_path / "run")
    config = config_of(run)
    (run / "answers.jsonl").write_text('{"id": "q1"}\n')
    RunDirectory(str(run)).finish(run_record(config), AnswerSummary(str(run), n_questions=4, wall_s=0.1), "identity")
    return run, config


MANY = pytest.param(range(2000), marks=[pytest.mark.chaos, pytest.mark.long])


@pytest.mark.parametrize("seeds", [range(60), MANY], ids=len)
def test_no_damage_to_a_finished_run_is_silent(finished, seeds):
    run, _ = finished
    directory, whole = RunDirectory(str(run)), json.loads((run / "run.json").read_text())
    assert directory.damage() == []
    assert {"answers.parquet", "answers.jsonl", "config.yaml"} <= set(whole["checksums"])
    silent = [change for change in damaged(run, seeds) if not directory.damage() and not same(run, whole)]
    assert silent == []
    assert directory.damage() == []


def same(run, whole):
    """Whether the run reads as before: damage to a space of run.json, or to a page, which is no part of the result."""
    listed = {name: checksum((run / name).read_bytes()) for name in whole["checksums"]}
    try:
        return json.loads((run / "run.json").read_text()) == whole and listed == whole["checksums"]
    except ValueError:
        return False


def test_validate_deep_names_every_damaged_file(finished, capsys):
    run, config = finished
    places = [f"--set={key}={run}/{key}" for key in ("index.path", "ledger.path")]  # not a demo's that was run here
    asked = ["validate", "demo", f"--set=run={run}", *places, "--deep"]
    assert main(asked) == 0
    assert "files: index and finished run, where there are any, are as they were written" in capsys.readouterr().out
    for name in ("answers.jsonl", "votes.parquet"):
        (run / name).write_bytes((run / name).read_bytes()[:-1] + b"?")
    assert main(asked) == 2
    printed = capsys.readouterr().err
    assert f"{run}/answers.jsonl is not what the run wrote: repeat `kohaku-ray answer --again`" in printed
    assert f"{run}/votes.parquet is not what the run wrote" in printed
    assert main(asked[:-1]) == 0
    sealed = b"".join(seal_page([b"<p>score ", b"0.5</p>"]))
    (run / "report.html").write_bytes(sealed)
    capsys.readouterr()
    main(asked)
    assert "report.html" not in capsys.readouterr().err
    for page in (b"<p>score 0.9</p>", b"", sealed.replace(b"0.5", b"0.9"), b"".join(seal_page([]))[:-1]):
        (run / "report.html").write_bytes(page)
        assert main(asked) == 2
        assert f"{run}/report.html is not what was written: repeat `kohaku-ray report" in capsys.readouterr().err
    assert not any("report.html" in str(wrong) for wrong in RunDirectory(str(run)).damage()), "no reason for a bundle"
    (run / "report.html").unlink()
    RunDirectory(str(run)).begin(run_record(config))
    assert RunDirectory(str(run)).damage() == [], "a run under way has no checksums yet"


def test_runs_that_start_at_once_in_a_directory_that_is_not_there_yet_can_all_be_made(tmp_path):
    """A run's check leaves no empty directory: it may remove the one above while another run is being made there."""
    with ThreadPoolExecutor(8) as threads:
        runs = [RunDirectory(str(tmp_path / "runs" / f"sweep {number // 8}" / f"{number}")) for number in range(800)]
        list(threads.map(RunDirectory.check_writable, runs))
