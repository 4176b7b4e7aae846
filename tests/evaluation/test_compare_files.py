from __future__ import annotations

import json
import re
from dataclasses import asdict

import numpy as np
import pytest

from kohaku_ray.errors import ConfigError, DataError
from kohaku_ray.evaluation.compare import compare_files
from kohaku_ray.evaluation.paired import paired_bootstrap, paired_permutation
from kohaku_ray.evaluation.report import parts_of, public_first
from kohaku_ray.evaluation.truth import read_truth
from kohaku_ray.evaluation.wattbot import WATTBOT
from kohaku_ray.pages.score_text import describe_comparison as render

WATTBOTS = ("wattbot", "kaggle")
TRUTH = """id,question,answer_value,ref_id,split
q1,How much?,1000,['a'],public
q2,Which?,GPT-3,"['a','b']",private
q3,When?,is_blank,is_blank,public
q4,Range?,"[80,90]",['c'],private
q5,How many?,5,['d'],
"""
A = 'id,answer_value,ref_id\nq1,1000,a\nq2,gpt-4,"a, b"\nq3,is_blank,is_blank\nq4,"[80,90]",c\nq5,5,d\n'
B = 'id,answer_value,ref_id\nq1,7,a\nq2,gpt-3,"a, b"\nq3,12,x\nq4,"[80,90]","c, d"\nq5,5,d\n'
C = "id,answer_value,ref_id\nq1,1000,a\nq1,3,a\nq2,,\nq4,4,c\nq9,1,a\n,1,a\n"


@pytest.fixture
def files(tmp_path):
    for name, text in (("truth", TRUTH), ("a", A), ("b", B), ("c", C)):
        (tmp_path / f"{name}.csv").write_text(text)
    return {name: str(tmp_path / f"{name}.csv") for name in ("truth", "a", "b", "c")}


def test_two_files_show_what_flipped(files):
    comparison = compare_files(files["truth"], [files["a"], files["b"]])
    pair = comparison.pair
    assert [(flip.question_id, flip.kind) for flip in pair.flips] == [
        ("q1", "right to wrong"),
        ("q3", "right to wrong"),
        ("q2", "wrong to right"),
        ("q4", "other"),
    ]
    assert asdict(pair.flips[0]) == {
        "question_id": "q1",
        "question": "How much?",
        "kind": "right to wrong",
        "truth_value": "1000",
        "truth_refs": "['a']",
        "values": ("1000", "7"),
        "refs": ("a", "a"),
        "scores": (1.0, pytest.approx(0.25)),
    }
    assert (pair.n_lost, pair.n_won, pair.mcnemar_p) == (2, 1, 1.0)
    # q1 −0.75, q2 +0.75, q3 −1, q4 −0.075, q5 0: sums of at least 1.075 are 8 of 16 patterns
    assert pair.interval.mean == pytest.approx(-1.075 / 5)
    assert pair.interval.mean == pytest.approx(comparison.scores[1].score - comparison.scores[0].score)
    assert (pair.permutation.p, pair.permutation.is_exact, pair.permutation.n_nonzero) == (0.5, True, 4)
    assert comparison.split is None
    assert json.loads(json.dumps(asdict(comparison)))["pair"]["n_lost"] == 2


def test_two_files_as_text(files):
    text = render(compare_files(files["truth"], [files["a"], files["b"]]))
    scores, pair, lost, won, other, notes = text.split("\n\n")
    assert scores.splitlines()[0].split() == ["wattbot", "score", "value", "ref", "abstain", "n"]
    assert scores.splitlines()[2].split() == ["a.csv", "0.8500", "0.8000", "1.0000", "1.0000", "5"]
    assert pair.splitlines()[:2] == ["A = a.csv", "B = b.csv"]
    assert pair.splitlines()[2].startswith("B − A: -0.2150, 95% interval -")
    assert "paired permutation test: p = 0.5000 (exact, scores of 4 questions differ); effect size d_z = -" in pair
    assert "values: 2 right to wrong, 1 wrong to right; McNemar exact p = 1.0000" in pair
    assert lost.splitlines()[0].split()[:4] == ["right", "to", "wrong", "truth"]
    assert [line.split()[0] for line in lost.splitlines()[2:]] == ["q1", "q3"]
    assert won.splitlines()[2].split() == ["q2", "GPT-3", "gpt-4", "gpt-3", *["a,", "b"] * 3, "0.2500", "1.0000"]
    assert other.splitlines()[2].split()[-2:] == ["1.0000", "0.9250"]
    assert notes == "the comparison has only 5 questions: with fewer than 20, a difference may be chance"


