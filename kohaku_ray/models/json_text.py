"""Read JSON from a model's reply: its final part, whatever stands around it, also cut off or nearly JSON."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from pydantic_core import from_json

from kohaku_ray.models.request import FINISH_REASONS, is_finished
from kohaku_ray.records import CUT, Reply

MARKS = (
    (r"<think(?:ing)?>", r"</think(?:ing)?>"),
    (r"<(?:seed|mm):think>", r"</(?:seed|mm):think>"),  # Seed-OSS, MiniMax M3
    (r"\[THINK\]", r"\[/THINK\]"),  # Magistral
    (r"<\|START_THINKING\|>", r"<\|END_THINKING\|>"),  # Command A
    (r"<\|channel>", r"<channel\|>"),  # Gemma 4; hermes-agent#62680
    # gpt-oss, and the same where its special tokens were left out (mlx-lm#1867, TensorRT-LLM#9256)
    (r"<\|channel\|>(?:analysis|commentary)", r"<\|channel\|>final[^{<]*(?:<\|constrain\|>[^{<]*)?<\|message\|>"),
    (r"\Aanalysis(?=[A-Z])", r"assistantfinal"),
)
"""What begins and ends a model's thinking in its text, as in the reasoning parsers of vLLM."""

_BEGIN, _END = ("|".join(marks) for marks in zip(*MARKS, strict=True))
_SCANNED = re.compile(rf"(?P<begin>{_BEGIN})|(?P<end>{_END})|(?P<bracket>[{{\[])")  # [THINK] is no array

MOST_REPAIRED_CHARS = 2**17
"""Longest text that is repaired, in half a second; the time grows with the length."""

