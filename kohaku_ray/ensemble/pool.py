"""Hold recorded ballots as arrays, so that any subsample of members can vote; weigh members without gold answers."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt

from kohaku_ray.ensemble.rule import Ballot
from kohaku_ray.errors import ConfigError
from kohaku_ray.index.arrays import F64, I64, Mask
from kohaku_ray.values.normalise import (
    BLANK_VALUE,
    Quantity,
    Value,
    normalise,
    read_quantity,
    same,
    unit_of_question,
)
from kohaku_ray.values.read import is_abstention, is_blank, is_blank_strict
from kohaku_ray.values.spelling import ref_key, text_key

Words = npt.NDArray[np.uint64]
"""Sets of references as bits: the last axis holds ``n_words`` words of 64, bit r of word w is reference 64 w + r."""

WORD = 64

_NO_BALLOT = Ballot(is_blank=True)

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Pool:
    """The ballots of M members on Q questions; answers and so on are numbered per question by first appearance.

    Attributes:
        group: Shape ``(Q, M)``; which answer a member gave, -1 where it abstains. Equal numbers are one answer, in
            every subsample, but for the questions of ``chains``, where a number is a distinct normalised value.
        spelling: Shape ``(Q, M)``; index into the question's ``spellings``, -1 where the member abstains.
        refset: Shape ``(Q, M)``; index into the question's ``words``; a member that abstains cites nothing.
        words: Shape ``(Q, sets, n_words)``; the question's distinct reference sets, as bits over its ``refs``.
        spellings: By question, the values in its unit, as a metric reads them (``Quantity``), or as written.
        units: By question, the unit that its values are in (``unit_of_question``).
        refs: By question, the cited references, lower-cased.
        weight: Shape ``(Q, M)``; how much each ballot counts.
        failed: Shape ``(Q, M)``; who failed and has no ballot, which is no abstention: nothing counts it.
        compat: ``VoteRule.compat`` of the rules that may count them.
        chains: By question where equality within 0.1 % is not transitive (5 is 5.004, 5.004 is 5.008, 5 is not 5.008):
            shape ``(n, n)``, whether value j joins a group that value i opened. Groups then depend on who is drawn.
    """

    group: I64
    spelling: I64
    refset: I64
    words: Words
    spellings: tuple[tuple[str, ...], ...]
    units: tuple[str, ...]
    refs: tuple[tuple[str, ...], ...]
    weight: F64
    failed: Mask
    compat: Literal["kohakurag"] | None
    chains: Mapping[int, Mask]

    @property
    def n_questions(self) -> int:
        """Number of questions, Q."""
        return int(self.group.shape[0])

    @property
    def n_members(self) -> int:
        """Number of members, M."""
        return int(self.group.shape[1])

    def refs_of(self, question: int, words: Words) -> frozenset[str]:
        """Decode a reference set of shape ``(n_words,)``."""
        bits = int.from_bytes(words.astype("<u8").tobytes(), "little")
        return frozenset(ref for index, ref in enumerate(self.refs[question]) if bits >> index & 1)

    def labels(self, question: I64, drawn: I64) -> I64:
        """Group drawn members by answer: equal numbers within a cell, -1 where a member abstains.

        Args:
            question: Shape ``(cells,)``; which question each cell is about.
            drawn: Shape ``(cells, m)``; members in voting order.
        """
        label: I64 = self.group[question[:, None], drawn]
        for chained, joins in self.chains.items():
            cells = np.flatnonzero(question == chained)
            values = label[cells]
            # Members in order: each joins the group of the first leader whose value its own joins, or leads one.
            leads = values >= 0
            leader = np.full_like(values, -1)
            for position in range(values.shape[1]):
                upto = slice(position + 1)
                fits = leads[:, upto] & joins[values[:, upto], values[:, position, None]]
                leader[:, position] = fits.argmax(axis=1)
                leads[:, position] &= leader[:, position] == position
            leader[values < 0] = -1
            label[cells] = leader
        return label


def pool_ballots(
    ballots: Sequence[Sequence[Ballot | None]],
    units: Sequence[str | None] | None = None,
    compat: Literal["kohakurag"] | None = None,
    keep_spellings: bool = False,
) -> Pool:
    """Read each value in its question's unit, group and number recorded ballots.

    Args:
        ballots: By question, one ballot per member, members in the same order throughout; None for one that failed.
        units: By question, the unit asked for.
        compat: As of ``VoteRule``.
        keep_spellings: Write a value as its member did, but where it is in a unit of another size.

    Raises:
        ConfigError: There are no ballots, or a ballot's weight is not positive and finite.
    """
    if not ballots or not ballots[0]:
        raise ConfigError("There are no ballots to study: give at least one question with at least one member.")
    asked = units if units is not None else [None] * len(ballots)
    cast = [[ballot or _NO_BALLOT for ballot in row] for row in ballots]
    written_in = [unit_of(row, unit) for row, unit in zip(cast, asked, strict=True)]
    values, spellings, refs, sets = [], [], [], []
    for row, unit in zip(cast, written_in, strict=True):
        for ballot in row:
            if not 0 < ballot.weight < math.inf:
                raise ConfigError(
                    f"A ballot for {ballot.answer_value!r} weighs {ballot.weight}: let the system's `ballot` give a "
                    "weight above 0."
                )
        written = [ballot.answer_value.strip() for ballot in row]
        if compat:  # the published script compares texts, and knows only two spellings of an abstention
            keys = [BLANK_VALUE if text in {"", "is_blank"} else Value("text", text=text) for text in written]
        else:
            quantities = [read_quantity(ballot.answer_value, ballot.answer_unit, unit) for ballot in row]
            keys = [quantity.value for quantity in quantities]
            written = [
                spell(quantity, text, unit, keep_spellings) for quantity, text in zip(quantities, written, strict=True)
            ]
        keys = [_as_flagged(key, ballot) for key, ballot in zip(keys, row, strict=True)]
        answered = [key.kind != "blank" and not ballot.is_blank for key, ballot in zip(keys, row, strict=True)]
        values.append(_number(keys, answered))
        spellings.append(_number(written, answered))
        cited = [_cited(ballot, compat) if votes else () for ballot, votes in zip(row, answered, strict=True)]
        refs.append(tuple(dict.fromkeys(ref for of_ballot in cited for ref in of_ballot)))
        sets.append(_number([frozenset(of_ballot) for of_ballot in cited], [True] * len(row)))
    groups, chains = _groups([keys for _, keys in values])
    return Pool(
        group=np.array(
            [[mapping[i] if i >= 0 else -1 for i in of] for mapping, (of, _) in zip(groups, values, strict=True)]
        ),
        spelling=np.array([of for of, _ in spellings]),
        refset=np.array([of for of, _ in sets]),
        words=_bits([keys for _, keys in sets], refs),
        spellings=tuple(keys for _, keys in spellings),
        units=tuple(written_in),
        refs=tuple(refs),
        weight=np.array([[ballot.weight for ballot in row] for row in cast], dtype=np.float64),
        failed=np.array([[ballot is None for ballot in row] for row in ballots]),
        compat=compat,
        chains=chains,
    )


def unit_of(ballots: Sequence[Ballot], asked: str | None) -> str:
    """The unit that a question's values are in: ``unit_of_question``."""
    answers = (ballot for ballot in ballots if not (ballot.is_blank or is_abstention(ballot.answer_value)))
    return unit_of_question(asked, (ballot.answer_unit for ballot in answers))


