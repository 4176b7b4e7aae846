from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager

from kit.rows import check_rows


def test_every_row_is_checked_and_the_failing_ones_are_named():
    @check_rows("number, double", [(1, 2), (2, 5), (3, 6), (4, 9)])
    def check(number, double, factor):
        assert factor * number == double

    failed = []

    class Subtests:
        @contextmanager
        def test(self, name: str) -> Iterator[None]:
            try:
                yield
            except AssertionError:
                failed.append(name)

    assert [*inspect.signature(check).parameters] == ["factor", "subtests"]
    check(factor=2, subtests=Subtests())
    assert failed == ["2, 5", "4, 9"]
