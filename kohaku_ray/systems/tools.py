"""The protocol through which a system reaches models and the index.

In tests it is in-process; in the engine it is backed by Ray actors and Serve handles, and micro-batches across all the
questions in flight. The engine binds member and seed before a system sees it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from kohaku_ray.index.arrays import F32, F64, Hits
from kohaku_ray.index.nodes import NodeTable
from kohaku_ray.models.prompts import Prompt, Prompts
from kohaku_ray.models.request import PromptImage
from kohaku_ray.records import Reply

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Limits:
    """Longest reply of a role's model, and longest prompt plus reply (None if unknown), in tokens."""

    max_tokens: int
    window_tokens: int | None


class Tools(Protocol):
    """Models and index, as a system sees them."""

    @property
    def prompts(self) -> Prompts:
        """The run's templates, read once by the driver."""
        ...

    def limits(self, role: str = "answer") -> Limits:
        """Return the longest prompts and replies of a role."""
        ...

    async def shared_by_members(self, key: Hashable, make: Callable[[], Awaitable[Made]]) -> Made:
        """Make something that does not depend on the member, without a chat: members with equal models share it.

        ``key`` is its name, unique for the question.
        """
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
        """Call the model of ``role`` with the member's seed for ``attempt``.

        Args:
            prompt: The prompt.
            role: Any role that the system declares.
            schema: JSON schema of the reply. Default: free text.
            attempt: From 0.
            max_tokens: Longest reply. Default: the configured one.

        Raises:
            ContextOverflowError: The model refuses the prompt's length.
            ModelError: The backend failed for good.
        """
        ...

    async def prompt_tokens(self, prompt: Prompt, role: str = "answer") -> int | None:
        """Count a prompt's tokens for the role's model, chat template included; None if it has no tokenizer."""
        ...

    def image(self, path: str, max_pixels: int) -> PromptImage:
        """Make an image of a prompt from a file of the index, scaled down to ``max_pixels``."""
        ...

    async def embed(self, texts: Sequence[str], view: str | None = None) -> F32:
        """Encode queries: shape ``(len(texts), d)``, unit rows, independent of the rest of the batch.

        ``view`` names a view of images, which may have an encoder of their own.
        """
        ...

    async def search(self, view: str, vectors: F32, top_k: int, within: Sequence[str] | None = None) -> list[Hits]:
        """Find each vector's nearest nodes in a dense view: one ``Hits`` per row, best first.

        Args:
            view: Its name.
            vectors: Shape ``(q, d)``; unit rows.
            top_k: Most hits per query.
            within: Document ids to search. Default: all.
        """
        ...

    async def lexical(
        self, view: str, queries: Sequence[str], top_k: int, within: Sequence[str] | None = None
    ) -> list[Hits]:
        """Find each query's best nodes in a view by BM25: one ``Hits`` per query; see ``search``."""
        ...

    async def term_similarity(self, view: str, rows: Sequence[int]) -> F64:
        """Score a lexical view's nodes for one another by BM25, with the statistics of the whole view.

        Returns:
            Shape ``(len(rows), len(rows))``; entry (i, j) is node j's score for the distinct terms of node i.
        """
        ...

    async def vectors(self, rows: Sequence[int]) -> F32:
        """Fetch nodes' own vectors: shape ``(len(rows), d)``, unit rows; zeros for a node without one."""
        ...

    async def rank_pairs(self, pairs: Sequence[tuple[str, str]]) -> F64:
        """Score (query, text) pairs by the run's cross-encoder: shape ``(len(pairs),)``, higher is better."""
        ...

    async def nodes(self, rows: Sequence[int], section_tokens: int = 0) -> NodeTable:
        """Fetch nodes with the text around them (see ``NodeTable.neighbourhood``).

        ``NodeTable.source_row`` is each row's row in the index. Token counts are the largest count over the tokenizers
        of the models that answer.
        """
        ...
