"""The small protocol through which a system reaches anything expensive.

In tests it is in-process; in the engine it is backed by Ray actors and Serve handles, and micro-batches across all the
questions in flight. The engine binds member and seed before a system sees it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kohaku_ray.arrays import F32, F64
from kohaku_ray.generation.prompts import Prompt, Prompts
from kohaku_ray.index.hits import Hits
from kohaku_ray.records import Reply
from kohaku_ray.tree.nodes import NodeTable


@dataclass(frozen=True, slots=True)
class Limits:
    """What the model of a role takes.

    Attributes:
        max_tokens: Longest reply, in tokens.
        window_tokens: Prompt and reply together, in tokens; None where it is not known.
    """

    max_tokens: int
    window_tokens: int | None


class Tools(Protocol):
    """Everything a system may ask of the outside."""

    @property
    def prompts(self) -> Prompts:
        """The run's templates, read once where the run started."""
        ...

    def limits(self, role: str = "answer") -> Limits:
        """Say how long the prompts and replies of a role may be."""
        ...

    async def chat(
        self,
        prompt: Prompt,
        *,
        role: str = "answer",
        schema: Mapping[str, Any] | None = None,
        attempt: int = 0,
        max_tokens: int | None = None,
    ) -> Reply:
        """Ask the model that plays ``role``; the member's seed for ``attempt`` is bound already.

        Args:
            prompt: What to send.
            role: Who is asked: any role the system declares.
            schema: What the reply must follow; None: free text.
            attempt: Which attempt this is, from 0.
            max_tokens: Longest reply, in tokens; None: the configured one.

        Raises:
            ContextOverflowError: The model refuses the prompt's length.
            ModelError: The backend failed for good.
        """
        ...

    async def prompt_tokens(self, prompt: Prompt, role: str = "answer") -> int | None:
        """Count a prompt as the role's model sees it, its chat template included; None where it has no tokenizer."""
        ...

    async def embed(self, texts: Sequence[str]) -> F32:
        """Encode queries: shape ``(len(texts), d)``, unit rows, independent of what else is in the batch."""
        ...

    async def search(self, view: str, vectors: F32, top_k: int, within: Sequence[str] | None = None) -> list[Hits]:
        """Find each vector's nearest nodes of a view: one ``Hits`` per row, best first.

        Args:
            view: One of the system's dense views.
            vectors: Shape ``(q, d)``; unit rows.
            top_k: Most hits per query.
            within: Document ids that alone are searched; None: all.
        """
        ...

    async def lexical(
        self, view: str, queries: Sequence[str], top_k: int, within: Sequence[str] | None = None
    ) -> list[Hits]:
        """Find each query's best nodes of a view by BM25: one ``Hits`` per query; see ``search``."""
        ...

    async def vectors(self, rows: Sequence[int]) -> F32:
        """Fetch nodes' own vectors: shape ``(len(rows), d)``, unit rows; zeros where a node has none."""
        ...

    async def rank_pairs(self, pairs: Sequence[tuple[str, str]]) -> F64:
        """Score (query, text) pairs by the run's cross-encoder: shape ``(len(pairs),)``, higher is better."""
        ...

    async def nodes(self, rows: Sequence[int], section_tokens: int = 0) -> NodeTable:
        """Fetch nodes with the text around them (see ``NodeTable.neighbourhood``).

        ``NodeTable.source_row`` says which row of the index each row was. Token counts are the largest over the
        tokenizers of the models that answer.
        """
        ...
