"""Settings of an ensemble: its members, when they may stop, and the rule by which their answers become one."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from kohaku_ray.ensemble.rule import Compat, RefsRule, Stop, Strategy, Tiebreak, Weighting
from kohaku_ray.settings import Settings


class VoteRule(Settings):
    """How the members' answers become one answer."""

    strategy: Strategy = "answer_priority"
    """Which value and which references win."""
    ignore_blank: bool = True
    """If any run is not blank, blanks do not vote."""
    blank_quorum: Annotated[float, Field(gt=0, le=1)] | None = None
    """Abstain if at least this share of the runs is blank, and ignore blanks below it; None: off."""
    refs: RefsRule = "set"
    """References: the most common set, or each one that at least half of the winning runs cite."""
    weights: Weighting = "uniform"
    """Weights of members: equal, or by agreement with the consensus."""
    tiebreak: Tiebreak = "first"
    """On a tie the earliest member wins, or the answer is blank."""
    compat: Compat | None = None
    """Reproduce the published string-for-string vote."""


class EnsembleConfig(Settings):
    """How many members answer, and how they vote."""

    members: Annotated[int, Field(ge=1, le=10_000)] = 5
    """Members of the ensemble."""
    models: tuple[str, ...] = ()
    """Deployments, or `NAME + ADAPTER`, assigned to the members in turn; none: all call the lead role's model."""
    scope: Literal["answer", "question"] = "answer"
    """Members share the evidence (answer), or each member prepares its own (question)."""
    early_stop: Stop = "never"
    """Members run in waves, a bare majority first, then one by one; a question ends when no remaining member could
    change its winning answer (value) or any byte of its row (row); never: all members answer every question."""
    vote: VoteRule = VoteRule()

    @property
    def shares_context(self) -> bool:
        """Whether members with one model are shown the same, so that their prompts are one in a prefix cache."""
        return self.scope == "answer"

    @property
    def stops(self) -> Stop:
        """``early_stop``, or never with weights by agreement, which need every vote."""
        return "never" if self.vote.weights == "agreement" else self.early_stop
