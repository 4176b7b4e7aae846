"""A system of one's own, in one file: show a model the paragraphs that BM25 finds."""

from dataclasses import dataclass

from kohaku_ray.models.extractive import ExtractiveBackend
from kohaku_ray.models.parse import parse_answer
from kohaku_ray.models.prompts import PromptSnippet, asked
from kohaku_ray.models.schema import answer_schema
from kohaku_ray.records import Question, TraceRow
from kohaku_ray.settings import PositiveInt, Settings
from kohaku_ray.systems.base import Answer, Depth, Role, System, Uses, View

TEMPLATE = """{% block system %}Answer from the references alone, as JSON.{% endblock %}
{% block user %}{% for part in snippets %}[ref_id={{ part.ref_id }}] {{ part.text }}
{% endfor %}Question: {{ question }} ({{ answer_unit }}, {{ answer_type }}){% endblock %}"""


class LookupSettings(Settings):
    """How much is looked up."""

    paragraphs: PositiveInt = 4
    """Paragraphs shown to the model."""


@dataclass(frozen=True)
class Found:
    question: Question
    trace: tuple[TraceRow, ...]


async def prepare(question, tools, settings):
    [hits] = await tools.lexical("text", [question.text], settings.paragraphs)
    nodes = await tools.nodes(hits.rows)
    rows = [(int(row), float(score)) for row, score in zip(nodes.local(hits.rows), hits.scores, strict=True)]
    items = [(nodes.text_of(row), nodes.node_id(row), nodes.doc_id(row), "paragraph", {"bm25": s}) for row, s in rows]
    return Found(question, tuple(TraceRow("lookup", rank, *item) for rank, item in enumerate(items)))


async def answer(evidence, tools, settings):
    snippets = tuple(PromptSnippet(row.doc_id, row.text) for row in evidence.trace)
    doc_ids = [snippet.ref_id for snippet in snippets]
    prompt = tools.prompts.render("answer", {**asked(evidence.question), "snippets": snippets})
    reply = await tools.chat(prompt, schema=answer_schema(doc_ids))
    prediction = parse_answer(reply, allowed=doc_ids, unit=evidence.question.answer_unit)
    return Answer(prediction, measures={"paragraphs": len(snippets)}, reply=reply.text)


SYSTEM = System(
    name="lookup",
    settings=LookupSettings,
    views={"text": View(kinds=("paragraph",), lexical=True)},
    roles={"answer": Role(TEMPLATE, max_tokens=400, examples=({**asked(Question("q", "?")), "snippets": ()},))},
    uses=lambda settings: Uses(roles=("answer",), views={"text": Depth(lexical=settings.paragraphs)}),
    prepare=prepare,
    answer=answer,
    metrics=("exact", "wattbot"),
    offline=ExtractiveBackend,
)
