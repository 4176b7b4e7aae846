"""The environment of a process that starts a Ray of its own while the test run has one."""

from __future__ import annotations

import os

OF_THE_TEST_RUN = (
    "RAY_ADDRESS",
    "RAY_TMPDIR",
    "RAY_AUTH_MODE",
    "RAY_AUTH_TOKEN",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER",  # 0: no second node
)
"""Variables that a Ray of the test run's own leaves in its process."""


def environment(*left_out: str, **variables: str) -> dict[str, str]:
    """Return this process's environment without the variables of its Ray and ``left_out``, and with ``variables``."""
    names = {*OF_THE_TEST_RUN, *left_out}
    return {name: value for name, value in os.environ.items() if name not in names} | variables