def test_a_file_against_itself_is_no_difference(files):
    comparison = compare_files(files["truth"], [files["a"], files["a"]])
    assert comparison.pair.flips == ()
    assert (comparison.pair.permutation.p, comparison.pair.mcnemar_p, comparison.pair.d_z) == (1.0, 1.0, 0.0)
    assert "B − A: +0.0000, 95% interval +0.0000 … +0.0000" in render(comparison)


def test_other_question_sets_are_compared_on_the_intersection_and_it_is_said(files):
    comparison = compare_files(files["truth"], [files["a"], files["c"]])
    assert comparison.question_ids == ("q1", "q2", "q4")
    assert [score.n for score in comparison.scores] == [3, 3]
    assert [score.missing for score in comparison.scores] == [0, 0]
    assert comparison.scores[0].parts["value"] == pytest.approx(2 / 3)
    c = files["c"]
    assert comparison.notes == (
        "compared on 3 of the truth's 5 questions: those that all files have",
        f"{c}: 2 missing, scored 0 and not compared: q3, q5",
        f"{c}: 1 not in the truth, not scored: q9",
        f"{c}: 1 doubled, the first row counts: q1",
        f"{c}: 1 row without an id, left out",
        "the comparison has only 3 questions: with fewer than 20, a difference may be chance",
    )
    assert render(comparison).endswith("\n".join(comparison.notes).replace(c, "c.csv"))


def test_what_is_odd_in_many_files_is_said_once(files):
    notes = compare_files(files["truth"], [files["c"]] * 3).notes
    assert "all 3 files: 2 missing, scored 0 and not compared: q3, q5" in notes
    assert len(notes) == 6


def test_what_is_odd_about_the_truth_is_said(files):
    truth = files["truth"]
    with open(truth, "a") as file:
        file.write(TRUTH.splitlines()[1] + "\n")
    assert f"{truth}: 1 doubled, the first row counts: q1" in compare_files(truth, [files["a"], files["b"]]).notes


def test_public_comes_before_private_wherever_it_stands_in_the_file(files, tmp_path):
    header, *lines = TRUTH.splitlines()
    turned = tmp_path / "turned.csv"
    turned.write_text("\n".join([header, *reversed(lines)]) + "\n")
    submissions = [files["a"], files["b"], files["a"]]
    reordered, same = (compare_files(truth, submissions, by="split").split for truth in (turned, files["truth"]))
    assert reordered.labels == tuple(reordered.scores) == ("public", "(empty)", "private")
    assert reordered.ranks == same.ranks
    assert reordered.differences == same.differences
    assert reordered.moves == same.moves
    assert list(parts_of(read_truth(turned, [WATTBOT]), "split")) == ["public", "(empty)", "private"]
    assert public_first(["Private", "Public"]) == ["Public", "Private"], "as Kaggle writes them"


def test_parts_of_the_truth(files):
    comparison = compare_files(files["truth"], [files["a"], files["b"], files["a"]], by="split")
    split = comparison.split
    assert split.labels == ("public", "private", "(empty)")
    assert [score.n for score in (split.scores[label][0] for label in split.labels)] == [2, 2, 1]
    by = {label: [score.score for score in split.scores[label]] for label in split.labels}
    assert by["public"] == pytest.approx([1.0, 0.125, 1.0])  # (0.25 + 0) / 2
    assert by["private"] == pytest.approx([0.625, 0.9625, 0.625])
    assert split.ranks == {"public": (1.5, 3.0, 1.5), "private": (2.5, 1.0, 2.5), "(empty)": (2.0, 2.0, 2.0)}
    assert split.differences["private"] == pytest.approx((-0.375, 0.8375, -0.375))
    assert split.moves["private"] == (-1.0, 2.0, -1.0)
    correlation = split.correlations["public", "private"]
    assert (correlation.pearson, correlation.spearman, correlation.kendall) == pytest.approx((-1.0, -1.0, -1.0))
    assert split.correlations["public", "(empty)"].reason
    assert comparison.pair is None
    assert "3 of the 3 groups of split have few questions: with fewer than 20, a difference may be chance" in (
        comparison.notes
    )


