"""The reply of a replica that was asked one request by its handle."""

from kohaku_ray.models.replica import Refused
from kohaku_ray.records import Reply


def reply_of(response) -> Reply:
    """Wait for it, or raise its error."""
    [(outcome, _)] = response.result()
    if isinstance(outcome, Refused):
        outcome.raise_()
    return outcome
