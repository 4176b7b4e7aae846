"""Why answers lose points: the step at which the right answer was lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kohaku_ray.pages.questions import IN_PART, RIGHT, QuestionView
from kohaku_ray.records import BLANK

FAILED, NO_ANSWER, VOTE, RETRIEVAL, READING, IN_THE_REST = (
    "model error",
    "no answer exists",
    "vote",
    "retrieval",
    "reading",
    "references or other parts",
)

CAUSE_NOTES: Mapping[str, str] = {
    FAILED: "every member ended in an error, so nothing was answered",
    NO_ANSWER: "an answer was given where the truth says that there is none",
    VOTE: "a member had the right value, and lost the vote",
    RETRIEVAL: "no document of the truth is in any step before the answer",
    READING: "no member read the right value, though a document of the truth was found or cannot be traced",
    IN_THE_REST: "the value is right, another part of the score is not",
}
"""What each cause means, in the order in which they are looked for."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Questions that lose points for one cause.

    Attributes:
        name: One of ``CAUSE_NOTES``.
        note: What it means.
        classes: Name, meaning and questions of each class of errors among them, the most frequent first.
    """

    name: str
    note: str
    classes: tuple[tuple[str, str, tuple[QuestionView, ...]], ...]

    @property
    def n(self) -> int:
        """How many questions."""
        return sum(len(views) for _, _, views in self.classes)


def cause_of(view: QuestionView) -> str:
    """Name the cause for which a question loses points; empty where it loses none or has no truth."""
    if view.truth is None or view.outcome == RIGHT:
        return ""
    if view.truth.headline.is_right:
        return IN_THE_REST if view.outcome == IN_PART or view.truth.error else ""
    if view.is_failed:
        return FAILED
    if view.truth.headline.unanswerable:
        return NO_ANSWER
    if any(member.outcome == RIGHT for member in view.members):
        return VOTE
    is_traced = any(row["node_id"] for step in view.steps for row in step.rows.items)
    has_gold = any(ref.lower() != BLANK for ref in view.truth.row.ref_ids)
    is_found = any(step.n_gold for step in view.steps)
    return RETRIEVAL if is_traced and has_gold and not is_found else READING


def causes_of(views: Sequence[QuestionView], class_notes: Mapping[str, str]) -> list[Cause]:
    """Group the questions that lose points by cause, and within it by class of error.

    Args:
        views: All questions.
        class_notes: What the classes mean.
    """
    groups: dict[str, dict[str, list[QuestionView]]] = {name: {} for name in CAUSE_NOTES}
    for view in views:
        cause = cause_of(view)
        if cause and view.truth is not None:
            groups[cause].setdefault(view.truth.error or view.outcome, []).append(view)
    found = []
    for name, classes in groups.items():
        order = Counter({each: len(of_class) for each, of_class in classes.items()}).most_common()
        listed = tuple((each, class_notes.get(each, ""), tuple(classes[each])) for each, _ in order)
        if listed:
            found.append(Cause(name, CAUSE_NOTES[name], listed))
    return found
