"""Truth files: each metric says which columns it needs and what a gold answer is."""

from pathlib import Path

import pytest

from kohaku_ray.errors import DataError
from kohaku_ray.evaluation.metrics import find_metric
from kohaku_ray.evaluation.report import run_score
from kohaku_ray.evaluation.truth import has_gold, read_truth, scored_rows

LABEL, EXACT, WATTBOT = map(find_metric, ("label", "exact", "wattbot"))

STORIES = "id,content,label\na,One.,consistent\nb,Two.,contradict\nc,Three.,\nd,Four.,perhaps\ne,Five.,1\n"


def written(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_a_question_file_with_labels_is_a_truth_of_labels(tmp_path):
    truth = read_truth(written(tmp_path / "stories.csv", STORIES), [LABEL])
    assert has_gold(truth, [LABEL])
    assert not has_gold(truth, [EXACT])
    assert [LABEL.gold(row) for row in truth.rows.values()] == ["consistent", "contradict", "", "", "consistent"]


@pytest.mark.parametrize(
    ("header", "metrics", "lacking"),
    [
        ("id,content", [LABEL], "label or answer_value"),
        ("id,label", [EXACT], "answer_value"),
        ("id,label", [WATTBOT], "answer_value, ref_id"),
        ("id,answer_value", [LABEL, WATTBOT], "ref_id"),
        ("label,answer_value,ref_id", [LABEL], "id or question_id"),
    ],
)
def test_a_missing_column_is_named_with_those_there(tmp_path, header, metrics, lacking):
    path = written(tmp_path / "truth.csv", f"{header}\n")
    with pytest.raises(DataError, match=f"has no column {lacking}; its columns are {header.replace(',', ', ')}: "):
        read_truth(path, metrics)


def test_a_question_without_a_label_is_not_scored_and_is_named(tmp_path):
    truth = written(tmp_path / "stories.csv", STORIES)
    given = written(tmp_path / "run.csv", "id,answer_value,ref_id\n" + "".join(f"{key},1,x\n" for key in "abcde"))
    report = run_score(truth, [given], ["label"])
    assert (report.records[0]["score"], report.records[0]["n"]) == (2 / 3, 3)
    assert report.files[0].extra == ("c", "d")


def test_a_limit_counts_the_files_questions_not_the_labelled_ones(tmp_path):
    truth = read_truth(written(tmp_path / "stories.csv", STORIES), [LABEL])
    assert list(scored_rows(truth, [LABEL], 4).rows) == ["a", "b"]
    assert list(scored_rows(truth, [EXACT], 4).rows) == ["a", "b", "c", "d"]
