"""A question of a run, and parsed documents, as plain text for a terminal."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from kohaku_ray.documents.text.content import file_name
from kohaku_ray.index.nodes import NodeTable
from kohaku_ray.models.summary import pluralize, spent
from kohaku_ray.pages.evidence import open_index
from kohaku_ray.pages.tables import as_text
from kohaku_ray.pages.text import write_number
from kohaku_ray.records import BLANK
from kohaku_ray.runs.files import RunRow, SentPrompt, question_rows, steps_of
from kohaku_ray.store.tables import SHARED
from kohaku_ray.table import Column, Table, TableRow
from kohaku_ray.values.normalise import group_values
from kohaku_ray.values.spelling import ref_key

if TYPE_CHECKING:
    from kohaku_ray.collection.documents import Collection, DocumentView

WIDTH = 110

MOST_ODD = 6
"""Most odd places named in a document's line."""


def show_question(run: str, question_id: str, n_items: int | None) -> str:
    """Format the steps (``n_items`` of each; None: all), the members and the vote of one question of a run's directory.

    Raises:
        DataError: The run has not finished, or has no such question.
    """
    return describe_question(question_rows(run, question_id), n_items)


QUOTES = '“”"'

MOST_CITED = 3
"""Most cited documents of an answer in short, two lines each: with the others it has at most twelve lines."""


def describe_answer(rows: Mapping[str, list[RunRow]], index: str, seconds: float) -> str:
    """Format what one question's vote says, in at most twelve lines.

    These are the value and its unit, the sentence, the documents cited, each with a passage and its page, how many
    members agree, and what it cost.

    Args:
        rows: Those of the question (``question_rows``).
        index: Directory of the run's index, which knows titles and pages.
        seconds: Time that the answer took.
    """
    vote, answers, usage = rows["votes"][0], rows["answers"], rows["usage"]
    value = "no answer" if vote["is_blank"] else f"{vote['answer_value']} {vote['answer_unit'] or ''}".rstrip()
    lines = [value, *filter(None, [_shorten(vote["explanation"], 2 * WIDTH)])]
    cited = [] if vote["is_blank"] else vote["ref_ids"]
    passages = {ref: _find_passage(rows["trace"], vote, ref) for ref in cited[:MOST_CITED]}
    opened = open_index([index])[0] if any(passages.values()) else None
    for ref, passage in passages.items():
        if passage is None:
            lines.append(f"  {ref}")
        else:
            row, text = passage
            place = "" if opened is None else _describe_place(opened.nodes, row)
            lines += [f"  {ref}{place}", f"    “{_shorten(text.strip(QUOTES), WIDTH)}”"]
    if len(cited) > MOST_CITED:
        lines.append(f"  and {pluralize(len(cited) - MOST_CITED, 'more document')}: {', '.join(cited[MOST_CITED:])}")
    failed = f", {vote['n_errors']} in error" if vote["n_errors"] else ""
    lines.append(f"{_n_agreeing(vote, answers)} of {pluralize(len(answers), 'member')} agree{failed}")
    made = [call for call in usage if call["source"] == "made"]
    n_read, n_written = (sum(call[name] for call in made) for name in ("prompt_tokens", "completion_tokens"))
    paid = sum(call["dollars"] for call in made)
    lines.append(
        f"{pluralize(len(usage), 'call')}, {len(made)} made: {n_read:,} tokens read, {n_written:,} written"
        f"{f', ${paid:.4f}' if paid else ''}; {seconds:.1f} s"
    )
    return "\n".join(lines)


def _describe_place(nodes: NodeTable, row: RunRow) -> str:
    """Name the title of the document and the page of a passage; empty where the index holds another text by now."""
    number = pc.index(nodes.table["node_id"], row["node_id"]).as_py()
    if number < 0 or _plain(nodes.text_of(number))[:WIDTH] not in _plain(row["text"]):
        return ""
    title = nodes.title_of([number, *nodes.ancestors(number)][-1])
    page = nodes.table["page"][number].as_py()
    return f"{title and f'  {_shorten(title, WIDTH)}'}{'' if page is None else f', page {page}'}"


