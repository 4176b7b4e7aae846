"""WattBot's two metrics: ``wattbot`` is the paper's (the published validator), ``kaggle`` the competition's own.

They read the same files. They differ in how values are compared, in the meaning of ``is_blank`` among references and
in the third part: ``wattbot`` averages it over all questions, ``kaggle`` over the truly unanswerable ones (its recall).
Wrong predictions fall into the classes of the paper's decision tree.
"""

from __future__ import annotations

import ast
import functools
import json
import math
import re
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress

from kohaku_ray.evaluation.metrics import Metric, OutcomeMarks, Part
from kohaku_ray.evaluation.submissions import Submission, SubmissionRow
from kohaku_ray.records import BLANK, UNANSWERABLE
from kohaku_ray.values.normalise import normalise, same
from kohaku_ray.values.read import BOOLEANS, fold, is_blank, is_blank_strict

TOLERANCE = 1e-3
"""Of the competition's scorers, relative or absolute."""

_BLANKS = frozenset({"", "na", "n/a", BLANK})
_UNANSWERABLE = UNANSWERABLE.rstrip(".").lower()
_HEDGE = re.compile(
    r"(?:(?:more|less|greater|fewer)\s+than|approximately|about|around|over|under|nearly|roughly|up\s+to|at\s+(?:least|most))"
    r"\s+|[~≈<>]\s*",
    re.IGNORECASE,
)
_SUFFIX = re.compile(r"(-?\d+(?:\.\d+)?)\s*([kmbt])", re.IGNORECASE)
_MAGNITUDES = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
_RANGE = re.compile(r"(?:from\s+)?(-?[\d.]+)\s*(?:[-–—]|to)\s*(-?[\d.]+)", re.IGNORECASE)


def close(truth: float, given: float) -> bool:
    """Tell whether a number is within 0.1 % of the true one, 1e-9 around zero (``wattbot``)."""
    return abs(truth - given) <= max(abs(truth) * 0.001, 1e-9)


def read_float(text: str) -> float | None:
    """Read a number as the published scorers do, which call Python's ``float``."""
    try:
        return float(text)
    except ValueError:
        return None


def wattbot_value(truth: str, given: str) -> float:
    """Score a value by the paper's rule: 1.0 or 0.0.

    Blank (empty or ``is_blank``) matches blank; a range needs both ends; numbers match within 0.1 %, text when folded;
    another type is wrong.
    """
    if is_blank_strict(truth) or is_blank_strict(given):
        return float(is_blank_strict(truth) and is_blank_strict(given))
    true_pair = _json_pair(truth)
    if true_pair is not None:
        pair = _json_pair(given)
        return float(pair is not None and all(map(close, true_pair, pair)))
    true_number, number = read_float(truth), read_float(given)
    if true_number is not None and number is not None:
        return float(close(true_number, number))
    return float(true_number is None and number is None and fold(truth) == fold(given))


def _json_pair(text: str) -> tuple[float, ...] | None:
    try:
        items = json.loads(text)
        is_pair = isinstance(items, list) and len(items) == 2 and all(isinstance(item, int | float) for item in items)
        return tuple(map(float, items)) if is_pair else None
    except (ValueError, RecursionError, OverflowError):
        return None


@functools.lru_cache(maxsize=16_384)  # the members of a study cite the same
def wattbot_refs(text: str) -> frozenset[str]:
    """Read a reference set, lower-cased: a Python list, or texts between commas; none where the cell is blank.

    ``is_blank`` within a list is a reference.
    """
    if is_blank_strict(text):
        return frozenset()
    tokens: Iterable[str] = (token.strip() for token in text.strip().strip("[]").split(","))
    with suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an odd escape in a text
        read = ast.literal_eval(text)
        tokens = map(str, read) if isinstance(read, list | tuple | set) else tokens
    return frozenset(token.lower() for token in tokens if token)


@functools.lru_cache(maxsize=16_384)
def official_refs(text: str) -> frozenset[str]:
    """Read a reference set as the competition does, lower-cased: a JSON list, else the cell is one reference.

    ``is_blank`` is a reference like any other.
    """
    text = text.strip()
    if text.startswith("["):
        with suppress(ValueError, RecursionError):
            return frozenset(_text_of(item).strip().lower() for item in json.loads(text.replace("'", '"')))
    return frozenset({text.lower()} if text else ())


def written_refs(refs: Iterable[str]) -> str:
    """Write references as a submission does."""
    return json.dumps(sorted(refs), ensure_ascii=False) if refs else BLANK


def jaccard(truth: frozenset[str], given: frozenset[str]) -> float:
    """Jaccard index of two sets: intersection over union, 1.0 where both are empty."""
    return len(truth & given) / len(truth | given) if truth or given else 1.0


def official_blank(text: str) -> bool:
    """Tell whether the competition's scorers take a cell for blank; ``none`` and ``nan`` are answers."""
    text = text.strip().lower()
    return text in _BLANKS or text.startswith(_UNANSWERABLE)


