"""The paper's figures in the sweeps: which they are, and beside which cells they stand."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from kit import jina_stand_ins
from kit.rows import check_rows

from kohaku_ray.errors import ConfigError, ConflictError
from kohaku_ray.sweep import load as sweep_load
from kohaku_ray.sweep import paper
from kohaku_ray.sweep import plan as sweep_plan
from kohaku_ray.sweep.compare import Axis, SweepCell, SweepTable
from kohaku_ray.sweep.estimate import describe_plan, fixed_lines
from kohaku_ray.sweep.load import load_sweep
from kohaku_ray.sweep.paper import facts_of, paper_lines, with_paper
from kohaku_ray.sweep.plan import SweepPlan, plan_sweep
from kohaku_ray.sweep.published import read_paper

PLACES = {
    "embedding": "Table 1, Figure 8",
    "planner_queries": "Table 1, Figure 11",
    "rerank": "Table 1, Figure 10",
    "prompt_order": "Table 2, Figure 12",
    "bm25": "Table 2, Figure 13",
    "retries": "Table 2, Figure 14",
    "llm": "Table 3, Figure 16",
    "dedup": "Table 6",
    "dimension": "Table 7 (dimension)",
    "temperature": "Table 7 (temperature)",
    "llm_embedding": "Table 8, Figure 7",
    "images": "Table 9, Figure 9",
    "top_k_final": "Figure 15",
    "ensemble_strategy": "Tables 4 (right) and 10, Figure 18",
    "ensemble_blank": "Tables 4 (left) and 11, Figure 17",
    "public_private": "Tables 13 to 16, Figures 24 to 26",
}
"""Where the paper has each sweep's table; `winning_mix` has two tables, of Table 5."""


def figures(name: str) -> dict[tuple[str, ...], float]:
    [of_name] = read_paper().tables[PLACES[name]].figures.values()
    return dict(of_name)


@check_rows("name", PLACES)
def test_a_sweep_bears_the_papers_numbers(name):
    sweep = load_sweep(name).sweep
    assert {table.paper for table in sweep.tables} == {PLACES[name]}
    assert sweep.title.startswith(f"KohakuRAG, {PLACES[name]}: ")


@pytest.mark.parametrize("name", [*PLACES, "winning_mix"])
def test_every_cell_that_the_paper_has_stands_in_its_sweep_with_all_that_the_paper_states(name):
    loaded = load_sweep(name)
    assert loaded.sweep.seeds == (0, 1, 2)
    for table in loaded.sweep.tables:
        published, seen = read_paper().tables[table.paper], []
        for setting in table.settings():
            try:
                facts = facts_of(loaded.config(table, setting, 0))
            except ConflictError:  # images cannot be sent at 0: the cell is skipped
                facts = {}
            labels = published.labels_of(facts | dict(setting.labels))
            if labels is None:
                continue
            seen.append(labels)
            stated = {key: value for key, value in published.setting_of(labels).items() if key != "runs"}
            if facts and table.pool is None:
                assert {key: facts[key] for key in stated} == stated, setting.labels
            elif facts:  # votes over recorded members
                votes = {key: value for key, value in stated.items() if key.startswith("ensemble.")}
                if table.pool.members:
                    assert {key: facts[key] for key in votes} == votes, setting.labels
        every = set(itertools.product(*published.axes.values())) if published.axes else set()
        assert set(seen) == every
        assert not any(set(of_name) - every for of_name in published.figures.values())


@pytest.mark.parametrize("name", ["winning_mix", "public_private"])
def test_figures_of_the_test_set_are_told_and_stand_beside_no_cell(name, make_plan):
    plan = make_plan(name, encoder="")
    lines = paper_lines(plan)
    assert all("its figures stand beside them" not in line for line in lines)
    notes = [read_paper().tables[table.paper].note for table in plan.loaded.sweep.tables]
    assert all(note and any(line.endswith(note) for line in lines) for note in notes)
    if name == "winning_mix":
        assert "submissions: Not the paper's setting in all of them: " in lines[1]
        assert "questions WattBot's 41 (paper: the competition's test set)" in lines[1]
        unnamed = "not named: gpt-oss-120b + BM25 × 5, not named: gemini-3-pro-preview × 1"
        assert lines[2] == f"submissions: The paper does not have submission {unnamed}."
        assert lines[-1] == "mix: The paper does not have members 1, 3."
    else:
        assert lines[1:] == ["public_private: None of the cells that can be run is in the paper."]


