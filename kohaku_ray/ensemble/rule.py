"""Ballots, and the choices there are in counting them; imports nothing, so that the command line starts quickly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Strategy = Literal[
    "answer_priority", "independent", "ref_priority", "union", "intersection", "majority", "first_non_blank"
]
"""Which value and which references win.

The winning answer is always the heaviest group of equal values. Reference sets are compared without order and case.

- ``answer_priority``: the winning answer; the most common reference set among its runs.
- ``independent``: the winning answer; the most common reference set among all voting runs.
- ``ref_priority``: the most common reference set among all voting runs; the winning answer among its runs.
- ``union``: the winning answer; every reference of its runs.
- ``intersection``: the winning answer; the references that all of its runs cite.
- ``majority``: the winning answer; every reference of every run.
- ``first_non_blank``: answer and references of the first member that is not blank.
"""

RefsRule = Literal["set", "share"]
"""How ``answer_priority`` and ``independent`` choose references: the most common set, or each that half cite."""

Weighting = Literal["uniform", "agreement"]
"""Members weigh the same, or by ``agreement_weights``, which the caller gives to ``vote``."""

Tiebreak = Literal["first", "blank"]
"""On equal votes for the answer the group of the earliest member wins, or the verdict is blank.

Equal votes for a reference set always go to the earliest member.
"""

Compat = Literal["kohakurag"]
"""Count as the published script ``wattbot_aggregate.py`` does.

Values are compared string for string, blank being one of the strings; references are sorted and compared as written;
and ``tiebreak: blank`` acts only when no two members gave the same string.
"""


Stop = Literal["never", "value", "row"]
"""What ends a question early: nothing, a final answer (but not its spelling), or a row that is final to the byte."""


@dataclass(frozen=True, slots=True)
class Ballot:
    """One member's answer to one question.

    A blank spelling of ``answer_value`` abstains whatever ``is_blank`` says, but where ``only_flagged``: there ``None``
    is an answer, as evidence has borne it out. Value and references of one that abstains are ignored. ``ref_ids`` are
    in the order cited; ``weight``, positive, counts times its member's weight.
    """

    answer_value: str = ""
    ref_ids: tuple[str, ...] = ()
    is_blank: bool = False
    answer: str = ""
    answer_unit: str = ""
    explanation: str = ""
    weight: float = 1.0
    only_flagged: bool = False
