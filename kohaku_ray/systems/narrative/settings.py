"""The settings of narrative."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import field_validator

from kohaku_ray.errors import ConflictError, did_you_mean
from kohaku_ray.settings import PositiveInt, Settings, Share
from kohaku_ray.systems.narrative.rules import RULES

FEWEST, WORDS_PER_EXCERPT, MOST = 10, 20, 30
"""``k: adaptive`` is min(MOST, FEWEST + words // WORDS_PER_EXCERPT)."""


class NarrativeSettings(Settings):
    """From a backstory to excerpts and findings, and from these to a judgement in one stage or two."""

    k: PositiveInt | Literal["adaptive"] = "adaptive"
    """Excerpts kept over all queries, and hits of each search; adaptive: min(30, 10 + words of the story // 20)."""
    evidence: Literal["retrieved", "book"] = "retrieved"
    """What stage 1 reads: the retrieved excerpts, or the whole book in windows, for models with long contexts."""
    window_tokens: PositiveInt | None = None
    """Tokens of the book per window with `evidence: book`; None: three quarters of what the model's window leaves."""
    reasoning: bool = True
    """Check the excerpts by rules, and show the models what they find."""
    rules: tuple[str, ...] = tuple(sorted(RULES))
    """Rules that are on."""
    stages: Literal[1, 2] = 2
    """Stage 1 looks for a contradiction; stage 2, asked only where stage 1 claims one, confirms or rejects it."""
    verify_bar: Share = 0.9
    """Stage 2 confirms a contradiction from this confidence on."""

    @field_validator("rules")
    @classmethod
    def _known(cls, rules: tuple[str, ...]) -> tuple[str, ...]:
        for rule in rules:
            if rule not in RULES:
                raise ValueError(f"{rule!r} is no rule{did_you_mean(rule, RULES)}; rules: {', '.join(sorted(RULES))}")
        return rules

    def excerpts(self, content: str) -> int:
        """How many excerpts a story gets."""
        return min(MOST, FEWEST + len(content.split()) // WORDS_PER_EXCERPT) if self.k == "adaptive" else self.k

    @property
    def most_excerpts(self) -> int:
        """How many excerpts any story gets at most."""
        return MOST if self.k == "adaptive" else self.k


def refuse_identical_members(config: Any) -> None:
    """Refuse an ensemble in which two members ask the same models the same, and no seed makes them differ.

    Args:
        config: The run's configuration: ``ensemble``, ``uses``, ``models`` and ``role(name, member)`` are read.

    Raises:
        ConflictError: There are such members; the message says which and the way out.
    """
    seen: dict[tuple[Any, ...], int] = {}
    for member in range(config.ensemble.members):
        played = tuple(config.role(name, member) for name in config.uses.roles)
        other = seen.setdefault(played, member)
        models = [role for role in played if config.models[role.model].kind != "extractive"]
        if other != member and not any(role.temperature for role in models):
            how = "at temperature 0" if models else "a judge without seeds"
            warmer = "roles.search.temperature above 0, " if models else ""
            raise ConflictError(
                f"ensemble.members is {config.ensemble.members} but members {other} and {member} both ask "
                f"{(models or played)[0].model}, {how}, so that their answers are the same: set ensemble.members to 1, "
                f"{warmer}or ensemble.models to one model per member"
            )
