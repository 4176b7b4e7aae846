"""The counts of an answer job."""

from __future__ import annotations

from dataclasses import dataclass, field

from kohaku_ray.run.block import BlockResult


@dataclass(slots=True)
class AnswerSummary:
    """The counts of an answer job.

    Attributes:
        run: Directory of the outputs.
        n_questions: Questions answered so far; at the end, all of them.
        n_member_errors: Member answers that carry an error.
        n_unanswered: Model calls that got no reply; the next start makes them again.
        n_questions_in_error: Questions all of whose members carry an error.
        n_answers: Member answers asked for: fewer than members × questions if votes were settled early.
        n_calls: Model calls asked for, by source: ``ledger``, ``made``, or ``joined`` (in flight: asked by another run
            or member).
        errors: Number of each error text (see ``group_errors``).
        stopped: Why no more calls were made after a while; empty: none was left out.
        spent: What the calls made by this run used (see ``BlockResult``).
        n_placed: Questions that the question router placed on replicas during this run, by deployment.
        n_moved: How many of them went to another replica because theirs was overloaded.
        wall_s: Whole job, start-up included.
    """

    run: str
    n_questions: int = 0
    n_member_errors: int = 0
    n_unanswered: int = 0
    n_questions_in_error: int = 0
    n_answers: int = 0
    n_calls: dict[str, int] = field(default_factory=lambda: {"ledger": 0, "joined": 0, "made": 0})
    errors: dict[str, int] = field(default_factory=dict)
    stopped: str = ""
    spent: dict[str, float] = field(default_factory=dict)
    n_placed: dict[str, int] = field(default_factory=dict)
    n_moved: dict[str, int] = field(default_factory=dict)
    wall_s: float = 0.0

    def add(self, result: BlockResult) -> None:
        """Count a finished block."""
        self.n_questions += result.n_questions
        self.n_member_errors += result.n_member_errors
        self.n_unanswered += result.n_unanswered
        self.n_questions_in_error += result.n_questions_in_error
        self.n_answers += result.n_answers
        for source, n in result.n_calls.items():
            self.n_calls[source] += n
        for text, n in result.errors.items():
            self.errors[text] = self.errors.get(text, 0) + n
        for name, amount in result.spent.items():
            self.spent[name] = self.spent.get(name, 0) + amount
