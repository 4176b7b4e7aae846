"""The prompts of a question, as they were sent: its calls are made again in this process, from the recorded replies."""

from __future__ import annotations

import asyncio

from kohaku_ray.engine.actors.tools import RunContext
from kohaku_ray.engine.jobs.again import Recorded, Replies, answer_again, config_of, models_by_member, open_recorded
from kohaku_ray.engine.ledger.segments import SegmentStore
from kohaku_ray.errors import DataError
from kohaku_ray.models.request import ChatRequest
from kohaku_ray.run.files import SentPrompt, question_rows
from kohaku_ray.run.indexes import open_index
from kohaku_ray.run.sources import questions_of


def sent_prompts(run: str, question_id: str) -> list[SentPrompt]:
    """Make the calls of a question again from the recorded replies, and return their prompts.

    The key of a reply in the ledger is the hash of its prompt: a prompt that is found is the one that was sent.

    Raises:
        ConfigError: The run's configuration cannot be used, or it ranks with a cross-encoder.
        DataError: The run, its questions, its index or its ledger cannot be used.
    """
    usage = question_rows(run, question_id)["usage"]
    config = config_of(run, "which `show --prompt` does not start")
    question = next((one for one in questions_of(config) if one.question_id == question_id), None)
    if question is None:
        raise DataError(f"{config.questions.path} has no question {question_id} any more: its prompt is not known")
    keys = {row["key"] for row in usage}
    requests: dict[str, ChatRequest] = {}
    entries = SegmentStore(config.ledger.path).load(keys.__contains__).entries
    # Learns: a call that has no reply any more may be asked for less.
    replies = Replies(entries, learns=True, requests=requests)
    context = RunContext(config, replies, models_by_member(config), config.declaration.prompts(config.prompts))
    asyncio.run(answer_again(context, open_recorded(config, open_index(config), Recorded()), [question]))
    found: dict[tuple[str, int, object], SentPrompt] = {}
    for row in usage:
        sent = requests.get(row["key"])
        messages = None if sent is None else tuple((role, text) for role, text in sent.messages if text)
        place = (row["role"], row["attempt"], messages)
        members = (*(found[place].members if place in found else ()), row["member"])
        n_images = 0 if sent is None else len(sent.images)
        found[place] = SentPrompt(row["role"], row["attempt"], members, messages, n_images)
    return list(found.values())
