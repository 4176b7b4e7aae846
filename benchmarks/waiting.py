"""A system whose model only waits: kohaku with a stand-in that replies after some seconds, and logs its calls."""

from __future__ import annotations

import asyncio
import json
import os
import time
from dataclasses import replace
from pathlib import Path

from kohaku_ray.models.request import ChatRequest
from kohaku_ray.records import Reply
from kohaku_ray.systems.kohaku import SYSTEM as KOHAKU

SECONDS, LOG = "KOHAKU_WAITING_S", "KOHAKU_WAITING_LOG"
"""Environment variables: seconds per call, and the directory of the logs, one per replica."""


class WaitingBackend:
    """Replies after a pause."""

    identity = "waiting"

    def __init__(self, *_: object) -> None:
        self._seconds, self._log = float(os.environ[SECONDS]), Path(os.environ[LOG], f"{os.getpid()}.txt")

    async def chat(self, request: ChatRequest) -> Reply:
        """Wait, and log the call's begin and end."""
        began = time.time()
        await asyncio.sleep(self._seconds)
        variables = request.variables or {}
        if variables["role"] == "plan":
            text = json.dumps([variables["question"]])
        else:
            ref_id = variables["snippets"][0][0]
            text = json.dumps({"explanation": "", "answer": "4", "answer_value": "4", "ref_id": [ref_id]})
        with self._log.open("a") as log:
            log.write(f"{began} {time.time()}\n")
        return Reply(text, prompt_tokens=request.n_chars // 4, completion_tokens=20, replica=str(os.getpid()))

    async def close(self) -> None:
        """Do nothing."""


SYSTEM = replace(KOHAKU, name="waiting", offline=WaitingBackend)
