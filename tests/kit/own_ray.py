"""The environment of a process that starts a Ray of its own while the test run has one."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

OF_THE_TEST_RUN = (
    "RAY_ADDRESS",
    "RAY_TMPDIR",
    "RAY_AUTH_MODE",
    "RAY_AUTH_TOKEN",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER",  # 0: no second node
)
"""Variables that a Ray of the test run's own leaves in its process."""

INTERRUPTED = "interrupted: run the same command again to go on"
"""The last line of a command that a signal ended."""


def own_lines(output: str) -> list[str]:
    """Return the lines of a command's output but the one in which Ray reports ``RAY_BACKEND_LOG_LEVEL``."""
    return [line for line in output.strip().splitlines() if "RAY_BACKEND_LOG_LEVEL" not in line]


def environment(*left_out: str, **variables: str) -> dict[str, str]:
    """Return this process's environment without the variables of its Ray and ``left_out``, and with ``variables``."""
    names = {*OF_THE_TEST_RUN, *left_out}
    return {name: value for name, value in os.environ.items() if name not in names} | variables


def wait_until_caught(process: subprocess.Popen[str]) -> None:
    """Wait until a process has a handler of its own for signals: until then Python itself starts.

    That is SIGTERM's: for SIGINT Python brings one.
    """
    while process.poll() is None:
        status = Path(f"/proc/{process.pid}/status").read_text()
        caught = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigCgt"))
        if caught >> (signal.SIGTERM - 1) & 1:
            return
        time.sleep(0.005)
