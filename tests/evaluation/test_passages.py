"""Metrics of what a model was shown, on traces written by hand."""

import csv

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kohaku_ray.errors import DataError
from kohaku_ray.evaluation.passages import gold_numbers, quotations_of
from kohaku_ray.evaluation.report import run_score
from kohaku_ray.evaluation.submissions import SubmissionRow
from kohaku_ray.store.tables import SCHEMAS

GPT3 = "Training GPT-3 consumed an estimated 1,287 MWh of electricity in Microsoft's data centers."
WATER = "A medium-sized data center can evaporate about 300,000 gallons of water on a hot day."
OTHER = "The authors thank their colleagues for many helpful comments on earlier drafts."


def shown(question_id, *texts, member=-1, attempt=0, doc_id="doc"):
    return [
        {
            "question_id": question_id,
            "member": member,
            "attempt": attempt,
            "step": "context",
            "rank": rank,
            "node_id": f"{doc_id}:sec0:p{rank}",
            "doc_id": doc_id,
            "text": text,
        }
        for rank, text in enumerate(texts)
    ]


def write_csv(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)


@pytest.fixture
def score(tmp_path):
    def compute(truth, trace, metric):
        write_csv(tmp_path / "truth.csv", truth)
        run = tmp_path / "run"
        run.mkdir()
        given = [{"id": row["id"], "answer_value": "is_blank", "ref_id": "is_blank"} for row in truth]
        write_csv(run / "submission.csv", given)
        if trace is not None:
            pq.write_table(pa.Table.from_pylist(trace, SCHEMAS["trace"]), run / "trace.parquet")
        [record] = run_score(tmp_path / "truth.csv", [run / "submission.csv"], [metric]).records
        return record

    return compute


def gold(question_id, value="5", quotation="", refs='["doc"]'):
    return {"id": question_id, "answer_value": value, "ref_id": refs, "supporting_materials": quotation}


def test_a_quotation_counts_where_a_passage_has_its_words_in_order(score):
    trace = shown("q1", OTHER, WATER, GPT3) + shown("q2", OTHER, " ".join(sorted(GPT3.split())))
    quotation = '"Training GPT-3 consumed an estimated 1,287 MWh of electricity"'
    record = score([gold("q1", quotation=quotation), gold("q2", quotation=quotation)], trace, "passages")
    assert (record["recall"], record["n"]) == (0.5, 2)
    assert record["mrr"] == pytest.approx((1 / 3 + 0) / 2)
    assert record["documents"] == 1.0


@pytest.mark.parametrize(
    ("quoted", "read"),
    [
        ("The ﬁrst eﬃcient oﬃce ﬂow needs diﬀerent ﬁles.", "The first efficient office flow needs different files."),
        ("\uff27\uff30\uff34\uff0d\uff13 used \uff11\uff12 MWh of electricity", "GPT-3 used 12 MWh of electricity"),
        ("GPT\u20113 used non\u2011renewable, low\u2011cost power", "GPT-3 used non-renewable, low-cost power"),
        ("carbon \u200bemis\u00adsions of \ufeffdata cen\u00adters grew", "carbon emissions of data centers grew"),
    ],
)  # fmt: skip
def test_a_quotation_copied_from_a_page_counts_whatever_its_characters(score, quoted, read):
    assert score([gold("q", quotation=f'"{quoted}"')], shown("q", OTHER, read), "passages")["recall"] == 1.0


def test_each_of_several_quotations_counts(score):
    truth = [gold("q", quotation=f'doc: "{GPT3}", other: "{WATER}"', refs='["doc", "other"]')]
    record = score(truth, shown("q", WATER), "passages")
    assert (record["recall"], record["mrr"], record["documents"]) == (0.5, 1.0, 0.5)


def test_questions_without_quotation_or_number_are_left_out(score):
    truth = [gold("q1", "53", f'"{GPT3}"'), gold("q2", "is_blank", f'"{GPT3}"'), gold("q3", "53", "Table 1")]
    record = score(truth, shown("q1", GPT3), "passages")
    assert (record["recall"], record["n"]) == (1.0, 1)


@pytest.mark.parametrize(
    ("value", "text", "right"),
    [
        ("1287", GPT3, 1.0),
        ("1286.5", GPT3, 1.0),  # within 0.1 %
        ("128", GPT3, 0.0),
        ("[1,287]", GPT3, 0.0),
        ("[10,50]", "roughly 10 - 50 medium-length responses", 1.0),
        ("(a, b)", GPT3, None),
        ("(300000, 1287)", f"{GPT3} {WATER}", 1.0),
        (".5", "a share of .5 per cent", 1.0),
        ("0.5", "version 2.0.5 of the tool", 0.0),
        ("-4.5", "demand changed by −4.5 per cent", 1.0),
        ("6100000000", "a 6.1 billion parameter model", 1.0),
        ("6.1", "a 6.1 billion parameter model", 1.0),
        ("5600000000", "costs of $5.6B in 2023", 1.0),
        ("5600000000", "5.6 Bytes", 0.0),
    ],
)
def test_every_number_of_the_gold_value_must_stand_in_the_context(score, value, text, right):
    truth = [gold("q", value), gold("sure", "7")]
    record = score(truth, shown("q", text) + shown("sure", "seven is 7"), "context_value")
    assert record["n"] == (1 if right is None else 2)
    assert record["value"] == (1.0 if right is None else (1 + right) / 2)


def test_true_and_false_are_no_numbers_to_look_for():
    assert [gold_numbers(SubmissionRow("q", answer_value=value)) for value in ("1", "0", "is_blank", "[1,2]")] == [
        (),
        (),
        (),
        (1.0, 2.0),
    ]


def test_only_the_first_attempt_counts_and_of_members_with_own_plans_the_first(score):
    trace = shown("q", OTHER, member=1) + shown("q", GPT3, member=2) + shown("q", GPT3, member=1, attempt=1)
    assert score([gold("q", "1287")], trace, "context_value")["value"] == 0.0


def test_a_question_without_context_has_none(score):
    assert score([gold("q", "1287", f'"{GPT3}"')], shown("other", GPT3), "passages")["recall"] == 0.0


def test_a_submission_without_a_run_is_refused_with_the_way_out(score):
    with pytest.raises(DataError, match=r"submission\.csv: has no trace\.parquet .* name a run's directory"):
        score([gold("q", "1287")], None, "context_value")


def test_quotation_marks_win_over_sentences_and_names_of_places_are_no_quotations():
    assert quotations_of("Table 1") == ()
    assert quotations_of(f"See “{GPT3}” and section 3.") == (GPT3,)
    assert quotations_of(f"Section 4: '{WATER}'") == (WATER,)
    assert quotations_of(f"{GPT3} {WATER}") == (GPT3, WATER)