def test_parts_as_text(files):
    comparison = compare_files(files["truth"], [files["b"], files["a"], files["a"]], by="split")
    text = render(comparison)
    _, parts, *differences, correlations, reason, _ = text.split("\n\n")
    first = parts.splitlines()[2]
    assert first.split() == [
        *("a.csv", "1.0000", "0.6250", "1.0000", "-0.3750", "+0.0000"),
        *("1.5", "2.5", "2", "-1", "-0.5"),
    ]
    assert "private − public" in parts.splitlines()[0]
    assert "move to private" in parts.splitlines()[0]
    assert parts.splitlines()[-1].split() == ["n", "2", "2", "1"]
    assert correlations.splitlines()[2].split() == ["public", "~", "private", *["-1.000"] * 3]
    assert correlations.splitlines()[3].split() == ["public", "~", "(empty)", *["n/a"] * 3]
    assert reason == comparison.split.correlations["public", "(empty)"].reason
    private, climbs, falls, empty, *_ = differences
    assert private.splitlines()[2].split() == ["files", "3"]
    assert " ".join(private.split()).endswith(
        "lower on private 2 (66.7%) higher on private 1 (33.3%) the same on both 0 (0.0%) "
        "Pearson, public and the difference -1.000"
    )
    assert climbs.startswith("greatest rises of rank, public to private\nsplit")
    assert climbs.splitlines()[3].split()[:4] == ["b.csv", "3", "1", "+2"]
    assert falls.splitlines()[3].split()[:4] == ["a.csv", "1.5", "2.5", "-1"]
    assert empty.startswith("(empty) − public")


def test_a_hostile_value_stays_one_short_line(files, tmp_path):
    nasty = "\x1b[31mred\r\nnext\u202e" + "x" * 100
    (tmp_path / "b.csv").write_text(f'id,answer_value,ref_id\nq1,"{nasty}",a\n')
    lost = render(compare_files(files["truth"], [files["a"], files["b"]])).split("\n\n")[2]
    assert len(lost.splitlines()) == 3
    assert "[31mred next xxx" in lost
    assert "…" in lost
    assert lost.replace("\n", "").isprintable()


def test_one_file_is_not_enough(files):
    with pytest.raises(ConfigError, match=r"compare takes two or more runs, and got 1 \(.*a\.csv\): name what"):
        compare_files(files["truth"], [files["a"]])
    with pytest.raises(ConfigError, match=r"got 0 \(none\)"):
        compare_files(files["truth"], [])


def test_no_common_questions(files, tmp_path):
    (tmp_path / "b.csv").write_text("id,answer_value,ref_id\nz1,1,a\nz2,1,a\n")
    with pytest.raises(
        DataError, match=r"no question is in all files \(.*truth\.csv has 5, .*a\.csv has 5, .*b\.csv has 2\)"
    ):
        compare_files(files["truth"], [files["a"], files["b"]])


def test_an_interval_that_excludes_0_beside_a_p_that_finds_nothing_says_which_to_go_by(tmp_path):
    for name, n_wrong in (("truth", 0), ("a", 4), ("b", 0)):
        rows = [f"q{n},How many?,{7 if n < n_wrong else n + 10},['d']" for n in range(20)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["id,question,answer_value,ref_id", *rows]))
    text = render(compare_files(str(tmp_path / "truth.csv"), [str(tmp_path / "a.csv"), str(tmp_path / "b.csv")]))
    assert re.search(r"95% interval \+0\.0\d+ … \+0\.\d+", text), "it excludes 0"
    assert "p = 0.1250 (exact, scores of 4 questions differ)" in text
    assert "the interval excludes 0, but p is 0.1250: go by p. Only 4 questions differ, and of few" in text
    assert text.partition("go by p")[2].splitlines()[0].endswith("(with 4 no p is below 0.125)")
    far = [f"q{n},How many?,7,['d']" for n in range(20)]
    (tmp_path / "a.csv").write_text("\n".join(["id,question,answer_value,ref_id", *far]))
    text = render(compare_files(str(tmp_path / "truth.csv"), [str(tmp_path / "a.csv"), str(tmp_path / "b.csv")]))
    assert "go by p" not in text, "they agree"


