"""The small protocol through which a system reaches anything expensive.

In tests it is in-process; in the engine it is backed by Ray actors and Serve handles, and micro-batches across all the
questions in flight. The engine binds member and seed before a system sees it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

from kohaku_ray.arrays import F32
from kohaku_ray.generation.prompts import Prompt, Prompts
from kohaku_ray.index.hits import Hits
from kohaku_ray.records import Reply
from kohaku_ray.tree.nodes import NodeTable


class Tools(Protocol):
    """Everything a system may ask of the outside."""

    @property
    def prompts(self) -> Prompts:
        """The run's templates, read once where the run started."""
        ...

    @property
    def window_tokens(self) -> int | None:
        """Prompt and reply that the answering model takes together, in tokens; None where it is not known."""
        ...

    async def chat(
        self,
        prompt: Prompt,
        *,
        schema: dict[str, Any] | None = None,
        attempt: int = 0,
        role: Literal["plan", "answer"] = "answer",
        max_tokens: int | None = None,
    ) -> Reply:
        """Ask the model that plays ``role``; the member's seed for ``attempt`` is bound already.

        Args:
            prompt: What to send.
            schema: What the reply must follow; None: free text.
            attempt: Which attempt this is, from 0.
            role: Who is asked.
            max_tokens: Longest reply, in tokens; None: the configured one.

        Raises:
            ContextOverflowError: The model refuses the prompt's length.
            ModelError: The backend failed for good.
        """
        ...

    async def prompt_tokens(self, prompt: Prompt) -> int | None:
        """Count a prompt as the answering model sees it, its chat template included; None where it has no tokenizer."""
        ...

    async def embed(self, texts: Sequence[str]) -> F32:
        """Encode queries: shape ``(len(texts), d)``, unit rows, independent of what else is in the batch."""
        ...

    async def search(self, vectors: F32, top_k: int) -> list[Hits]:
        """Find each vector's nearest sentence and paragraph nodes: one ``Hits`` a row, best first."""
        ...

    async def lexical(self, queries: Sequence[str], top_k: int) -> list[Hits]:
        """Find each query's best paragraphs by BM25: one ``Hits`` a query, best first."""
        ...

    async def nodes(self, rows: Sequence[int]) -> NodeTable:
        """Fetch nodes with everything a context needs around them (see ``NodeTable.neighbourhood``).

        ``NodeTable.source_row`` says which row of the index each row was. Token counts are the serving model's.
        """
        ...
