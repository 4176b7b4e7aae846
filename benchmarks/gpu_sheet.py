"""The figures of a section of ``gpu.py``."""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Sheet:
    """The figures of a section, a JSON line each: what was measured survives a time limit."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(
        self,
        name: str,
        figure: float,
        peer_name: str,
        peer: float,
        unit: str,
        *,
        at_least: float | None = None,
        at_most: float | None = None,
        note: str = "",
    ) -> None:
        """Add a figure with its peer; the target is for ``figure / peer``."""
        ratio = figure / peer
        wanted = f"≥ {at_least}" if at_least is not None else f"≤ {at_most}" if at_most is not None else None
        is_kept = (at_least is None or ratio >= at_least) and (at_most is None or ratio <= at_most)
        row = {"name": name, "figure": figure, "peer_name": peer_name, "peer": peer, "ratio": ratio, "unit": unit}
        self._write({**row, "wanted": wanted, "is_kept": is_kept, "note": note})

    def skip(self, name: str, reason: str, *, is_failure: bool = True) -> None:
        """Say why something is not measured; no failure where the machine lacks what it needs."""
        self._write({"name": name, "reason": reason, "is_failure": is_failure})

    @contextmanager
    def measuring(self, name: str) -> Iterator[None]:
        """Keep what fails in the block from ending the section: it is a figure that was not measured."""
        try:
            yield
        except Exception as error:  # anything that a library raises
            traceback.print_exc()
            self.skip(name, f"{type(error).__name__}: {' '.join(str(error).split())[:400]}")

    def _write(self, row: dict[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
