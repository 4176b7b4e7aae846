"""The prompts of a question, as they were sent: its calls are made again in this process, from the recorded replies."""

from __future__ import annotations

import asyncio
import functools
from dataclasses import dataclass, field

import yaml

from kohaku_ray.config import Config, build_config
from kohaku_ray.engine.actors.index_access import LocalIndex
from kohaku_ray.engine.actors.tools import EngineTools, RunContext
from kohaku_ray.engine.ledger.segments import Entry, SegmentStore
from kohaku_ray.engine.ledger.shard import Asked
from kohaku_ray.errors import ConfigError, ContextOverflowError, DataError, KohakuRayError
from kohaku_ray.models.request import ChatRequest, request_key
from kohaku_ray.records import Question
from kohaku_ray.run.files import SentPrompt, question_rows
from kohaku_ray.run.models import models_of
from kohaku_ray.run.sources import questions_of
from kohaku_ray.storage import below, read_file


@dataclass(slots=True)
class _RecordedReplies:
    """A ledger that makes no call, and keeps the requests; ``ContextOverflowError`` lets a system ask with less."""

    entries: dict[str, Entry]
    requests: dict[str, ChatRequest] = field(default_factory=dict)

    async def ask(self, request: ChatRequest, application: str, again: bool = False) -> Asked:
        key = request_key(request)
        self.requests[key] = request
        if key not in self.entries:
            raise ContextOverflowError("this call has no recorded reply")
        return Asked(self.entries[key], "ledger", key)


def sent_prompts(run: str, question_id: str) -> list[SentPrompt]:
    """Make the calls of a question again from the recorded replies, and return their prompts.

    The key of a reply in the ledger is the hash of its prompt: a prompt that is found is the one that was sent.

    Raises:
        ConfigError: The run's configuration cannot be used, or it ranks with a cross-encoder.
        DataError: The run, its questions, its index or its ledger cannot be used.
    """
    usage = question_rows(run, question_id)["usage"]
    config = build_config(yaml.safe_load(read_file(below(run, "config.yaml"))), below(run, "config.yaml"))
    if config.uses.cross_encoder is not None:
        raise ConfigError(f"{run} ranks with a cross-encoder, which `show --prompt` does not start")
    question = next((one for one in questions_of(config) if one.question_id == question_id), None)
    if question is None:
        raise DataError(f"{config.questions.path} has no question {question_id} any more: its prompt is not known")
    keys = {row["key"] for row in usage}
    replies = _RecordedReplies(SegmentStore(config.ledger.path).load(keys.__contains__).entries)
    asyncio.run(_ask_all(config, replies, question))
    found: dict[tuple[str, int, object], SentPrompt] = {}
    for row in usage:
        sent = replies.requests.get(row["key"])
        messages = None if sent is None else tuple((role, text) for role, text in sent.messages if text)
        place = (row["role"], row["attempt"], messages)
        members = (*(found[place].members if place in found else ()), row["member"])
        found[place] = SentPrompt(
            row["role"], row["attempt"], members, messages, 0 if sent is None else len(sent.images)
        )
    return list(found.values())


async def _ask_all(config: Config, replies: _RecordedReplies, question: Question) -> None:
    @functools.cache
    def index(shard: int) -> LocalIndex:
        return LocalIndex.open(config, number=shard, peer=index)

    models = tuple(
        models_of(config, {name: name for name in config.deployments}, member)
        for member in range(config.ensemble.members)
    )
    context = RunContext(config, replies, models, config.declaration.prompts(config.prompts))
    system, evidence = config.declaration, None
    for member in range(config.ensemble.members):
        tools = EngineTools(index(0), context, question.question_id, member)
        try:
            if member == 0 or config.ensemble.scope == "question":
                evidence = await system.prepare(question, tools, config.settings)
            await system.answer(evidence, tools, config.settings)
        except KohakuRayError:
            continue  # a call that was not made: what it led to was not asked