def test_questions_of_one_document_are_flipped_and_resampled_together(files):
    """q1 and q2 cite a and a, b: each value of the column is a cluster, as inspect's stderr(cluster=) takes them."""
    truth = files["truth"].replace("truth.csv", "by_document.csv")
    rows = TRUTH.replace("split", "document").replace("public", "one").replace("private", "two")
    with open(truth, "w") as file:
        file.write(rows)
    plain = compare_files(truth, [files["a"], files["b"]])
    clustered = compare_files(truth, [files["a"], files["b"]], cluster="document")
    # one: q1 −0.75, q3 −1; two: q2 +0.75, q4 −0.075; q5 by itself 0. Of 4 patterns of −1.75 and +0.675 two reach 1.075.
    assert clustered.pair.n_clusters == 3
    assert (clustered.pair.permutation.p, clustered.pair.permutation.n_nonzero) == (1.0, 2)
    assert clustered.pair.interval.mean == pytest.approx(plain.pair.interval.mean)
    assert "BCa bootstrap over 3 clusters" in render(clustered)
    assert "scores of 2 clusters differ" in render(clustered)
    with pytest.raises(DataError, match=r"has no column dokument; .* Did you mean document\?"):
        compare_files(truth, [files["a"], files["b"]], cluster="dokument")


def test_clusters_of_one_question_change_nothing(files):
    plain, each = (
        compare_files(files["truth"], [files["a"], files["b"]], cluster=by).pair for by in (None, "question")
    )
    assert (each.interval, each.permutation) == (plain.interval, plain.permutation)


def test_a_question_that_no_document_answers_is_a_cluster_by_itself(files):
    documents = iter(["document", "['a']", "['a']", "['is_blank']", "is_blank", ""])
    rows = [f'{line.rpartition(",")[0]},"{next(documents)}"' for line in TRUTH.strip().splitlines()]
    truth = files["truth"].replace("truth.csv", "by_document.csv")
    with open(truth, "w") as file:
        file.write("\n".join(rows))
    assert compare_files(truth, [files["a"], files["b"]], cluster="document").pair.n_clusters == 1 + 3


def test_clusters_of_one_mean_give_an_interval_without_width():
    """Two runs that each win one question about the same document: `compare --cluster` ended with a traceback."""
    for d, documents in (([1, -1, 0, 0], "aabb"), ([0.1, 0.2, -0.3, 0, 0], "aaabb"), ([0, 1, 0, 1], "aabb")):
        interval, test = paired_bootstrap(d, clusters=documents), paired_permutation(d, clusters=documents)
        assert (interval.low, interval.high) == (interval.mean, interval.mean)
        assert "every cluster differs by the same" in interval.reason
        assert (test.p, test.n_nonzero) == ((0.5, 2) if sum(d) > 1 else (1.0, 0))


def test_an_interval_over_clusters_covers_where_one_over_questions_does_not():
    """Ten documents with eight questions each that go right or wrong together; the true difference is 0."""
    covered = {False: 0, True: 0}
    names = [str(document) for document in range(10) for _ in range(8)]
    for seed in range(100):
        effect = np.random.default_rng(seed).normal(0, 1, 10)
        d = np.repeat(effect, 8) + np.random.default_rng(seed + 1000).normal(0, 0.3, 80)
        for clustered in covered:
            interval = paired_bootstrap(d, 999, names if clustered else None)
            covered[clustered] += interval.low <= 0 <= interval.high
    assert covered[True] >= 80
    assert covered[False] <= 60
