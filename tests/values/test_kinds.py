"""The kind of value that a question asks for, of real questions."""

from kit.rows import check_rows

from kohaku_ray.values.kinds import kind_of

Q296 = "What was the observed range of inference energy per second for LLaMA-65B across GPU shard configurations?"
Q474 = (
    "For the four notable models studied in depth, R&D staff costs including equity accounted for what percentage "
    "range of the total amortized cost?"
)
Q091 = (
    "From a sample of 60 papers from top AI conferences, what is the difference between the percentage of CVPR papers "
    "that target accuracy and the percentage of CVPR papers that target efficiency?"
)


@check_rows(
    ("question", "unit", "kind"),
    [
        (Q296, "W", "range"),  # WattBot 2025: as a number, the short instructions asked for one, and 300 came back
        (Q474, "percent", "range"),  # WattBot 2026
        ("Between which values does the PUE of the data centers lie?", "PUE", "range"),  # a unit of no dimension
        (Q091, "percent", "number"),  # "between", and no range
    ],
)
def test_a_range_is_asked_for_where_the_question_says_so(question, unit, kind):
    assert kind_of(question, unit, None) == kind
