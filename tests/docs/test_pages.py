"""README and docs/: commands run or parse, examples load, links lead somewhere, generated pages are up to date."""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from kit.rows import check_rows
from run_files import answer, ballot, match, plan, usage, write_run, write_truth

from kohaku_ray.cli import main
from kohaku_ray.cli.arguments import make_parser
from kohaku_ray.config import load_config
from kohaku_ray.config.paths import preset_names
from kohaku_ray.evaluation.submissions import COLUMNS
from kohaku_ray.evaluation.truth import GOLD_COLUMNS, gold_template
from kohaku_ray.extensions import BUILT_IN
from kohaku_ray.index.build import REJECT_SCHEMA
from kohaku_ray.index.flatten import DOCUMENT_SCHEMA, NODE_SCHEMA
from kohaku_ray.store.tables import SCHEMAS
from kohaku_ray.sweep.load import SWEEPS, load_sweep

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
LINKED = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]

_FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
_NAMED_FILE = re.compile(r"^`([\w.]+)`:\n\n```\w+\n(.*?)^```", re.DOTALL | re.MULTILINE)
OWN_SYSTEM = DOCS / "add_a_system.md"


@dataclass(frozen=True)
class Command:
    """A line of a bash block."""

    page: Path
    line: str

    @property
    def words(self) -> list[str]:
        """Its words, without a comment."""
        return shlex.split(self.line, comments=True)

    def __str__(self) -> str:
        return f"{self.page.stem}: {self.line}"


def blocks(page: Path, *languages: str) -> list[str]:
    """Return a page's fenced blocks in some languages."""
    return [text for language, text in _FENCE.findall(page.read_text(encoding="utf-8")) if language in languages]


def commands(page: Path) -> list[Command]:
    """Return every command of a page's bash blocks."""
    lines = [line.strip() for block in blocks(page, "bash", "sh") for line in block.split("\n")]
    return [Command(page, part) for line in lines if line and not line.startswith("#") for part in line.split(" && ")]


def yaml_files(page: Path) -> dict[str, str]:
    """Return a page's YAML blocks that begin with a file's name, by that name."""
    matches = (re.match(r"# (\S+\.yaml)\n", block) for block in blocks(page, "yaml"))
    return {match[1]: match.string for match in matches if match}


def named_files(page: Path) -> dict[str, str]:
    """Return a page's blocks that follow a line of a file's name and a colon, by that name."""
    return dict(_NAMED_FILE.findall(page.read_text(encoding="utf-8")))


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title.lower())).strip("-") for title in titles}


def links(page: Path) -> list[str]:
    """Return the targets of a page's links and pictures."""
    text = re.sub(r"`[^`\n]*`", "", _FENCE.sub("", page.read_text(encoding="utf-8")))
    return re.findall(r"\]\(([^)\s]+)\)", text)


COMMANDS = [command for page in PAGES for command in commands(page)]
OURS = [command for command in COMMANDS if command.words[0] == "kohaku-ray"]
OTHERS = [command for command in COMMANDS if command.words[0] != "kohaku-ray"]
CHEAP = ("validate", "show", "score", "vote", "compare", "report", "documents", "--help")
ABSENT = ("models/", "encoders/", "--probe", "wattbot", "narrative", "runs/tickets")
"""Words of commands that need a model, an encoder, data or a run that no test here has."""
YAML = {name: text for page in PAGES for name, text in yaml_files(page).items()}


def is_there(command: Command) -> bool:
    return not any(word in command.line for word in ABSENT)


def is_cheap(command: Command) -> bool:
    words = command.words
    return is_there(command) and (words[1] in CHEAP or "--dry-run" in words)


def needs_ray(command: Command) -> bool:
    """Is it a job of the reader's own configuration? Presets are indexed and answered by tests of the engine."""
    if command.words[0] != "kohaku-ray" or not is_there(command) or is_cheap(command):
        return False
    return command.words[1] in ("index", "answer", "ask") and command.words[2] == "my.yaml"