def _n_agreeing(vote: RunRow, answers: Sequence[RunRow]) -> int:
    """Count the members whose answer is that of the vote, in whatever spelling; errors agree with nobody."""
    if vote["is_blank"]:
        return sum(row["is_blank"] and not row["error"] for row in answers)
    rows = [*answers, vote]
    values = ["" if row["is_blank"] else row["answer_value"] for row in rows]
    *groups, winner = group_values(values, vote["asked_unit"], [row["answer_unit"] for row in rows])
    return groups.count(winner)


def _find_passage(trace: Sequence[RunRow], vote: RunRow, ref: str) -> tuple[RunRow, str] | None:
    """Find the sentence of a cited document, among those that the members saw, that the answer rests on most likely.

    That is one that the explanation quotes, or that has the value, or else most of the explanation's words.
    """
    rows = [row for row in trace if row["node_id"] and row["text"] and row["member"] in (SHARED, vote["winner"])]
    key = ref_key(ref)
    of_ref = [row for row in rows if key in {ref_key(row[name] or "") for name in ("node_id", "doc_id", "note")}]
    explanation, value = vote["explanation"] or "", (vote["answer_value"] or "").replace(",", "")
    quotes = [_plain(quote) for quote in re.findall(r"[“\"]([^”\"]{8,})[”\"]", explanation)]
    words = set(_plain(explanation).split())

    def rate(found: tuple[RunRow, str]) -> tuple[bool, bool, int]:
        text = _plain(found[1])
        has_value = (
            re.search(rf"(?<![\w.]){re.escape(value.lower())}(?![\w])", text.replace(",", "")) if value else None
        )
        return (
            any(quote in text or text in quote for quote in quotes),
            has_value is not None,
            len(words & {*text.split()}),
        )

    sentences = [(row, text) for row in of_ref for text in re.split(r"(?<=[.!?])\s+", row["text"]) if text.strip()]
    return max(sentences, key=rate, default=None)


def _plain(text: str) -> str:
    return " ".join(text.lower().split()).strip(QUOTES)


def _shorten(text: str | None, most: int) -> str:
    return textwrap.shorten(text or "", most, placeholder=" …")


def describe_question(rows: Mapping[str, list[RunRow]], n_items: int | None) -> str:
    """Format the rows of one question (``question_rows``)."""
    import polars as pl

    vote = rows["votes"][0]
    parts = [f"{vote['question_id']}  {vote['question']}", *_steps(rows["trace"], n_items), ""]
    parts += ["members", *_members(rows["answers"], rows["usage"]), "", "vote"]
    groups = zip(vote["groups"], vote["group_weights"], strict=True)
    weights = ", ".join(f"{group or BLANK} × {weight:g}" for group, weight in groups)
    counts = (
        f"{pluralize(vote['n_members'], 'member')}, {vote['n_blank']} blank, {vote['n_errors']} in error; {weights}"
    )
    parts += [f"  {describe_vote(vote)}", f"  {counts}", ""]
    for row in spent(pl.DataFrame(rows["usage"], infer_schema_length=None)):
        share = ""
        if row.cached_share is not None:
            share = f" ({row.cached_share:.0%} cached, members share {row.cached_bound:.0%})"
        energy = "" if row.joules is None else f", {row.joules:.0f} J"
        parts.append(
            f"took    {row.deployment}: {pluralize(row.n_calls, 'call')}, {row.prompt_tokens:,} prompt tokens{share}, "
            f"{row.completion_tokens:,} generated, summed over the calls "
            f"{row.queue_s:.2f} s of waiting for a replica, {row.service_s:.2f} s in replicas, "
            f"{f'{row.gpu_s:.2f} GPU s' if row.gpu_s else 'no GPU'}{energy}"
            f"{f', ${row.dollars:.4f}' if row.dollars else ''}"
        )
    return "\n".join(parts)


