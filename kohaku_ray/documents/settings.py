"""Settings of the documents: where they are, and how they are read."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from kohaku_ray.errors import ConfigError
from kohaku_ray.settings import FilePath, Settings


class DocumentsConfig(Settings):
    """The documents."""

    paths: tuple[FilePath, ...] = ("sample:documents",)
    """Files and directories (searched recursively), local, `s3://` or `gs://`; `sample:` names the package's sample
    collection. A document per row: .jsonl, .parquet or `hf://datasets/OWNER/NAME?split=train`, each given by name."""
    metadata: FilePath | None = None
    """CSV, JSON lines or Parquet with id, title, url, year, type and citation per document."""
    timeout_s: Annotated[float, Field(gt=0)] = 60.0
    """Longest time to read one file, and most CPU seconds to parse it, whatever the machine's load; a file that takes
    longer becomes a reject."""
    follow_links: bool = False
    """Whether links that lead out of a directory of `paths` are followed."""
    format: str | None = None
    """How files are read: `auto`, by suffix; `text`, all but PDF and Office files as plain text; a system's format by
    its name (docs/documents.md has them); a format of your own as `module:NAME`; None: as the system reads them."""
    images: FilePath | None = None
    """Directory of the image files that placeholders of KohakuRAG JSON name; used where `index.images` is true."""

    @field_validator("format")
    @classmethod
    def _there_is_such_a_format(cls, name: str | None) -> str | None:
        from kohaku_ray.documents.formats import find_format  # the parsers of all formats are slow to import

        try:
            _ = name is None or find_format(name)
        except ConfigError as error:
            raise ValueError(error) from None
        return name
