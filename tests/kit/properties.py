"""How many examples a property test tries: few in ``make test``, many in ``make test-chaos``."""

from __future__ import annotations

import os

from hypothesis import settings

# No deadline: the tests run side by side, and a loaded machine says nothing of the code.
settings.register_profile("dev", max_examples=25, deadline=None)
settings.register_profile("ci", settings.get_profile("dev"), derandomize=True, database=None, print_blob=True)
settings.register_profile("thorough", max_examples=200, deadline=None)
# CI says the same of the same code; `make properties` looks further, each time elsewhere.
settings.register_profile("ci-thorough", settings.get_profile("ci"), max_examples=200)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


def scaled(n_examples: int) -> int:
    """Scale a test's own number of examples, which is set beside hypothesis' usual 100, to the profile."""
    return max(min(n_examples, 10), n_examples * settings.default.max_examples // 100)
