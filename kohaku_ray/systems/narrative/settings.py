"""What can be set of narrative."""

from __future__ import annotations

from typing import Literal

from kohaku_ray.settings import PositiveInt, Section, Share

FEWEST, WORDS_PER_EXCERPT, MOST = 10, 20, 30
"""``k: adaptive`` is min(MOST, FEWEST + words // WORDS_PER_EXCERPT)."""


class NarrativeSettings(Section):
    """From a backstory to excerpts and findings, and from these to a judgement in one stage or two."""

    k: PositiveInt | Literal["adaptive"] = "adaptive"
    """Excerpts kept over all queries, and hits of each search; adaptive: min(30, 10 + words of the story // 20)."""
    reasoning: bool = True
    """Check the excerpts by rules, and show the models what they find."""
    stages: Literal[1, 2] = 2
    """Stage 1 looks for a contradiction; stage 2, asked only where stage 1 claims one, confirms or rejects it."""
    verify_bar: Share = 0.9
    """Stage 2 confirms a contradiction from this confidence on."""

    def excerpts(self, content: str) -> int:
        """How many excerpts a story gets."""
        return min(MOST, FEWEST + len(content.split()) // WORDS_PER_EXCERPT) if self.k == "adaptive" else self.k

    @property
    def most_excerpts(self) -> int:
        """How many excerpts any story gets at most."""
        return MOST if self.k == "adaptive" else self.k
