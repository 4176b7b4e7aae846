"""Settings of the ensemble and its vote."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from kohaku_ray.settings import PositiveInt, Section


class VoteConfig(Section):
    """How the members' answers become one answer."""

    strategy: Literal[
        "answer_priority", "independent", "ref_priority", "union", "intersection", "majority", "first_non_blank"
    ] = "answer_priority"
    """Which value and which references win."""
    ignore_blank: bool = True
    """If any run is not blank, blanks do not vote."""
    blank_quorum: Annotated[float, Field(gt=0, le=1)] | None = None
    """Abstain if at least this share of the runs is blank, and ignore blanks below it; None: off."""
    refs: Literal["set", "share"] = "set"
    """References: the most common set, or each one that at least half of the winning runs cite."""
    weights: Literal["uniform", "agreement"] = "uniform"
    """Weights of members: equal, or by agreement with the consensus."""
    tiebreak: Literal["first", "blank"] = "first"
    """On a tie the earliest member wins, or the answer is blank."""
    compat: Literal["kohakurag"] | None = None
    """Reproduce the published string-for-string vote."""


class EnsembleConfig(Section):
    """How many members answer, and how they vote."""

    members: PositiveInt = 5
    """Members of the ensemble."""
    models: tuple[str, ...] = ()
    """Deployments (keys of `deployments`) assigned to the members in turn; none: all call the lead role's model."""
    scope: Literal["answer", "question"] = "answer"
    """Members share the evidence (answer), or each member prepares its own (question)."""
    early_stop: Literal["never", "value", "row"] = "never"
    """Members run in waves; a question ends when no remaining member could change its winning answer (value) or any
    byte of its row (row); never: all members answer every question."""
    waves: tuple[PositiveInt, ...] | None = None
    """Members per wave; None: a bare majority first, then one by one."""
    vote: VoteConfig = VoteConfig()

    @property
    def stops(self) -> Literal["never", "value", "row"]:
        """``early_stop``, or never with weights by agreement, which need every vote."""
        return "never" if self.vote.weights == "agreement" else self.early_stop

    @model_validator(mode="after")
    def _waves_fit(self) -> EnsembleConfig:
        if self.waves is not None and sum(self.waves) != self.members:
            raise ValueError(
                f"ensemble.waves adds up to {sum(self.waves)} but ensemble.members is {self.members}: "
                "make them equal, or leave waves out"
            )
        return self
