"""End with a line that names the Pythons that the project runs on, if this is none of them: ``make`` asks it first."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def problem(version: Sequence[int]) -> str:
    """Say that a Python is too old or too new, and what to do; empty: it is neither."""
    if (3, 11) <= tuple(version[:2]) < (3, 13):
        return ""
    return (
        f"Python {version[0]}.{version[1]} is here but kohaku_ray runs on 3.11 and 3.12, as its packages do: "
        "make PYTHON=python3.12 …, or install one (uv python install 3.12)"
    )


if __name__ == "__main__":
    sys.exit(problem(sys.version_info) or None)  # an empty text would be an error
