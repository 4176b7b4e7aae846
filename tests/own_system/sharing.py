"""The system of ``lookup.py`` whose members share their prompt and trace; one of them can be made to fail."""

from dataclasses import dataclass, replace

from kohaku_ray.models.parse import parse_answer
from kohaku_ray.models.prompts import Prompt, asked
from kohaku_ray.records import TraceRow
from kohaku_ray.settings import Settings
from kohaku_ray.systems.base import Answer
from tests.own_system.lookup import SYSTEM as LOOKUP


class SharingSettings(Settings):
    """Which member fails."""

    paragraphs: int = 4
    """Paragraphs shown to the model."""
    failing_member: int | None = None
    """Number of the member whose answers raise; None: no member's do."""


@dataclass(frozen=True)
class Shown:
    prompt: Prompt
    trace: tuple[TraceRow, ...]


async def answer(evidence, tools, settings):
    async def make():
        snippets = [{"ref_id": row.doc_id, "text": row.text} for row in evidence.trace]
        prompt = tools.prompts.render("answer", {**asked(evidence.question), "snippets": snippets})
        return Shown(prompt, tuple(replace(row, step="shown") for row in evidence.trace))

    shown = await tools.shared_by_members("shown", make)
    reply = await tools.chat(shown.prompt)
    if tools.member == settings.failing_member:
        raise ValueError(f"{evidence.question.question_id} has no unit")
    doc_ids = [row.doc_id for row in evidence.trace]
    return Answer(parse_answer(reply, allowed=doc_ids), shown.trace, reply=reply.text)


SYSTEM = replace(LOOKUP, name="sharing", settings=SharingSettings, answer=answer)