def test_union_where_blanks_vote_is_the_same_in_both_tables():
    strategies, blank = figures("ensemble_strategy"), figures("ensemble_blank")
    assert {labels[1]: figure for labels, figure in strategies.items() if labels[0] == "union"} == {
        labels[1]: figure for labels, figure in blank.items() if labels[0] == "false"
    }
    loaded = load_sweep("ensemble_strategy")
    [table] = loaded.sweep.tables
    assert not any(loaded.config(table, setting, 0).ensemble.vote.ignore_blank for setting in table.settings())


@pytest.fixture(scope="module")
def jina(tmp_path_factory) -> str:
    """A directory that bears the name of the paper's encoder."""
    return str(jina_stand_ins.build(tmp_path_factory.mktemp("models") / "jina-embeddings-v3", "v3", ["a text"]))


@pytest.fixture
def make_plan(tmp_path: Path, monkeypatch, jina):
    """Plan a sweep of the paper as on a machine that has its encoder, its key and its questions."""
    monkeypatch.setenv("OPENROUTER_API_KEY", "k")
    monkeypatch.delenv("KOHAKU_MODEL", raising=False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(sweep_plan, "local_gpus", lambda: 0)
    ids = sorted(paper.truth_of_sweep(load_sweep("rerank", ["demo"]).build(), paper.find_metric("wattbot")).rows)
    monkeypatch.setattr(paper, "WATTBOT", paper.digest(ids))
    monkeypatch.setattr(paper, "find_sources", lambda config: [""] * 32)

    def make(name: str, *overrides: str, encoder: str = jina, on: tuple[str, ...] = ()) -> SweepPlan:
        defaults = [f"index.encoder.model={encoder}"] if encoder else []
        defaults += [f"ledger.path={tmp_path}/ledger", f"index.path={tmp_path}/index"]
        return plan_sweep(load_sweep(name, ["demo", *on], [*defaults, *overrides]))

    return make


@pytest.fixture
def all_encoders(monkeypatch):
    """Every encoder is on this machine, of whose files a plan reads the hashes."""
    monkeypatch.setattr(
        sweep_plan, "index_settings", lambda config: SimpleNamespace(as_mapping=lambda: config.index.model_dump())
    )


def beside(plan: SweepPlan) -> dict[tuple[str, ...], dict[str, float]]:
    """The paper's figures beside the cells of a plan's only table."""
    [planned] = plan.tables
    axes = tuple(Axis(name, labels) for name, labels in planned.table.labels().items())
    cells = tuple(SweepCell(cell.cell_id, cell.labels, "unfinished") for cell in planned.cells)
    table = with_paper(plan, planned, SweepTable(planned.table.name, "", axes, cells))
    assert [f"{table.name}: {note}" for note in table.notes] == paper_lines(plan)
    return {tuple(cell.labels.values()): dict(cell.paper) for cell in table.cells}


def test_the_papers_figures_stand_beside_every_cell_that_has_its_setting(make_plan):
    plan = make_plan("rerank")
    figures_beside = beside(plan)
    assert {labels: item["score"] for labels, item in figures_beside.items() if item} == figures("rerank")
    assert not figures_beside["max", "4"], "a strategy of our own"
    setting, unknown = paper_lines(plan)
    where = "rerank: Table 1, Figure 10 of the paper"
    assert setting.startswith(f"{where}: 12 of 12 cells tested there have its setting; its figures stand beside them. ")
    assert "its frequency, score and combined are one order" in setting
    assert unknown == "rerank: The paper does not have rerank max."
    assert all(f"paper     {line}" in describe_plan(plan, lambda _: set()) for line in (setting, unknown))


CHANGED = {
    "kohaku.alpha=0.7": "kohaku.alpha 0.7 (paper: 0.5)",
    "kohaku.max_context_tokens=8000": "kohaku.max_context_tokens 8000 (paper: none)",
    "ensemble.members=3": "ensemble.members 3 (paper: 1)",
    "kohaku.widen_final=true": "kohaku.widen_final true (paper: false)",
    "index.weights=uniform": "index.weights uniform (paper: tokens)",
    "index.encoder.dim=256": "index.encoder.dim 256 (paper: 768)",
    "roles.answer.temperature=0.0": "roles.answer.temperature 0.0 (paper: 0.7)",
    "questions.limit=5": "questions 5 of sample:questions.csv (paper: WattBot's 41)",
    "model=extractive": "answered by extractive (paper: gpt-oss-120b)",
    "deployments.gateway.model=openai/gpt-5-nano": "answered by gpt-5-nano (paper: gpt-oss-120b)",
}


@check_rows("override", CHANGED)
def test_no_figure_stands_beside_another_setting_and_what_differs_is_named(make_plan, override):
    plan = make_plan("rerank", override)
    assert not any(beside(plan).values())
    setting, differs, _ = paper_lines(plan)
    assert "0 of 12 cells tested there have its setting." in setting
    assert differs.startswith("rerank: Not the paper's setting in all of them: ")
    assert CHANGED[override] in differs


EDITED = {
    "set: {kohaku.queries: 3}": "kohaku.queries 3 (paper: 4)",
    "set: {kohaku.siblings: 3}": "kohaku.siblings 3 (paper: 8)",
    "seeds: [0]": "runs 1 (paper: 3)",
    "prefer: []": "answered by extractive (paper: gpt-oss-120b)",
    "base: default": "kohaku.section_tokens 512 (paper: none)",
}


@pytest.mark.parametrize("line", EDITED)
def test_a_sweep_edited_so_that_it_is_no_longer_the_papers_says_so(make_plan, tmp_path, line):
    """The paper's settings are not the file's: its own `set`, `base` and `prefer` are compared with them."""
    file = tmp_path / "rerank.yaml"
    file.write_text(
        yaml.safe_dump(yaml.safe_load((sweep_load.SWEEPS / "rerank.yaml").read_text()) | yaml.safe_load(line))
    )
    plan = make_plan(str(file))
    assert not any(beside(plan).values())
    setting, differs, _ = paper_lines(plan)
    assert "0 of 12 cells tested there have its setting." in setting
    assert EDITED[line] in differs


def test_retries_plan_again_as_the_papers_algorithm_does(make_plan):
    [setting] = paper_lines(make_plan("retries"))
    assert "9 of 9 cells tested there have its setting; its figures stand beside them." in setting
    assert setting.endswith("each retry widened the matches kept, too.")
    assert "plans with every retry" in describe_plan(make_plan("retries"), lambda _: set())


def test_what_changes_no_output_is_no_other_setting(make_plan):
    same = (
        "cluster.retriever.replicas=2",
        "index.encoder.device=cpu",
        "run=elsewhere",
        "index.encoder.batch_tokens=64",
    )
    assert paper_lines(make_plan("rerank", *same)) == paper_lines(make_plan("rerank"))


def test_a_model_that_the_environment_names_is_not_the_papers(make_plan, monkeypatch):
    monkeypatch.setenv("KOHAKU_MODEL", "openai/gpt-4o")
    [_, differs, _] = paper_lines(make_plan("rerank"))
    assert "answered by gpt-4o (paper: gpt-oss-120b)" in differs


def test_another_collection_is_not_the_papers(make_plan, monkeypatch):
    monkeypatch.setattr(paper, "find_sources", lambda config: [""] * 31)
    [_, differs, _] = paper_lines(make_plan("rerank"))
    assert differs.endswith(": documents 31 (paper: 32).")


@pytest.mark.usefixtures("all_encoders")
def test_cells_that_alone_lack_something_are_named(make_plan, monkeypatch):
    """Without Qwen-VL the rows of captions are made with printed ones: the row of texts still is the paper's."""

    def check(name, deployment, here):
        if name == "eyes":
            raise ConfigError("no key for eyes")

    monkeypatch.setattr(sweep_plan, "check_deployment", check)
    plan = make_plan("embedding", encoder="")
    assert [note.split(" is preferred")[0] for note in plan.notes] == ["models/openrouter_qwen_vl"]
    figures_beside = beside(plan)
    assert [figures_beside["jina-embeddings-v3 (768)", k]["score"] for k in ("4", "8", "16")] == [0.752, 0.801, 0.824]
    assert not figures_beside["jina-embeddings-v3 (768) + captions", "4"]
    setting, differs, unknown = paper_lines(plan)
    assert "3 of 9 cells tested there have its setting; its figures stand beside them." in setting
    images = "jina-embeddings-v3 (768) + captions, jina-embeddings-v4 (512) + images"
    assert differs == f"embedding: Not the paper's setting in embedding {images}: captions printed (paper: Qwen-VL)."
    assert "bge-m3" in unknown


@pytest.mark.usefixtures("all_encoders")
def test_a_cell_that_the_paper_has_without_a_figure_is_told_from_one_that_it_does_not_have(make_plan):
    plan = make_plan("dimension", encoder="")
    assert not any(beside(plan).values())
    setting, unknown = paper_lines(plan)
    assert setting.endswith(" of the paper: 5 of 5 cells tested there have its setting; it gives no figures.")
    assert "(jina-embeddings-v4, 768)" in unknown
    assert "all-MiniLM-L6-v2" in unknown


def test_cells_that_are_skipped_are_counted(make_plan):
    [setting, unknown] = paper_lines(make_plan("llm_embedding", encoder=""))
    assert "0 of 15 cells tested there have its setting; 15 skipped here." in setting
    assert "None of the cells that can be run is in the paper." in unknown


def test_a_table_prefers_presets_of_its_own_within_a_sweep_of_many(make_plan, monkeypatch, tmp_path):
    monkeypatch.delenv("OPENROUTER_API_KEY")
    path = tmp_path / "two.yaml"
    path.write_text(yaml.safe_dump({"base": "paper", "prefer": "encoders/jina_v3", "tables": ["rerank", "images"]}))
    notes = make_plan(str(path), encoder="").notes
    assert any(
        "encoders/jina_v4 is preferred but left out, and the base's own setting stands in images: " in note
        for note in notes
    )
    assert any(
        "openrouter_gpt_oss_120b is preferred but left out, and the base's own setting stands in rerank: " in note
        for note in notes
    )


def test_a_study_of_files_says_which_runs_it_studies_and_no_model(tmp_path):
    for name in ("a-one", "a-two", "b-one"):
        (tmp_path / f"{name}.csv").write_text("id,answer_value,ref_id\ns001,1,x\n")
    pool = {"files": [f"{tmp_path}/*.csv"], "strata": "^[a-z]+"}
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump({"base": "demo", "pool": pool, "axes": {"ensemble.members": [1, 3]}}))
    [line] = fixed_lines(plan_sweep(load_sweep(str(path))))
    assert line == (
        f"study: votes over 3 recorded runs (a 2, b 1), {tmp_path}/*.csv, ensemble.vote.strategy answer_priority, "
        "ensemble.vote.ignore_blank true, ensemble.vote.tiebreak first; all else by default"
    )


