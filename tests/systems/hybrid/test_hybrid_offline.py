import asyncio
import json

import pytest
from kit.rows import check_rows
from systems.hybrid.press import INDEX, QUESTION, settings, shown, tools_for

from kohaku_ray.errors import ContextOverflowError
from kohaku_ray.models.parse import parse_plan
from kohaku_ray.models.request import ChatRequest
from kohaku_ray.systems.hybrid import SYSTEM, answer, prepare
from kohaku_ray.systems.hybrid.answer import NO_INFORMATION
from kohaku_ray.systems.hybrid.offline import SAYS_SO, OfflineFrench, expand, rank, value_in

BACKEND = SYSTEM.offline(4000)
TEXTS = (
    {"ref_id": "1", "mark": "[1 / a / b]", "title": "Digue", "text": "Le vent souffle. La digue a fait fuir 412 gens."},
    {"ref_id": "2", "mark": "[2 / a / b]", "title": "Tram", "text": "Le tramway aura 19 stations."},
)


def ask(variables, seed=0, temperature=0.0, prompt="p"):
    request = ChatRequest("m", (("user", prompt),), temperature, 1.0, 100, seed, variables=variables)
    return asyncio.run(BACKEND.chat(request))


def offline_tools():
    async def script(call):
        request = ChatRequest("m", call.prompt.messages, 0.9, 0.9, 500, call.attempt, variables=call.prompt.variables)
        return await BACKEND.chat(request)

    return tools_for(script, INDEX)


def test_from_question_to_a_cited_answer_without_a_model():
    tools = offline_tools()
    evidence = asyncio.run(prepare(QUESTION, tools, settings()))
    result = asyncio.run(answer(evidence, tools, settings()))
    assert len(evidence.queries) > 1
    assert result.prediction.answer_value == "412"
    assert set(result.prediction.ref_ids) <= set(shown(evidence))
    assert result.prediction.ref_ids
    assert result.prediction.explanation.startswith(SAYS_SO)
    assert result.prediction.n_foreign_refs == 0


def test_it_says_what_it_is():
    assert BACKEND.identity == "extractive-fr/3 abstain_below=0.35 window_tokens=4000"
    for texts in (TEXTS, ()):
        body = json.loads(ask({"role": "answer", "question": "Pad thaï ?", "texts": texts}).text)
        assert body["explanation"].startswith(SAYS_SO)
        assert (body["answer"], body["answer_value"], body["ref_id"]) == (NO_INFORMATION, "is_blank", [])


def test_sub_queries_are_keywords_and_names_of_the_corpus():
    queries = expand("Pourquoi la digue de Port-Vaillant a-t-elle cédé ?", ["Ici, Irma-Lise a frappé."] * 2, 6)
    assert queries[0] == "digue Port-Vaillant cédé"
    assert "digue Port-Vaillant cédé Irma-Lise" in queries
    assert len(expand("Pourquoi la digue a-t-elle cédé ?", [], 2)) == 2
    assert expand("Et ?", [], 3) == ["Et ?"]
    asked = "Pourquoi la digue céda ?"
    plan = parse_plan(ask({"role": "expand", "question": asked, "context": (), "n_queries": 4}), asked, 4)
    assert (plan.queries[:2], plan.error) == ((asked, "digue céda"), None)


def test_the_sentence_that_covers_the_question_comes_first():
    best, *_ = rank("Combien la digue a-t-elle fait fuir de gens ?", TEXTS)
    assert (best[1], best[2]["ref_id"]) == ("La digue a fait fuir 412 gens.", "1")
    assert 0 < best[0] <= 1


@check_rows(
    ("sentence", "question", "unit", "value"),
    [
        ("En 2024, 412 habitants ont fui.", "Combien d'habitants ont fui ?", "", "412"),
        ("Ses 62 éoliennes font 496 mégawatts.", "Quelle est la puissance ?", "mégawatts", "496"),
        ("Elle rapportera 9,6 millions d'euros en 2025.", "Combien ?", "millions d'euros", "9,6 millions"),
        ("On récupère 94 % du lithium en 3 jours.", "Quelle part ?", "%", "94"),
        ("Bâtie en 1962 pour 4 millions.", "En quelle année ?", "", "1962"),
        ("Depuis 2017, elle est fragile ; 3 fissures.", "Combien de fissures depuis 2017 ?", "", "3"),
        ("Il y en a 5.", "Pourquoi ?", "", ""),
        ("Aucun.", "Combien ?", "", ""),
    ],
)
def test_the_number_asked_for_is_lifted_out(sentence, question, unit, value):
    assert value_in(sentence, question, unit) == value


def test_the_seed_varies_the_choice_and_repeats():
    twins = tuple({**TEXTS[0], "ref_id": str(number), "mark": f"[{number} / a / b]"} for number in range(8))
    variables = {"role": "answer", "question": "Qui la digue a-t-elle fait fuir ?", "texts": twins}
    firsts = {json.loads(ask(variables, seed, 0.7).text)["ref_id"][0] for seed in range(12)}
    assert len(firsts) > 1
    assert ask(variables, 3, 0.7) == ask(variables, 3, 0.7)
    assert {json.loads(ask(variables, seed).text)["ref_id"][0] for seed in range(4)} == {"0"}


def test_what_it_cannot_do_is_said():
    with pytest.raises(ContextOverflowError, match="window_tokens of the extractive-fr backend is 4000"):
        ask({"role": "answer", "question": "?", "texts": ()}, prompt="x" * 20_000)
    assert OfflineFrench().identity != BACKEND.identity