def spell(quantity: Quantity, written: str, unit: str, keep: bool) -> str:
    """Write a value in its question's unit; ``keep``: as it is written where that says the same."""
    return written if keep and same(quantity.value, normalise(written, unit)) else quantity.text


def _as_flagged(key: Value, ballot: Ballot) -> Value:
    """Take ``None`` for a text where its ballot alone says whether it abstains."""
    if key.kind == "blank" and ballot.only_flagged and not is_blank_strict(ballot.answer_value):
        return Value("text", text=text_key(ballot.answer_value))
    return key


def _cited(ballot: Ballot, compat: str | None) -> tuple[str, ...]:
    return ballot.ref_ids if compat else tuple(ref_key(ref) for ref in ballot.ref_ids if not is_blank(ref))


def _number(keys: Sequence[K], counted: Sequence[bool]) -> tuple[list[int], tuple[K, ...]]:
    """Number the counted keys in order of first appearance: one number per key, -1 where not counted; and the keys."""
    first: dict[K, int] = {}
    numbers = [first.setdefault(key, len(first)) if counts else -1 for key, counts in zip(keys, counted, strict=True)]
    return numbers, tuple(first)


def _groups(values: Sequence[tuple[Value, ...]]) -> tuple[list[list[int]], dict[int, Mask]]:
    """Group each question's distinct values: one group per value where that fits any subsample, else the relation."""
    groups: list[list[int]] = []
    chains = {}
    for question, distinct in enumerate(values):
        near = [
            [j for j, other in enumerate(distinct) if other is value or (value.kind != "text" and same(value, other))]
            for value in distinct
        ]
        # a reflexive relation is an equivalence if related values have the same relations
        if all(near[j] == joined for joined in near for j in joined):
            groups.append([joined[0] for joined in near])
        else:
            groups.append(list(range(len(distinct))))
            chains[question] = np.array([[j in joined for j in range(len(distinct))] for joined in near])
    return groups, chains


