"""Ballots and the rule they are counted by, without arithmetic: the command line loads no numpy for the choices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Strategy = Literal[
    "answer_priority", "independent", "ref_priority", "union", "intersection", "majority", "first_non_blank"
]


@dataclass(frozen=True, slots=True)
class VoteRule:
    """The rule by which ballots become a verdict.

    Attributes:
        strategy: Which value and which references win. The winning answer is always the heaviest group of equal values.
            Reference sets are compared as sets, without order and case.

            - ``answer_priority``: the winning answer; the most common reference set among its runs.
            - ``independent``: the winning answer; the most common reference set among all voting runs.
            - ``ref_priority``: the most common reference set among all voting runs; the winning answer among its runs.
            - ``union``: the winning answer; every reference of its runs.
            - ``intersection``: the winning answer; the references that all of its runs cite.
            - ``majority``: the winning answer; every reference of every run.
            - ``first_non_blank``: answer and references of the first member that is not blank.
        ignore_blank: True: if any run is not blank, blanks do not vote. False: blanks are a group like any other.
        blank_quorum: Abstain when at least this share of the runs is blank, and ignore blanks below it; None: off.
        refs: How ``answer_priority`` and ``independent`` choose references: the most common ``set``, or ``share``,
            each reference that at least half of those runs cite.
        weights: Members weigh the same, or by ``agreement_weights`` (which the caller gives to ``vote``).
        tiebreak: On equal votes for the answer, the group of the earliest member wins, or the verdict is blank. Equal
            votes for a reference set always go to the earliest member.
        compat: ``kohakurag`` reproduces the published script ``wattbot_aggregate.py``: values are compared string for
            string, blank being one of the strings; references are sorted and compared as written; and
            ``tiebreak: blank`` acts only when no two members gave the same string.
    """

    strategy: Strategy = "answer_priority"
    ignore_blank: bool = True
    blank_quorum: float | None = None
    refs: Literal["set", "share"] = "set"
    weights: Literal["uniform", "agreement"] = "uniform"
    tiebreak: Literal["first", "blank"] = "first"
    compat: Literal["kohakurag"] | None = None


@dataclass(frozen=True, slots=True)
class Ballot:
    """One member's answer to one question.

    A blank spelling of ``answer_value`` abstains whatever ``is_blank`` says; value and references of one that abstains
    are ignored. ``ref_ids`` are in the order cited; ``weight``, positive, counts times its member's weight.
    """

    answer_value: str = ""
    ref_ids: tuple[str, ...] = ()
    is_blank: bool = False
    answer: str = ""
    answer_unit: str = ""
    explanation: str = ""
    weight: float = 1.0