def write_project(home: Path) -> Path:
    """Write what the pages speak of: their YAML files, documents, questions, a truth and a recorded run."""
    for name, text in (YAML | named_files(OWN_SYSTEM)).items():
        (home / name).write_text(text)
    (home / "docs").mkdir()
    text = "# Water report\n\nIn 2023 the campus used 41,200 m3 of water. Most of it cooled servers.\n"
    (home / "docs" / "water_report.md").write_text(text)
    (home / "questions.csv").write_text(gold_template())
    given = [answer("s001", member, "41") for member in range(3)]
    question = "How many MW did the hall draw?"
    trace = [*plan("s001", question), match("s001")]
    calls = [usage("s001", member) for member in range(3)]
    write_run(home / "runs" / "demo", [(ballot("s001", question, given), given)], trace=trace, calls=calls)
    write_truth(home / "truth.csv", ("s001", "41", ["a2024"]))
    return home


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.setenv("KOHAKU_MODEL", "some/model")
    monkeypatch.chdir(write_project(tmp_path))
    return tmp_path


@pytest.mark.parametrize("command", OURS, ids=str)
def test_a_command_parses_and_its_configuration_loads(command, project):
    if command.words[1] == "--help":
        return
    arguments = make_parser().parse_args(command.words[1:])
    if "sweep" in arguments:
        assert load_sweep(arguments.sweep, arguments.base).sweep.n_cells > 1
    elif "config" in arguments and "narrative" not in command.line:
        names = [arguments.config, *arguments.others]
        assert load_config(names, arguments.overrides).system


@pytest.mark.parametrize("page", [page for page in PAGES if any(map(is_cheap, commands(page)))], ids=lambda p: p.stem)
def test_commands_without_a_cluster_run(page, project, capsys):
    for command in (command for command in commands(page) if command.words[0] == "kohaku-ray" and is_cheap(command)):
        if command.words[1] == "--help":
            with pytest.raises(SystemExit) as ended:
                main(["--help"])
            code = ended.value.code
        else:
            code = main(command.words[1:])
        printed = capsys.readouterr()
        assert code == 0, f"{command}\n{printed.out}\n{printed.err}"
        assert printed.out.strip()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_commands_on_a_cluster_run_and_the_readmes_own_documents_are_answered(project, cluster, tiny_encoder, capsys):
    """All pages' commands once, in their order; two questions of two members are enough."""
    wanted = {tuple(command.words): command for page in PAGES for command in commands(page) if needs_ray(command)}
    few = [f"index.encoder.model={tiny_encoder}", "index.encoders=1", "questions.limit=2", "ensemble.members=2"]
    few += ["cluster.retriever.replicas=1"]
    overrides = [part for item in few for part in ("--set", item)]
    for command in wanted.values():
        job, *rest = command.words[1:]
        again = ["--again"] if job == "answer" else []  # the project has a finished run
        code = main([job, *rest, *overrides, *again])
        printed = capsys.readouterr()
        assert code == 0, f"{command}\n{printed.out}\n{printed.err}"
    assert "41,200" in (project / "runs" / "mine" / "submission.csv").read_text()


@check_rows("command", OTHERS)
def test_another_programs_command_names_files_and_targets_that_are_there(command):
    program, *words = command.words
    known = {"make", "source", "ray", "ls", "docker", "kubectl", "export", "python", "pip", "sbatch", "sed", "until"}
    assert program in known, command
    for word in words:
        if re.match(r"(cluster|jobs|scripts|benchmarks|configs)/", word):
            assert (ROOT / word).is_file(), word
    if program == "make":
        assert re.search(rf"^{words[0]}:.*##", (ROOT / "Makefile").read_text(), re.MULTILINE), words[0]
    if "kohaku-ray" in words and program != "pip":
        assert make_parser().parse_args(words[words.index("kohaku-ray") + 1 :]).command


def test_commands_in_the_text_name_commands_that_are_there():
    [action] = [action for action in make_parser()._actions if isinstance(action, argparse._SubParsersAction)]
    text = "\n".join(page.read_text() for page in PAGES)
    named = set(re.findall(r"`kohaku-ray (\w+)", text))
    assert named <= set(action.choices)
    on_page = set(re.findall(r"^\| `kohaku-ray (\w+)", (DOCS / "commands.md").read_text(), re.MULTILINE))
    assert on_page == set(action.choices)