def describe_questions(votes: Sequence[RunRow]) -> str:
    """List a run's questions: id, what the ensemble answers, and the question's text."""
    rows = [[vote["question_id"], _short(describe_vote(vote)), _short(vote["question"])] for vote in votes]
    return as_text(Table.of(["question_id", "answer", "question"], rows, n_text=3))


def describe_replays(runs: Sequence[RunRow]) -> str:
    """Lay out replays of bundles: scores and costs, whether each is the same, and what differs."""
    head = ["run", "model", "metric", Column("score", ".4f"), "95 % interval", "questions", "members"]
    head += ["tokens in", "cached", "out", "s"]
    rows: list[TableRow] = []
    notes = []
    for run in runs:
        used = run["used"]
        cached = f"{used['cached_tokens'] / used['prompt_tokens']:.0%}" if used["prompt_tokens"] else ""
        tokens = used["prompt_tokens"], cached, used["completion_tokens"]
        names = run["name"], run["model"]
        costs: TableRow = (run["n_questions"], run["n_members"], *tokens, round(used["service_s"]))
        for score in run["scores"] or [{"metric": "none", "score": None}]:
            ends = f"{score['low']:.3f} … {score['high']:.3f}" if score.get("low") is not None else ""
            rows.append((*names, score["metric"], score["score"], ends, *costs))
            names, costs = ("", ""), ("",) * 6
        verdict = "differs from the bundle" if run["differences"] else "made again, every table the same"
        notes.append(f"{run['name']}: {verdict}")
        notes += [f"  {line}" for line in run["differences"]]
    return "\n".join([as_text(Table.of(head, rows, n_text=3)), "", *notes])


def describe_prompts(prompts: Sequence[SentPrompt]) -> str:
    """Write prompts as they were sent, each under the calls that sent it."""
    parts = []
    for prompt in prompts:
        whose = ", ".join("all members" if member == SHARED else str(member) for member in prompt.members)
        again = f", attempt {prompt.attempt}" if prompt.attempt else ""
        images = f", after {pluralize(prompt.n_images, 'image')}" if prompt.n_images else ""
        parts.append(f"--- {prompt.role} of member {whose}{again}{images}".replace("member all", "all"))
        if prompt.messages is None:
            parts.append("not known any more: the index, the templates or the question have changed since the run")
        parts += [f"[{role}]\n{text}" for role, text in prompt.messages or ()]
    return "\n\n".join(parts)


def describe_vote(vote: RunRow) -> str:
    """Format what the ensemble, or a member, answers in one line."""
    value = BLANK if vote["is_blank"] else f"{vote['answer_value']} {vote['answer_unit']}".rstrip()
    return f"{value}  [{', '.join(vote['ref_ids'])}]"


def _steps(rows: list[RunRow], n: int | None) -> Iterator[str]:
    for step in steps_of(rows):
        owner = "" if step.member == SHARED else f" of member {step.member}"
        again = f", attempt {step.attempt}" if step.attempt else ""
        pool = "" if step.pool is None else f" ({step.pool['note']})"
        yield f"\n{step.name}{owner}{again}: {len(step.items)}{pool}"
        for row in step.items[:n]:
            yield from _item(row)
        if n is not None and len(step.items) > n:
            yield f"  … {len(step.items) - n} more: --items 0 shows all"
        yield from (f"  error: {error}" for error in step.errors)


def _item(row: RunRow) -> Iterator[str]:
    where = "  ".join(part for part in (row["node_id"], row["note"], _numbers(row["scores"])) if part)
    first, *more = [part for part in (where, _short(row["text"])) if part]
    yield f"  {row['rank']:>4}. {first}"
    yield from (f"        {part}" for part in more)


