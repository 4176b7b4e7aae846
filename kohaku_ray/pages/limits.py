"""How much of a run its page shows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on what the page shows of a run.

    Attributes:
        questions: Most questions.
        items: Most items per step of a question; lists of several attempts or members share it evenly.
        match_chars: Characters of a match.
        around_chars: Characters of its paragraph on either side.
        text_chars: Characters of any other text.
    """

    questions: int
    items: int
    match_chars: int
    around_chars: int
    text_chars: int
