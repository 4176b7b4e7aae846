"""Questions with long contexts on an engine with a KV cache, simulated: the prefills per context, and the seconds.

The engine is vLLM's scheduler in outline: calls are admitted while there are seats and the cache has room, first come
first served or by priority; a context that is not in the cache is prefilled in chunks beside the decodes; cached
contexts that no call uses leave the cache from their ends, the one used longest ago first. A step costs its tokens'
arithmetic (in a prefill attention's too), the weights and every decoding call's keys and values. Qwen3-8B in bf16:
8.2 B parameters, 144 KiB a token, 36 layers of 4,096 numbers.

Left out: preemption (a call's reply is reserved as it is admitted), and that vLLM may decode siblings' common context
at once.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kohaku_ray.answering.executor import block_size, waves_of
from kohaku_ray.config import Config, load_config
from kohaku_ray.engine.actors.pool import blocks_in_flight, contexts_cached
from kohaku_ray.models.summary import AnswerSummary

PARAMETERS, KV_BYTES, BATCHED_TOKENS = 8.2e9, 147_456, 8192
ATTENTION_FLOPS = 4 * 36 * 4096
"""Of each token for each that it attends to: a product with its key, and one with its value, in every layer."""
CONTEXT, OUTPUT = 10_000, 128
UNSETTLED = (0.5, 0.7, 0.7, 0.7)
"""Share of questions that go on after the first wave of five, and after each further one."""


@dataclass(frozen=True)
class Card:
    """A GPU: dense bf16 FLOP/s (data sheet; 55 % are reached), bytes per second, tokens of its KV cache."""

    flops: float
    bandwidth: float
    cache_tokens: int


CARDS = {
    "H100": Card(989e12, 3.35e12, 400_000),
    "H200": Card(989e12, 4.8e12, 800_000),
    "A100-40": Card(312e12, 1.555e12, 140_000),
    "L4": Card(121e12, 0.3e12, 30_000),
}
MFU = 0.55
ROUND_TRIP_S = 0.2
"""Seconds from the last reply of a wave to the next one's calls, and from a question's end to another's; each between
half of it and half more."""


@dataclass(frozen=True)
class Outcome:
    """What a run took."""

    seconds: float
    prefills: float
    calls: float


class Engine:
    """One card's engine; ``done`` is called with a question whenever one of its calls has ended."""

    def __init__(self, card: Card, seats: int, by_priority: bool, done: Callable[[int], None]) -> None:
        self._card, self._seats, self._by_priority, self._done = card, seats, by_priority, done
        self._coming: list[tuple[float, int, int, int]] = []
        self._waiting: list[tuple[int, int, int, int]] = []
        self._order = itertools.count()
        self._cached: OrderedDict[int, int] = OrderedDict()  # tokens by question, the one used last at the end
        self._users: Counter[int] = Counter()
        self._prefilling: deque[int] = deque()
        self._decoding: list[tuple[int, int, int]] = []  # step of its end, question, step of its begin
        self._blocked: dict[int, list[int]] = {}  # replies' lengths, by a question whose context is being computed
        self._held = self._reserved = self._step = self._begins = self._n_running = 0
        self.seconds, self.prefilled = 0.0, 0

    def ask(self, question: int, n_tokens: int, delay_s: float) -> None:
        """Let a call arrive after some seconds, whose reply has so many tokens."""
        heapq.heappush(self._coming, (self.seconds + delay_s, next(self._order), question, n_tokens))

    def run(self) -> None:
        """Work until nothing waits."""
        while self._coming or self._waiting or self._n_running:
            if not self._waiting and not self._n_running:
                self.seconds = max(self.seconds, self._coming[0][0])
            while self._coming and self._coming[0][0] <= self.seconds:
                _, order, question, n_tokens = heapq.heappop(self._coming)
                heapq.heappush(self._waiting, (question if self._by_priority else 0, order, question, n_tokens))
            while self._waiting and self._admit(*self._waiting[0][2:]):
                heapq.heappop(self._waiting)
            self._compute()

    def _admit(self, question: int, n_tokens: int) -> bool:
        new = 0 if question in self._users else CONTEXT
        missing = new and CONTEXT - self._cached.get(question, 0)
        room = self._card.cache_tokens - CONTEXT * len(self._users) - self._reserved
        if self._n_running >= self._seats or new + n_tokens > room:
            return False
        if missing and sum(CONTEXT - self._cached[other] for other in self._prefilling) >= BATCHED_TOKENS:
            return False
        unused = [other for other in self._cached if other not in self._users and other != question]
        for other in unused:
            over = self._held + missing + self._reserved + n_tokens - self._card.cache_tokens
            if over <= 0:
                break
            freed = min(self._cached[other], over)
            self._held -= freed
            self._cached[other] -= freed
            if not self._cached[other]:
                del self._cached[other]
        self._held += missing  # of which the prefill is under way
        self._users[question] += 1
        self._n_running += 1
        self._reserved += n_tokens
        self._cached.setdefault(question, 0)
        self._cached.move_to_end(question)
        if missing:
            self._prefilling.append(question)
            self._blocked[question] = [n_tokens]
        elif question in self._blocked:
            self._blocked[question].append(n_tokens)
        else:
            self._begin(question, n_tokens)
        return True

    def _begin(self, question: int, n_tokens: int) -> None:
        heapq.heappush(self._decoding, (self._step + n_tokens, question, self._step))
        self._begins += self._step

    def _compute(self) -> None:
        """One step with a part of a prefill, or the steps until the next reply ends."""
        n, card = len(self._decoding), self._card
        n_steps = 1 if self._prefilling else self._decoding[0][0] - self._step
        if n_steps > 1 and self._coming:
            step_s = (2 * PARAMETERS + KV_BYTES * n * CONTEXT) / card.bandwidth
            n_steps = min(n_steps, math.ceil((self._coming[0][0] - self.seconds) / step_s) or 1)
        chunk = attended = 0
        if self._prefilling:
            question = self._prefilling[0]
            chunk = min(CONTEXT - self._cached[question], BATCHED_TOKENS - n)
            attended = chunk * (self._cached[question] + chunk // 2)
            self._cached[question] += chunk
            self.prefilled += chunk
        read = n * CONTEXT + n * (self._step + n_steps / 2) - self._begins
        arithmetic = (2 * PARAMETERS * (chunk + n * n_steps) + ATTENTION_FLOPS * attended) / (MFU * card.flops)
        self.seconds += arithmetic + n_steps * (2 * PARAMETERS + KV_BYTES * read) / card.bandwidth
        self._step += n_steps
        if chunk and self._cached[self._prefilling[0]] == CONTEXT:
            question = self._prefilling.popleft()
            for n_tokens in self._blocked.pop(question):
                self._begin(question, n_tokens)
        while self._decoding and self._decoding[0][0] <= self._step:
            end, question, began = heapq.heappop(self._decoding)
            self._begins -= began
            self._reserved -= end - began
            self._users[question] -= 1
            if not self._users[question]:
                del self._users[question]
            self._n_running -= 1
            self._cached.move_to_end(question)
            self._done(question)


class Run:
    """Questions of one run on one card."""

    def __init__(
        self,
        card: Card,
        n_questions: int,
        waves: Sequence[int],
        size: int,
        in_flight: Callable[[Run], int],
        first: bool,
    ) -> None:
        """Answer in blocks of ``size``, ``in_flight`` of them at once; older questions ``first``, or as they come."""
        self._waves, self._size, self._in_flight, self._draw = waves, size, in_flight, random.Random(1)
        self._engine = Engine(card, 256, first, self._call_done)
        self._waiting = deque(
            list(range(start, min(start + size, n_questions))) for start in range(0, n_questions, size)
        )
        self._n = n_questions
        self._left: Counter[int] = Counter()  # calls by block
        self._going_on: dict[int, list[int]] = {}
        self._wave: Counter[int] = Counter()
        self.n_calls = self.n_done = 0

    def outcome(self) -> Outcome:
        """Answer all questions."""
        self._fill()
        self._engine.run()
        return Outcome(self._engine.seconds, self._engine.prefilled / (self._n * CONTEXT), self.n_calls / self._n)

    def _fill(self) -> None:
        while self._waiting and len(self._going_on) < self._in_flight(self):
            block = self._waiting.popleft()
            self._ask(block[0] // self._size, block)

    def _ask(self, number: int, questions: list[int]) -> None:
        self._going_on[number] = questions
        n_calls = self._waves[self._wave[number]]
        self._left[number] = n_calls * len(questions)
        delay_s = ROUND_TRIP_S * self._draw.uniform(0.5, 1.5)
        for question in questions:
            for _ in range(n_calls):
                self._engine.ask(question, round(OUTPUT * self._draw.uniform(0.5, 1.0)), delay_s)

    def _call_done(self, question: int) -> None:
        number = question // self._size
        self.n_calls += 1
        self._left[number] -= 1
        if self._left[number]:
            return
        wave, questions = self._wave[number], self._going_on.pop(number)
        unsettled = []
        if wave + 1 < len(self._waves):
            unsettled = [question for question in questions if self._draw.random() < UNSETTLED[wave]]
        if unsettled:
            self._wave[number] += 1
            self._ask(number, unsettled)
        else:
            self.n_done += self._size
            self._fill()


def configured(n_questions: int, card: Card, *overrides: str) -> tuple[Config, int, Callable[[Run], int]]:
    """The preset `vllm`: its configuration, questions per block, and blocks in flight as the run goes on."""
    config = load_config("vllm", ["kohaku.queries=1", *overrides])
    size, sizes = block_size(config, n_questions), {"qwen": card.cache_tokens}

    def in_flight(run: Run) -> int:
        n, spent = run.n_done, {"completion_tokens": run.n_calls * OUTPUT}
        summary = AnswerSummary("", n, context_tokens=n * CONTEXT, n_calls={"made": run.n_calls}, spent=spent)
        return blocks_in_flight(config, size, contexts_cached(config, sizes, summary))

    return config, size, in_flight


def least_seconds(card: Card, n_questions: int, n_calls: float) -> float:
    """Every context prefilled once, and every call's keys and values read: no engine of these costs is faster."""
    prefill = (2 * PARAMETERS * CONTEXT + ATTENTION_FLOPS * CONTEXT**2 / 2) / (MFU * card.flops)
    decode = n_calls * OUTPUT * 0.75 * CONTEXT * KV_BYTES / card.bandwidth
    return n_questions * (prefill + decode)


def outcomes(card: Card, n_questions: int) -> dict[str, Outcome]:
    """Waves as shipped before (commit 86940c04), waves now, and all nine members at once."""
    before = Run(card, n_questions, (5, 1, 1, 1, 1), 32, lambda _: 5, first=False).outcome()
    config, size, in_flight = configured(n_questions, card)
    now = Run(card, n_questions, [len(wave) for wave in waves_of(config)], size, in_flight, first=True).outcome()
    config, size, in_flight = configured(n_questions, card, "ensemble.early_stop=never", "cluster.block_size=1")
    whole = Run(card, n_questions, (9,), size, in_flight, first=True).outcome()
    bound = Outcome(least_seconds(card, n_questions, now.calls), 1.0, now.calls)
    return {"waves before": before, "waves now": now, "nine at once": whole, "lower bound": bound}


WANTED = 1.1
"""Most seconds of waves as they are now over those of the faster other way, on an H100."""


def print_cache_table(counts: Sequence[int] = (282, 10_000)) -> bool:
    """Print seconds, prefills per question and calls per question; whether the target is met."""
    print(f"\nsimulated: contexts of {CONTEXT:,} tokens, nine members, replies of up to {OUTPUT}, half settled by five")
    ways = "".join(f"{way:>26}" for way in ("waves before", "waves now", "nine at once", "lower bound"))
    print(f"{'card':<9}{'questions':>10}{ways}")
    met = True
    for name, card in CARDS.items():
        for n in counts:
            rows = outcomes(card, n)
            cells = "".join(f"{row.seconds:>11,.0f} s{row.prefills:>6.2f} ×{row.calls:>4.1f}" for row in rows.values())
            print(f"{name:<9}{n:>10,}{cells}", flush=True)
            if name == "H100" and n == 282:
                free = Run(card, n, (5, 1, 1, 1, 1), 1, lambda _: 160, first=True).outcome()
                ratio = rows["waves now"].seconds / min(free.seconds, rows["nine at once"].seconds)
                print(
                    f"H100, 282: {ratio:.2f} × the better of older first with 160 questions in flight "
                    f"({free.seconds:,.0f} s) and nine at once (target ≤ {WANTED})"
                )
                met = ratio <= WANTED
    return met
