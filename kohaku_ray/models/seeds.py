"""Seeds and ledger keys: the same on every machine and in every process."""

from __future__ import annotations

from kohaku_ray.models.request import ChatRequest
from kohaku_ray.records import digest


def seed_for(base: int, question_id: str, member: int, attempt: int, role: str) -> int:
    """Derive the seed of one model call.

    Args:
        base: The run's seed.
        question_id: The question asked.
        member: Ensemble member, from 0.
        attempt: Attempt, from 0.
        role: Role of the model.

    Returns:
        An integer in ``[0, 2**31)``, which every backend accepts.
    """
    return int(digest([base, question_id, member, attempt, role], 8), 16) % 2**31


def request_key(request: ChatRequest) -> str:
    """Hash everything that decides a model call's reply: 32 hexadecimal characters.

    ``session_id``, ``variables`` and ``most_chars`` are left out: the first is routing, the second is already in the
    messages, and a reply that the third refuses is not recorded.

    Raises:
        UnstableError: Something in the request has no stable form: a set, an object, NaN, a key that is not text.
    """
    parts = {
        "model": request.model,
        "messages": [list(message) for message in request.messages],
        "sampling": {
            "temperature": float(request.temperature),
            "top_p": float(request.top_p),
            "max_tokens": request.max_tokens,
        },
        "seed": request.seed,
        "schema": request.schema,
    }
    if request.images:  # only then: the keys of recorded replies stay as they are
        parts["images"] = [[image.digest, image.max_pixels] for image in request.images]
    return digest(parts, 16, "request")