_MOST_STARTS = 2000  # brackets tried: bounds the time for a hostile reply
_MOST_CUT_STARTS = 20
_MOST_ENDS = 20  # of thinking, after which brackets are tried anew
_STRICT = json.JSONDecoder()
_LENIENT = json.JSONDecoder(strict=False)  # takes a raw line break inside a string
_STRING = re.compile(r'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
_SPACED_NUMBER = re.compile(r":\s*(-?\d{1,3}(?:[ \u00a0\u202f]\d{3})+(?:[.,]\d+)?)(?=\s*[,}])")
_NEARLY_JSON = re.compile(r"\{|\[(?=\s*[\"'“‘{\[])")  # not [1] or [ref_id=a] in prose
_CONTROLS = dict.fromkeys(range(32), " ")
_TAIL_CHARS = 500
_LEAST_TAIL_CHARS = 200
_LOOP_SHARE = 0.46  # size after compression: replies of small models that do not loop have 0.5 to 0.75
_DIGITS = re.compile(r"\d+(?:[.,]\d+)*")


class FoundValue(NamedTuple):
    """A JSON value of a reply.

    Attributes:
        flag: ``cut``: the text breaks off in it; ``repaired``: it was no valid JSON; empty: it is whole.
        broken: Of an object that is cut, the field in whose value the text breaks off: some of its items are missing.
    """

    value: Any
    flag: str = ""
    broken: str = ""


def find_values(reply: Reply, *, as_written: bool = False) -> Iterator[FoundValue]:
    """Yield the JSON values of a reply; none of a reply that failed or only thinks.

    First the whole text; then the whole values of its final part, the last one first, as a draft or an echoed schema
    stands before what is wanted, each before those within it; then what is complete of a value that is cut off; then
    the final part as json-repair reads it.

    Args:
        reply: The reply.
        as_written: Yield the values of the final part in the order of the text.
    """
    if not is_finished(reply):
        return
    text = reply.text
    if (value := loads(text, strict=True)) is not None:
        yield from map(FoundValue, _walk(value))
        return
    values, start, is_open = _scan(text)
    if is_open:
        return
    for value in values if as_written else reversed(values):
        yield from map(FoundValue, _walk(value))
    final = text[start:]
    starts = [bracket.start() for bracket in islice(re.finditer(r"[{\[]", final), _MOST_CUT_STARTS)]
    yield from filter(None, (_complete(final[start:]) for start in starts))
    for value in _repaired(final, as_written):
        yield from (FoundValue(inner, "repaired") for inner in _walk(value))


def final_part(text: str) -> tuple[str, bool]:
    """Return what a model wrote after its thinking, and whether it was still thinking when the text ended."""
    _, start, is_open = _scan(text)
    return "" if is_open else text[start:], is_open


def _scan(text: str) -> tuple[list[Any], int, bool]:
    """Return the whole values after a text's thinking that stand in no other, where that ends, and whether it does not.

    Marks within a value are words of its strings.
    """
    values, start, is_open, n_failed, n_ends, position = list[Any](), 0, False, 0, 0, 0
    while match := _SCANNED.search(text, position):
        position = match.end()
        if match.lastgroup == "begin":
            is_open = True
        elif match.lastgroup == "end":
            values, start, is_open, n_ends = [], position, False, n_ends + 1
            n_failed = 0 if n_ends < _MOST_ENDS else n_failed
        elif not is_open and n_failed < _MOST_STARTS:
            try:
                value, position = _LENIENT.raw_decode(text, match.start())
                values.append(value)
            except ValueError:
                n_failed += 1
            except RecursionError:  # a thousand brackets: each try takes as long as a hundred others
                n_failed += 100
    return values, start, is_open


def loads(text: str, strict: bool = False) -> Any | None:
    """Parse a text that is JSON; None if it is not."""
    try:
        return (_STRICT if strict else _LENIENT).decode(text)
    except (ValueError, RecursionError):
        return None


def loops(text: str) -> bool:
    """Return whether a text ends in repetitions, also of a phrase whose numbers change."""
    tail = _DIGITS.sub("0", text)[-_TAIL_CHARS:].encode()
    return len(tail) >= _LEAST_TAIL_CHARS and len(zlib.compress(tail)) < _LOOP_SHARE * len(tail)


def why_nothing(reply: Reply, wanted: str) -> str:
    """Return why a reply does not hold what is wanted: it failed, was cut off, loops, is empty, or something else."""
    text = reply.text
    reason = FINISH_REASONS.get(reply.finish_reason.casefold())
    if reason is None:
        said = reply.finish_reason[:60]
        return f"no {wanted}: the recorded reply ended with finish_reason {said!r}: ask it again by --retry errors"
    is_open = final_part(text)[1]
    if reason == CUT or is_open:
        cause = "it repeats itself" if loops(text) else "raise max_tokens, or serve the model with a longer window"
        while_thinking = " while it was thinking" if is_open else ""
        return f"no {wanted}: the reply was cut{while_thinking} at {reply.completion_tokens} tokens: {cause}"
    if not text.strip():
        return f"no {wanted}: the reply is empty"
    begin = " ".join(text[:400].split())[:120]
    too_long = f", more than the {MOST_REPAIRED_CHARS:,} that are repaired," if len(text) > MOST_REPAIRED_CHARS else ""
    return f"no {wanted} in a reply of {len(text)} characters{too_long} that begins {begin!r}"


def _walk(value: Any) -> Iterator[Any]:
    """Yield a value and then those within it, in their order; an object that a string holds is one of them."""
    waiting = [_decoded(value)]
    while waiting:
        value = waiting.pop()
        yield value
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        waiting += reversed([each for each in map(_decoded, inner) if isinstance(each, (dict, list))])


def _decoded(value: Any) -> Any:
    """Read an object that is JSON encoded twice, as arguments of calls are (ollama#12413, smolagents#1003)."""
    is_object = isinstance(value, str) and value.lstrip()[:1] == "{"
    return loads(value) if is_object else value


def _complete(text: str) -> FoundValue | None:
    """Read what is complete of an object or array that the text breaks off."""
    text = re.sub(r"[\w.+-]+\Z", "", text).translate(_CONTROLS)  # a number at the end may go on
    try:
        from_json(text)
        return None
    except ValueError as error:
        if not str(error).startswith("EOF"):  # else the next call would leave out what is behind a fault
            return None
    value, bare = from_json(text, allow_partial=True), _STRING.sub("", text)
    is_inner = bare.count("[") + bare.count("{") > bare.count("]") + bare.count("}") + 1
    return FoundValue(value, "cut", next(reversed(value), "") if is_inner and isinstance(value, dict) else "")


def _repaired(text: str, as_written: bool) -> list[Any]:
    """Read a text that has the brackets of JSON by json-repair; empty if it reads nothing.

    Of several objects the list comes first and then, unless ``as_written``, the last one.
    """
    begin = _NEARLY_JSON.search(text)
    end = max(text.rfind("}"), text.rfind("]")) + 1
    if begin is None or begin.start() >= end or len(text) > MOST_REPAIRED_CHARS:
        return []
    import json_repair

    try:
        # The library drops what follows the first group of digits.
        value = json_repair.loads(_SPACED_NUMBER.sub(r': "\1"', text[begin.start() : end]), skip_json_loads=True)
    except (ValueError, RecursionError):
        return []
    return [value, *reversed(value)] if isinstance(value, list) and not as_written else [value]