def _short(text: str) -> str:
    return textwrap.shorten(text, WIDTH, placeholder=" …")


def _numbers(values: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {write_number(value)}" for name, value in values.items())


def _members(answers: list[RunRow], usage: list[RunRow]) -> Iterator[str]:
    for row in answers:
        calls = [call for call in usage if call["member"] == row["member"]]
        tokens = sum(call["prompt_tokens"] + call["completion_tokens"] for call in calls)
        yield (
            f"  {row['member']:>2}  seed {row['seed']:>10}  attempt {row['attempt']}  {describe_vote(row)}  "
            f"{pluralize(len(calls), 'call')}, {tokens:,} tokens"
        )
        labelled = {
            "details": row["details"] and _short(row["details"]),
            "reply": row["reply"] and _short(row["reply"]),
            "flags": ", ".join(row.get("flags") or ()),
            "error": row["error"],
        }
        label_lines = (f"{label}: {text}" for label, text in labelled.items() if text)
        yield from (
            f"      {text}" for text in (_short(row["explanation"]), _numbers(row["measures"]), *label_lines) if text
        )


def describe_collection(collection: Collection, paths: Sequence[str] = ()) -> str:
    """Write one line per document, then the rejects; names of files are relative to ``paths``."""
    from kohaku_ray.collection.documents import describe_left_out, describe_reject

    lines = [_line(view) for view in collection.documents]
    lines += [f"rejected: {describe_reject(file, reason, paths)}" for file, reason in collection.rejects]
    total = sum((view.counts for view in collection.documents), Counter[str]())
    n_odd = sum(bool(view.odd) for view in collection.documents)
    lines.append(
        f"{pluralize(len(collection.documents), 'document')} of {pluralize(collection.n_files, 'file')}, "
        f"{pluralize(total['sections'], 'section')}, {pluralize(total['paragraphs'], 'paragraph')}, "
        f"{pluralize(total['sentences'], 'sentence')}; {len(collection.rejects)} rejected, "
        f"{pluralize(n_odd, 'document')} with something odd"
    )
    if left_out := describe_left_out(collection.images_left_out):
        lines.append(left_out)
    lines += collection.odd
    return "\n".join(lines)


def _line(view: DocumentView) -> str:
    line = f"{view.document.doc_id}  {file_name(view.file)}  {view.document.title!r}: {view.numbers}"
    more = f"; and {len(view.odd) - MOST_ODD} more" if len(view.odd) > MOST_ODD else ""
    lines = [line, f"  odd: {'; '.join(view.odd[:MOST_ODD])}{more}"] if view.odd else [line]
    if view.document.dropped:
        lines.append(f"  dropped: {'; '.join(view.document.dropped)}")
    return "\n".join(lines)


def describe_tree(view: DocumentView) -> str:
    """Write a document's whole tree: sections, paragraphs, and each sentence on a line."""
    document = view.document
    lines = [_line(view), *(f"  {key}: {value}" for key, value in document.metadata.items())]
    for section_number, section in enumerate(document.sections):
        page = "" if section.page is None else f", page {section.page}"
        lines.append(f"\nsec{section_number}  {section.title}{page}")
        for inner, paragraph in enumerate(section.paragraphs):
            attachment = paragraph.attachment
            facts = [f"page {paragraph.page}"] if paragraph.page is not None else []
            facts += [attachment.kind, attachment.path or ""] if attachment is not None else []
            facts += [f"{key} {value}" for key, value in paragraph.attributes.items() if value is not None]
            lines.append(f"  sec{section_number}:p{inner}  {', '.join(filter(None, facts))}".rstrip())
            for number, span in enumerate(paragraph.sentences):
                lines.append(f"    s{number}  {paragraph.text[span.start : span.end]}")
            if not paragraph.sentences:
                lines.append(f"    {paragraph.text or '(no text: not searchable)'}")
    return "\n".join(lines)