@pytest.mark.usefixtures("all_encoders")
def test_what_is_fixed_names_models_and_no_preferences(make_plan):
    [embedding] = fixed_lines(make_plan("embedding", encoder=""))
    assert "images described by eyes (qwen/" in embedding
    assert "roles.caption.model" not in embedding
    [rerank] = fixed_lines(make_plan("rerank", "index.prefer=[encoders/jina_v4]"))
    assert "prefer" not in rerank


def test_every_sweep_of_the_paper_states_its_vote_and_what_else_its_cells_hold_fixed(make_plan):
    [strategy] = fixed_lines(make_plan("ensemble_strategy", "kohaku.siblings=3"))
    for text in (
        "answered by gateway (openai/gpt-oss-120b)",
        "temperature 0.7",
        "ensemble.vote.ignore_blank false",
        "ensemble.scope question",
        "kohaku.siblings 3",
        "16 recorded members of one run; all else by default",
    ):
        assert text in strategy
    [blank] = fixed_lines(make_plan("ensemble_blank"))
    assert "ensemble.vote.strategy union" in blank
    assert "ignore_blank" not in blank, "its own axis"
    [rerank] = fixed_lines(make_plan("rerank"))
    assert "ensemble.vote.strategy answer_priority, ensemble.vote.ignore_blank true" in rerank
    assert re.search(r"3 seeds; all else by default$", rerank)


@pytest.mark.parametrize("place", ["Table 1, Figure 9", "Table 99"])
def test_a_place_that_the_paper_does_not_have_is_answered_with_those_it_has(tmp_path, place):
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"axes": {"kohaku.top_k": [4]}, "paper": place}))
    with pytest.raises(ConfigError, match=rf"paper is {place}.*: name one of Table 1, Figure 8; "):
        load_sweep(str(path))