def _bits(sets: Sequence[tuple[frozenset[str], ...]], refs: Sequence[tuple[str, ...]]) -> Words:
    n_words = -(-max(1, *map(len, refs)) // WORD)
    words = np.zeros((len(sets), max(map(len, sets)), n_words), dtype=np.uint64)
    for question, (of, named) in enumerate(zip(sets, refs, strict=True)):
        index = {ref: position for position, ref in enumerate(named)}
        for row, refset in enumerate(of):
            for ref in refset:
                word, bit = divmod(index[ref], WORD)
                words[question, row, word] |= np.uint64(1 << bit)
    return words


def agreement_weights(groups: I64) -> F64:
    """Weigh members by how well each agrees with the weighted consensus (Dawid–Skene in its simplest form).

    Weights start equal. A question's consensus is its heaviest group, ties to the lowest group index (the group of the
    earliest member, as ``group_values`` numbers them). A member's weight is its smoothed rate of agreement,
    (agreed + 1) / (voted + 2). The two steps are repeated until the consensus no longer changes. If it returns to
    an earlier state instead, the weights of that state are final, so the result is always defined and deterministic.

    Args:
        groups: Shape ``(questions, members)``; group index of each member's answer, -1 where it did not vote.

    Returns:
        Shape ``(members,)``; positive, of mean 1.
    """
    n_questions, n_members = groups.shape
    n_groups = int(groups.max(initial=-1)) + 1
    weights: F64 = np.ones(n_members)
    voted = groups >= 0
    cells = (np.arange(n_questions)[:, None] * n_groups + groups)[voted]
    seen: set[bytes] = set()
    while n_groups:
        share = np.broadcast_to(weights, groups.shape)[voted]
        votes = np.bincount(cells, share, n_questions * n_groups).reshape(n_questions, n_groups)
        # sums in another order may differ in the last bits: rounding keeps ties
        consensus = np.argmax(votes.round(9), axis=1)
        agreed = (voted & (groups == consensus[:, None])).sum(axis=0)
        weights = (agreed + 1) / (voted.sum(axis=0) + 2)
        weights = weights / weights.mean()
        if consensus.tobytes() in seen:
            break
        seen.add(consensus.tobytes())
    return weights
