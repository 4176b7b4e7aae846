"""The processes of the cluster that this test run started, and of no other on the machine."""

from __future__ import annotations

import contextlib

import psutil


def our_processes() -> list[tuple[str, psutil.Process]]:
    """Titles with processes: a Ray worker is called after what it runs, such as ``ray::Member``."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(((process.cmdline() or [""])[0], process))
    return found
