"""A small collection on AI energy use, with questions and their gold answers.

``documents/`` holds thirteen documents, ``trees/`` the same as JSON trees, as the runs in ``bundles/`` read them,
``metadata.csv`` what is known of each, ``questions.csv`` the questions.
All of it was written for this package: organisations, models and figures are invented, no figure is a measurement.
"""

from __future__ import annotations

import re
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

from kohaku_ray.errors import ConfigError


def path(name: str = "") -> str:
    """Return the path of a file or directory of the sample on this machine.

    Args:
        name: Relative to the sample, such as ``documents`` or ``questions.csv``; empty: the sample itself.

    Raises:
        ConfigError: The sample has nothing of that name; the message lists what it has.
    """
    root = Path(str(files(__name__))).resolve()
    with suppress(OSError, ValueError):  # a name too long, or with NUL, is none of ours
        target = (root / name).resolve()
        if target.is_relative_to(root) and target.exists():
            return str(target)
    raise ConfigError(
        f"sample:{name} does not exist: the sample in {root} has {', '.join(_names(root))}; name one of them"
    )


def words() -> list[str]:
    """List the distinct words of the sample's plain texts, from which benchmarks draw theirs."""
    text_files = sorted(file for file in Path(path("documents")).iterdir() if file.suffix in {".md", ".txt"})
    return sorted({word for file in text_files for word in re.findall(r"[a-z]{3,}", file.read_text(encoding="utf-8"))})


def _names(root: Path) -> list[str]:
    """List the sample's directories and data files, relative to ``root``, in order."""
    return sorted(
        entry.relative_to(root).as_posix()
        for entry in root.rglob("*")
        if "__pycache__" not in entry.parts and entry.suffix not in {".py", ".pyc"}
    )
