"""The page of two runs side by side."""

import json
import re
from pathlib import Path

import pytest
from pages import Tags, check_harmless, opened, plain
from run_files import answer, ballot, index, match, small_run, small_truth, write_run, write_truth
from test_report_hostile import BAD, SHOWN, hostile_run

from kohaku_ray.cli import main
from kohaku_ray.errors import ConfigError
from kohaku_ray.pages.compare_page import write_comparison


def other_run(path):
    """The same questions: q1 lost, q2 won, q3 and q4 as before."""
    values = {"q1": "7", "q2": "52", "q3": "3", "q4": ""}
    given = {key: [answer(key, member, value, ("b2025",)) for member in range(3)] for key, value in values.items()}
    return write_run(path, [(ballot(key, "?", rows), rows) for key, rows in given.items()], trace=[match("q2")])


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    home = tmp_path_factory.mktemp("pair")
    runs = (small_run(home / "a"), other_run(home / "b"))
    index(runs[0] / "index", "a2024", "b2025")
    return runs, small_truth(home / "truth.csv")


def written(runs, truth, path):
    return opened(
        Path(write_comparison(str(truth), [*map(str, runs)], str(path), "wattbot")).read_text(encoding="utf-8")
    )


@pytest.fixture(scope="module")
def page(pair, tmp_path_factory):
    return written(*pair, tmp_path_factory.mktemp("page") / "page.html")


def test_links_lead_to_questions_and_to_selections_of_them(page):
    links = [attributes["href"] for tag, attributes in Tags(page).tags if tag == "a" and "href" in attributes]
    ids = set(re.findall(r'id="([^"]+)"', page))
    assert {"#show:verdict=only+A+right", "#show:verdict=only+B+right", "#q-q1", "#q-q2"} <= set(links)
    assert {link[1:] for link in links if link.startswith("#q-")} <= ids


def test_files_stand_beside_runs(pair, tmp_path):
    runs, truth = pair
    page = written((runs[0], runs[1] / "submission.csv"), truth, tmp_path / "page.html")
    assert page.count("How A came to it") == 4
    assert "How B came to it" not in page
    assert "only B right 1" in plain(page)


def test_hostile_text_is_shown_and_does_nothing(tmp_path):
    truth = write_truth(tmp_path / "truth.csv", (BAD.strip().replace("\0", ""), BAD, [BAD]))
    runs = (hostile_run(tmp_path / "a", BAD), hostile_run(tmp_path / "b", BAD))
    page = written(runs, truth, tmp_path / "page.html")
    check_harmless(page)
    assert Tags(page).text.count(SHOWN) >= 12
    assert "\u202e" not in page


def test_the_command_writes_it_and_takes_two_runs(pair, tmp_path, capsys):
    (a, b), truth = pair
    target = tmp_path / "two.html"
    assert main(["compare", str(a), str(b), "--truth", str(truth), "--page", str(target)]) == 0
    assert f"page: {target}" in capsys.readouterr().out
    assert "<h2>B − A</h2>" in target.read_text()
    assert main(["compare", str(a), str(b), str(a), "--truth", str(truth), "--page", str(target)]) == 2
    assert "--page sets two runs side by side, and got 3" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="got 1"):
        write_comparison(str(truth), [str(a)], str(target), "wattbot")


def test_of_more_runs_the_page_has_the_groups_of_by(tmp_path, capsys):
    truth = tmp_path / "truth.csv"
    truth.write_text("id,answer_value,ref_id,split\nq1,1,a,public\nq2,2,a,private\nq3,3,a,public\nq4,4,a,private\n")
    values = {"first": "1 2 3 4", "second": "1 2 9 4", "<script>alert(1)": "9 2 9 4", "last": "9 9 9 4"}
    files = []
    for name, line in values.items():
        files.append(str(tmp_path / f"{name}.csv"))
        rows = "".join(f"q{number},{value},a\n" for number, value in enumerate(line.split(), 1))
        Path(files[-1]).write_text(f"id,answer_value,ref_id\n{rows}", encoding="utf-8")
    target = tmp_path / "groups.html"
    asked = ["compare", *files, "--truth", str(truth), "--page", str(target)]
    assert main([*asked, "--by", "split"]) == 0
    assert f"page: {target}" in capsys.readouterr().out
    page = opened(target.read_text(encoding="utf-8"))
    check_harmless(page)
    text = plain(page)
    assert "Scores by split public: 2 questions; private: 2 questions." in text
    assert "first 1.0000 1.0000 +0.0000 1 2 -1" in text, "three share the first rank on private"
    # a wrong value with the right reference scores 0.25: 1, 0.625, 0.25, 0.25 on public, 1, 1, 1, 0.625 on private
    assert "files 4 mean +0.3750 standard deviation 0.3062 median +0.3750 least +0.0000 greatest +0.7500" in text
    assert "lower on private 0 (0.0%) higher on private 3 (75.0%) the same on both 1 (25.0%)" in text
    assert len(re.findall("<svg ", page)) == 6
    assert main(["--json", *asked[:-2], "--by", "split"]) == 0
    split = json.loads(capsys.readouterr().out)["split"]
    assert split["differences"]["private"]["mean"] == pytest.approx(0.375)
    assert (split["bands"]["private"][0]["name"], split["bands"]["private"][0]["n"]) == ("1 to 4", 4)
    assert split["ranks"]["private"] == [2, 2, 2, 4]
    assert main(asked) == 2
    assert (
        "name two, give --by COLUMN to compare groups of the questions, or leave --page out" in capsys.readouterr().err
    )


def set_in_run(run, **settings):
    """Note in a run's file what its configuration sets."""
    facts = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(facts | {"settings": settings}))
    return run


@pytest.fixture
def two_cells(tmp_path):
    """Runs that differ in one setting and agree in another, named by hashes as two cells of a sweep."""
    runs = small_run(tmp_path / "runs" / "213118e"), other_run(tmp_path / "runs" / "9c41aa0")
    for run, value in zip(runs, ("frequency", "max"), strict=True):
        set_in_run(run, **{"kohaku.rerank": value, "kohaku.top_k": "8"})
    return runs, small_truth(tmp_path / "truth.csv"), tmp_path


def test_runs_are_named_by_what_they_differ_in_and_that_is_the_first_table(two_cells):
    """users5.md 2.12: the titles were hashes, and no line said which settings differ."""
    runs, truth, home = two_cells
    text = plain(written(runs, truth, home / "page.html"))
    assert "A rerank=frequency B rerank=max What they differ in setting A B kohaku.rerank frequency max " in text
    assert "top_k" not in text
    (home / "sweep").mkdir()
    cells = {
        f"../runs/{run.name}": {"label": f"index.dedup={name}, kohaku.top_k=8, seed=0"}
        for run, name in zip(runs, ("tree", "none"), strict=True)
    }
    (home / "sweep" / "runs.json").write_text(json.dumps({"runs": cells}))
    assert "A dedup=tree B dedup=none What they differ in" in plain(written(runs, truth, home / "page.html"))


def test_runs_of_older_versions_and_files_are_named_by_their_paths(pair, tmp_path, monkeypatch):
    runs, truth = pair
    monkeypatch.chdir(runs[0].parent)
    text = plain(written(("a", "b/submission.csv"), truth, tmp_path / "page.html"))
    assert text.count("What they differ in") == 0
    assert re.search(r"A a B b/submission\.csv (.*)B − A", text)