@check_rows("page", [page for page in PAGES if blocks(page, "yaml")])
def test_yaml_blocks_load(page, project):
    for block in blocks(page, "yaml"):
        (project / "block.yaml").write_text(block)
        if set(yaml.safe_load(block)) == {"race"}:
            (project / "block.yaml").write_text(f"axes: {{kohaku.top_k: [4, 8]}}\n{block}")
        if {"axes", "tables", "race"} & yaml.safe_load(block).keys():
            assert load_sweep("block.yaml", []).sweep.n_cells > 1
        else:
            assert load_config("block.yaml").system == ("tickets:SYSTEM" if page == OWN_SYSTEM else "kohaku")


@check_rows("page", LINKED)
def test_links_lead_somewhere(page):
    for target in links(page):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        if anchor:
            assert anchor in anchors(file), target
        if page.parent == DOCS:
            assert file.is_relative_to(DOCS), f"{target}: the site holds docs/ alone"


def columns(page: Path, title: str) -> list[str]:
    """Return the names in the first column of the table under a heading."""
    section = re.split(r"^#+ ", page.read_text(), flags=re.MULTILINE)
    [text] = [part for part in section if part.split("\n", 1)[0] == title]
    return re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)


@check_rows(
    ("title", "names"),
    [
        *((f"{name}.parquet", schema.names) for name, schema in SCHEMAS.items()),
        ("submission.csv", COLUMNS),
        ("nodes", NODE_SCHEMA.names),
        ("documents", DOCUMENT_SCHEMA.names),
        ("rejects", REJECT_SCHEMA.names),
    ],
)
def test_every_column_of_every_table_is_on_the_page(title, names):
    assert columns(DOCS / "outputs.md", title) == list(names)


def test_the_gold_format_is_the_codes():
    assert set(GOLD_COLUMNS) <= set(re.findall(r"^\| `(\w+)` \|", (DOCS / "documents.md").read_text(), re.MULTILINE))
    assert blocks(DOCS / "documents.md", "csv") == [gold_template()]


def test_every_metric_is_defined():
    defined = re.findall(r"^\| `(\w+)` \|", (DOCS / "metrics.md").read_text(), re.MULTILINE)
    assert set(BUILT_IN["metrics"]) <= set(defined)


def test_every_page_is_in_the_navigation():
    named = set(re.findall(r": (\w+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert named == {page.name for page in DOCS.glob("*.md")}


def test_presets_and_sweeps_that_the_pages_name_are_there():
    text = "\n".join(page.read_text() for page in PAGES)
    for name in set(re.findall(r"(?<![/\w])((?:models|encoders)/\w+)\b(?!\.py)", text)):
        assert (ROOT / "configs" / f"{name}.yaml").is_file(), name
    named = set(re.findall(r"kohaku-ray sweep (\w+)", (DOCS / "paper.md").read_text()))
    assert named == {file.stem for file in SWEEPS.glob("*.yaml")}


def test_the_keys_of_a_sweep_stand_on_its_page():
    from kohaku_ray.sweep import load

    text = (DOCS / "sweeps.md").read_text()
    sections = {"": load.SweepConfig, "race.": load.RaceConfig, "tables.": load.TableConfig, "pool.": load.PoolConfig}
    nested = {"race", "tables", "tables.pool"}
    keys = {f"{prefix}{name}" for prefix, section in sections.items() for name in section.model_fields}
    assert {key for key in keys if f"| `{key}` |" not in text} <= nested


def test_every_preset_stands_on_the_configuration_page():
    text = (DOCS / "configuration.md").read_text()
    assert {name for name in preset_names() if "/" not in name and f"`{name}`" not in text} == set()


def test_the_site_builds_strictly_and_asks_nothing_of_a_network(tmp_path):
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: the extra docs has it")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "index.html").read_text()
    assert not re.findall(r"""(?:src|href)=["']?https?://[^"'> ]+\.(?:js|css|woff2?)""", page)
    assert not re.findall(r"""<(?:img|script|iframe)[^>]+src=["']?https?://""", page)