def kaggle_value(truth: str, given: str) -> float:
    """Score a value by the competition's rule: 1.0 or 0.0.

    A blank truth counts as right. Lists and sets match in any order; one number inside a true range of two is right;
    numbers match within 1e-3, relative or absolute; text matches lower-cased.
    """
    if official_blank(truth):
        return 1.0
    given = given if official_blank(given) else kaggle_normal(given)
    true_items, items = read_items(truth, "[{"), read_items(given, "[{")
    if true_items is not None:
        return float(same_items(true_items, items) if items is not None else lies_inside(true_items, given))
    true_number, number = read_float(truth), read_float(given)
    if true_number is not None and number is not None:
        return float(isclose(true_number, number))
    return float(truth.strip().lower() == given.strip().lower())


def kaggle_normal(given: str) -> str:
    """Convert a submitted value to the competition's form: no hedge, no separators, ``[low,high]``."""
    text = given.strip()
    if text.lower() in BOOLEANS:
        return BOOLEANS[text.lower()]
    text = _without_separators(text)
    hedge = _HEDGE.match(text)
    if hedge:
        text = _without_separators(text[hedge.end() :].strip())
    suffix = _SUFFIX.fullmatch(text)
    if suffix:
        return repr(float(suffix[1]) * _MAGNITUDES[suffix[2].lower()])
    span = _RANGE.fullmatch(text)
    if span:
        low, high = read_float(span[1]), read_float(span[2])
        if low is not None and high is not None:
            return f"[{min(low, high)!r},{max(low, high)!r}]"
    return text


def _without_separators(text: str) -> str:
    bare = text.replace(",", "")
    return text if read_float(bare) is None else bare


def isclose(a: float, b: float) -> bool:
    """Tell whether two numbers differ by at most 1e-3, relative to the larger one or absolute."""
    return math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=TOLERANCE)


def read_items(text: str, opening: str) -> list[float | str] | None:
    """Split a value in brackets into numbers and lower-cased texts; None where it begins with none of ``opening``.

    A list is read as JSON (``[…]`` with either quotes), else cut at its commas; a set ``{…}`` holds texts alone.
    """
    text = text.strip()
    if text[:1] not in opening or f"{text[:1]}{text[-1:]}" not in ("[]", "()", "{}"):
        return None
    inner = text[1:-1]
    if text[0] == "{":
        return sorted({part.strip().lower() for part in inner.split(",") if part.strip()})
    try:
        parts = [*map(_text_of, json.loads("[" + (inner.replace("'", '"') if text[0] == "[" else inner) + "]"))]
    except (ValueError, RecursionError):
        parts = inner.split(",")
    numbers = [read_float(part.strip()) for part in parts]
    return [part.strip().lower() if number is None else number for part, number in zip(parts, numbers, strict=True)]


def _text_of(item: object) -> str:
    return "" if item is None else str(item)


def same_items(truth: Sequence[float | str], given: Sequence[float | str]) -> bool:
    """Compare two lists without order: numbers within the tolerance if all are, else texts."""
    numbers = [sorted(item for item in items if isinstance(item, float)) for items in (truth, given)]
    if all(len(found) == len(items) for found, items in zip(numbers, (truth, given), strict=True)):
        return len(numbers[0]) == len(numbers[1]) and all(map(isclose, *numbers))
    return sorted(str(item) for item in truth) == sorted(str(item) for item in given)


def lies_inside(truth: Sequence[float | str], given: str) -> bool:
    """Tell whether a plain number lies in a true range of two numbers, or within 1e-3 of its ends."""
    ends, number = [item for item in truth if isinstance(item, float)], read_float(given)
    if len(truth) != 2 or len(ends) != 2 or number is None:
        return False
    return min(ends) - TOLERANCE <= number <= max(ends) + TOLERANCE


FALSE_POSITIVE = "false positive"
FALSE_NEGATIVE = "false negative"
UNIT_CONVERSION = "unit conversion"
ROUNDING = "rounding"
VALUE_SELECTION = "value selection"
TYPE_MISMATCH = "type mismatch"
CATEGORICAL_MISMATCH = "categorical mismatch"
REFERENCE_MISMATCH = "reference mismatch"

CLASS_NOTES = {
    FALSE_POSITIVE: "answered, but the truth is that there is no answer",
    FALSE_NEGATIVE: "abstained, but the truth has an answer",
    UNIT_CONVERSION: "off by a power of ten, within 5 %",
    ROUNDING: "at most 10 % off the true number",
    VALUE_SELECTION: "another number, farther off than rounding",
    TYPE_MISMATCH: "a number where the truth is a range or text, or the other way round; "
    "or the right value, spelled as the scorer does not read it",
    CATEGORICAL_MISMATCH: "another text than the truth, or no for yes",
    REFERENCE_MISMATCH: "the right value, but other references than the truth",
}
"""What each class means, in a few words."""

ERROR_CLASSES = tuple(CLASS_NOTES)


def classify(truth: SubmissionRow, given: SubmissionRow) -> str | None:
    """Name the class of a wrong prediction; None where nothing is wrong.

    Wrong means less than the full ``wattbot`` score; see ``class_of``.
    """
    return class_of(truth, given, wattbot_value(truth.answer_value, given.answer_value))


