"""Check an answer's value against the words that it comes with (``check_value``): a rule on numbers alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from kohaku_ray.values.kinds import ValueKind
from kohaku_ray.values.normalise import Value, normalise, same, write_value
from kohaku_ray.values.stated import Stated, find_stated


class Check(NamedTuple):
    """What an explanation and its passages say of a value.

    Attributes:
        verdict: ``stands``: both state it, or there is nothing to check. ``other``: they state one other, which is
            ``value``. ``open``: they state none that fits or several, so that only the model can say.
        value: In the unit asked for, as an answer writes it.
    """

    verdict: Literal["stands", "other", "open"]
    value: str = ""


STANDS, OPEN = Check("stands"), Check("open")


def check_value(
    value: str, explanation: str, passages: Sequence[str], kind: ValueKind | None, unit: str | None = None
) -> Check:
    """Check that an explanation states the value within 0.1 %, and a passage what the explanation states.

    The other value that may be taken is the one number or range of the kind asked for that the explanation states and
    a passage too: where a unit is asked for, with that unit or another of its dimension. A blank value (empty) is
    checked where there is any.
    """
    if kind not in ("number", "range"):
        return STANDS
    stated, sources = find_stated(explanation, unit), [each for text in passages for each in find_stated(text, unit)]
    held = [each for each in stated if any(source.says(each.value, each.text) for source in sources)]
    if value and any(each.says(normalise(value, unit), value) for each in held):
        return STANDS
    offered = _offered([each for each in held if any(same(each.value, source.value) for source in sources)], kind, unit)
    if len(offered) == 1:
        return Check("other", write_value(offered[0], unit))
    return OPEN if value or offered else STANDS


def _offered(held: Sequence[Stated], kind: ValueKind, unit: str | None) -> list[Value]:
    """Return the distinct values of the kind asked for: numbers in digits, with the unit asked for if there is one."""
    kinds = ("pair",) if kind == "range" else ("number", "pair")
    dimension, offered = normalise("1", unit).dimension, list[Value]()
    for stated in held:
        value, is_asked = stated.value, stated.has_unit or not unit
        fits = value.kind in kinds and value.dimension == dimension and any(map(str.isdigit, stated.text))
        if is_asked and fits and not any(same(value, other) for other in offered):
            offered.append(value)
    return offered
