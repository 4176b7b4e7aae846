"""How documents are cut into chunks."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from kohaku_ray.errors import ConfigError
from kohaku_ray.index.chunks import Chunks
from kohaku_ray.settings import PositiveInt, Section


class ChunksConfig(Section):
    """How documents are cut into chunks, windows that are searched beside paragraphs and sentences."""

    unit: Literal["chars", "tokens"] = "chars"
    """Windows of characters, or of the tokens of whole paragraphs (the encoder's)."""
    size: PositiveInt = 500
    """Characters per window, or most tokens in one."""
    overlap: Annotated[int, Field(ge=0)] = 50
    """Characters that two neighbours share; nothing to windows of tokens."""
    min_size: PositiveInt = 200
    """Fewest tokens wanted in a window; nothing to windows of characters."""
    over: Literal["document", "section"] = "document"
    """Whose paragraphs are rejoined and cut: each document's, or each section's."""

    @model_validator(mode="after")
    def _sizes_fit(self) -> ChunksConfig:
        try:
            self.plain()
        except ConfigError as error:
            raise ValueError(f"index.{error}") from None
        return self

    def plain(self) -> Chunks:
        """The same without its configuration."""
        return Chunks(**self.model_dump())