def class_of(truth: SubmissionRow, given: SubmissionRow, value_score: float) -> str | None:
    """Name the class of a prediction whose value has a score (1.0: right); None where nothing is wrong.

    The decision tree of KohakuRAG's paper (C.1), with values read as a vote reads them: of a right value the references
    are compared, and a range is a unit conversion or a rounding error when each of its wrong ends is one.
    """
    if is_blank(truth.answer_value) and not is_blank(given.answer_value):
        return FALSE_POSITIVE
    if is_blank(given.answer_value) and not is_blank(truth.answer_value):
        return FALSE_NEGATIVE
    if value_score:
        return None if wattbot_refs(truth.refs_raw) == wattbot_refs(given.refs_raw) else REFERENCE_MISMATCH
    true_value, value = (normalise(row.answer_value, truth.answer_unit) for row in (truth, given))
    true_numbers, numbers = true_value.numbers, value.numbers
    kinds = {"text" if read.kind == "list" else read.kind for read in (true_value, value)}
    if same(true_value, value) or len(kinds) > 1 or true_value.dimension != value.dimension:
        return TYPE_MISMATCH
    if not numbers or {fold(truth.answer_value), fold(given.answer_value)} <= BOOLEANS.keys():
        return CATEGORICAL_MISMATCH
    pairs = list(zip(true_numbers, numbers, strict=True))
    wrong = [pair for pair in pairs if not close(*pair)] or pairs
    if all(is_unit_conversion(truth, given) for truth, given in wrong):
        return UNIT_CONVERSION
    if all(is_rounding(truth, given) for truth, given in wrong):
        return ROUNDING
    return VALUE_SELECTION


def is_unit_conversion(truth: float, given: float) -> bool:
    """Tell whether ``given / truth`` lies within 5 % of a power of ten other than 1."""
    ratio = given / truth if truth else 0.0
    if not 0.0 < ratio < math.inf:
        return False
    exponent = round(math.log10(ratio))
    return exponent != 0 and abs(ratio / 10.0**exponent - 1.0) <= 0.05


def is_rounding(truth: float, given: float) -> bool:
    """Tell whether a number misses the true one by at most 10 %."""
    return abs(given - truth) <= 0.1 * abs(truth)


_VALUE, _REF = Part(0.75), Part(0.15, "references")


def _rate_wattbot(truth: SubmissionRow, given: SubmissionRow) -> dict[str, float]:
    abstains = is_blank_strict(given.answer_value) and is_blank_strict(given.refs_raw)
    return {
        "value": wattbot_value(truth.answer_value, given.answer_value),
        "ref": jaccard(wattbot_refs(truth.refs_raw), wattbot_refs(given.refs_raw)),
        "abstain": float(not is_blank_strict(truth.answer_value) or abstains),
    }


def _mark_wattbot(truth: Submission) -> OutcomeMarks:
    rows = list(truth.rows.values())
    gold = [wattbot_refs(row.refs_raw) for row in rows]
    return OutcomeMarks(
        by_value={"value": lambda number, text: wattbot_value(rows[number].answer_value, text)},
        by_refs={"ref": lambda number, refs: jaccard(gold[number], refs)},
        by_blank={"abstain": lambda number, blank: float(blank or not is_blank_strict(rows[number].answer_value))},
    )


def _mark_kaggle(truth: Submission) -> OutcomeMarks:
    rows = list(truth.rows.values())
    gold = [official_refs(row.refs_raw) for row in rows]
    return OutcomeMarks(
        by_value={"value": lambda number, text: kaggle_value(rows[number].answer_value, text)},
        by_refs={"ref": lambda number, refs: jaccard(gold[number], official_refs(written_refs(refs)))},
        by_blank={"abstain": lambda number, blank: float(blank or not official_blank(rows[number].answer_value))},
    )


WATTBOT = Metric(
    name="wattbot",
    title="WattBot's score by the paper's rules",
    parts={"value": _VALUE, "ref": _REF, "abstain": Part(0.10, "abstention")},
    rate=_rate_wattbot,
    unanswerable=lambda truth: is_blank_strict(truth.answer_value),
    marks=_mark_wattbot,
    classify=classify,
    classes=ERROR_CLASSES,
    class_notes=CLASS_NOTES,
)

KAGGLE = Metric(
    name="kaggle",
    title="WattBot's score by the competition's rules",
    parts={"value": _VALUE, "ref": _REF, "abstain": Part(0.10, "abstention", of_unanswerable=True)},
    rate=lambda truth, given: {
        "value": kaggle_value(truth.answer_value, given.answer_value),
        "ref": jaccard(official_refs(truth.refs_raw), official_refs(given.refs_raw)),
        "abstain": float(not official_blank(truth.answer_value) or official_blank(given.answer_value)),
    },
    unanswerable=lambda truth: official_blank(truth.answer_value),
    marks=_mark_kaggle,
    classify=classify,
    classes=ERROR_CLASSES,
    class_notes=CLASS_NOTES,
)
