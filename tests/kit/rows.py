"""A table as one test: every row is checked, and each that fails is named."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest

Check = Callable[..., Any]

LONGEST_NAME = 60
"""Characters of a row's values that name it: one line of a terminal."""


def check_rows(names: str | tuple[str, ...], rows: Iterable[Any]) -> Callable[[Check], Check]:
    """Make one test of a table, as ``pytest.mark.parametrize`` makes one per row; each row is a subtest.

    For rows that are data of one promise. Fixtures are made once for the table: rows that change what a fixture gave
    (`monkeypatch`, `tmp_path`) or take seconds stay tests of their own.
    """
    columns = tuple(name.strip() for name in names.split(",")) if isinstance(names, str) else names

    def as_table(check_row: Check) -> Check:
        table = list(rows)
        signature = inspect.signature(check_row)
        fixtures = [parameter for name, parameter in signature.parameters.items() if name not in columns]
        subtests = inspect.Parameter("subtests", inspect.Parameter.POSITIONAL_OR_KEYWORD)

        @functools.wraps(check_row)
        def check_table(*args: Any, subtests: pytest.Subtests, **kwargs: Any) -> None:
            for row in table:
                values = (row,) if len(columns) == 1 else row
                name = ", ".join(repr(value) if isinstance(value, str) else str(value) for value in values)
                with subtests.test(name[:LONGEST_NAME]):
                    checked = check_row(*args, **dict(zip(columns, values, strict=True)), **kwargs)
                    if inspect.iscoroutine(checked):
                        asyncio.run(checked)

        check_table.__signature__ = signature.replace(parameters=[*fixtures, subtests])  # type: ignore[attr-defined]
        return check_table

    return as_table
