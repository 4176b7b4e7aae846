"""The extractive backend: the floor must hold."""

from __future__ import annotations

import asyncio
import json

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.growth import check_linear
from kit.properties import scaled
from kit.rows import check_rows

from kohaku_ray.errors import ContextOverflowError, ModelError
from kohaku_ray.models.baseline import Dummy, passages_of
from kohaku_ray.models.extractive import ExtractiveBackend
from kohaku_ray.models.parse import Plan, parse_answer, parse_plan
from kohaku_ray.models.prompts import Prompt, PromptSnippet, asked
from kohaku_ray.models.request import ChatRequest
from kohaku_ray.models.schema import answer_schema, plan_schema
from kohaku_ray.records import Question
from kohaku_ray.systems.registry import find_system
from kohaku_ray.values.kinds import kind_of

PROMPTS = find_system("kohaku").prompts()
SNIPPETS = [
    (
        "ores",
        "The Ores-7B model has 7 billion parameters. Its training took 433 MWh over 25 days. "
        "It ran on 384 A100-80GB chips.",
    ),
    ("ores", "Cooling used 5.4 million litres of water, i.e. about 1.2 L/kWh. The site emitted 24.5 tCO2e in 2022."),
    (
        "lume",
        "Lume is a benchmark suite for inference energy. We call the harness LumeBench. "
        "Operators say that inference takes 80–90% of compute.",
    ),
    (
        "lume",
        "The decree does not require providers to report the energy of inference. "
        "Providers must report the energy of training.",
    ),
    (
        "pact",
        "Batching cut energy per request from 6.2 J to 0.71 J, a factor of 8.7. "
        "Ores-7B needed 433 MWh to train, as its authors report.",
    ),
    (
        "pact",
        "The Kalpur campus had the highest water use, while the Velden campus had the lowest. "
        "The bill was $2.51 million.",
    ),
]


def answer_prompt(question: Question, snippets, media=()) -> Prompt:
    texts = {
        "snippets": tuple(PromptSnippet(*snippet) for snippet in snippets),
        "media": tuple(PromptSnippet(*item) for item in media),
    }
    return PROMPTS.render(
        "answer",
        {
            **asked(question),
            **texts,
            "order": "context_first",
            "instructions": "full",
            "kind": None,
            "scaled": None,
        },
    )


def ask(question, unit=None, kind=None, *, snippets=SNIPPETS, seed=0, temperature=0.0, backend=None):
    prompt = answer_prompt(Question("q", question, unit, kind), snippets)
    ids = [ref_id for ref_id, _ in snippets]
    request = ChatRequest(
        "extractive",
        prompt.messages,
        temperature,
        1.0,
        500,
        seed,
        answer_schema(ids, kind=kind_of(question, unit, kind)),
        variables=prompt.variables,
    )
    reply = asyncio.run((backend or ExtractiveBackend()).chat(request))
    jsonschema.validate(json.loads(reply.text), request.schema)
    prediction = parse_answer(reply, ids)
    assert prediction.error is None
    assert prediction.n_foreign_refs == 0
    return prediction


@check_rows(
    ("question", "unit", "kind", "value", "refs"),
    [
        ("How much energy did training Ores-7B take?", "MWh", None, "433", {"ores", "pact"}),
        ("How much energy did training Ores-7B take, in kWh?", None, None, "433000", {"ores", "pact"}),
        ("How many days did the training of Ores-7B take?", "days", "number", "25", {"ores"}),
        ("How many million litres of water did cooling use?", "million liters", None, "5.4", {"ores"}),
        ("How much carbon was emitted by the site in 2022?", "kgCO2e", "number", "24500", {"ores"}),
        ("How many chips did the training run on?", None, None, "384", {"ores"}),
        ("What share of compute does inference take according to operators?", "percent", "number", "[80,90]", {"lume"}),
        ("By what factor did batching cut energy per request?", "multiplier", None, "8.7", {"pact"}),
        ("In which year were tCO2e emitted by the site?", None, None, "2022", {"ores"}),
        ("What is the harness of Lume called?", None, "name", "LumeBench", {"lume"}),
        ("True or False: Providers must report the energy of training.", "is_blank", None, "1", {"lume"}),
        ("True or False: The decree requires providers to report inference.", None, "boolean", "0", {"lume"}),
    ],
)  # fmt: skip
def test_answers(question, unit, kind, value, refs):
    prediction = ask(question, unit, kind)
    assert prediction.answer_value == value
    assert set(prediction.ref_ids) <= refs
    assert prediction.ref_ids
    assert prediction.explanation.strip("“”") in " ".join(text for _, text in SNIPPETS)


@pytest.mark.parametrize("unit", ["lbs", None])
def test_what_the_context_does_not_tell_is_blank(unit):
    prediction = ask("How much does an elephant weigh?", unit)
    assert (prediction.is_blank, prediction.ref_ids) == (True, ())


def test_a_table_cell_is_found_by_row_and_column():
    table = "| Model | Energy (MWh) | Days |\n|---|---|---|\n| Ores-7B | 433 | 25 |\n| Ores-40B | 1,900 | 61 |"
    prediction = ask("How much energy did the training of Ores-40B take?", "MWh", snippets=[("t", table)])
    assert prediction.answer_value == "1900"
    assert passages_of("t", table)[0].text == "Model Ores-7B, Energy: 433 MWh"


def test_the_seed_draws_among_the_near_best_and_only_above_zero():
    snippets = [(f"d{i}", f"Training of the model took {i} MWh in all.") for i in range(3, 9)]
    question = "How much energy did training of the model take?"
    drawn = [ask(question, "MWh", snippets=snippets, seed=seed, temperature=0.7) for seed in range(20)]
    assert len({prediction.answer_value for prediction in drawn}) > 3
    assert drawn == [ask(question, "MWh", snippets=snippets, seed=seed, temperature=0.7) for seed in range(20)]
    assert len({ask(question, "MWh", snippets=snippets, seed=seed).answer_value for seed in range(10)}) == 1


def chat(variables, *, temperature=0.7, seed=1, messages=(("user", "x"),), schema=None, **options):
    request = ChatRequest("extractive", messages, temperature, 1.0, 9, seed, schema=schema, variables=variables)
    return asyncio.run(ExtractiveBackend(**options).chat(request))


PLAN = {"role": "plan", "question": "How does the PUE of Fjord, in 2022, compare with other sites?", "n_queries": 6}


def test_plans_whose_tail_the_seed_varies_above_zero():
    reply = chat(PLAN)
    jsonschema.validate(json.loads(reply.text), plan_schema(6))
    queries = json.loads(reply.text)["queries"]
    assert queries[0] == "PUE Fjord 2022 compare sites"
    assert PLAN["question"] not in queries
    assert len(queries) == len({query.casefold() for query in queries}) == 6
    assert parse_plan(reply, PLAN["question"], 6) == Plan((PLAN["question"], *queries[:5]))
    fewer = chat({**PLAN, "n_queries": 5})
    assert parse_plan(fewer, PLAN["question"], 6).queries == parse_plan(reply, PLAN["question"], 6).queries
    assert reply == chat(PLAN)
    plans = {tuple(json.loads(chat({**PLAN, "n_queries": 5}, seed=seed).text)["queries"]) for seed in range(20)}
    assert len(plans) > 1
    assert len({plan[:2] for plan in plans}) == 1
    assert len({chat(PLAN, temperature=0.0, seed=seed).text for seed in range(20)}) == 1


def test_requests_it_refuses():
    with pytest.raises(ContextOverflowError, match="about 101 tokens but window_tokens of the extractive backend is"):
        chat(PLAN, messages=(("user", "x" * 404),), window_tokens=100)
    assert chat(PLAN, messages=(("user", "x" * 400),), window_tokens=100).prompt_tokens == 100
    with pytest.raises(ModelError, match="needs question, snippets among the request's variables"):
        chat({"role": "answer"})


@check_rows(
    "schema",
    [
        answer_schema(["a", "b"]),
        plan_schema(3),
        {
            "type": "object",
            "properties": {"n": {"$ref": "#/$defs/n"}},
            "$defs": {"n": {"minimum": 2, "type": "integer"}},
        },
        {"anyOf": [{"type": "array", "items": {"enum": ["x"]}, "minItems": 2}, {"type": "null"}]},
        {"type": "number", "exclusiveMinimum": 0},
    ],
)
def test_a_role_of_ones_own_gets_a_reply_that_is_true_to_its_schema(schema):
    """A system of one's own runs offline, whatever roles it has."""
    variables = {"role": "judge", "anything": 1}
    jsonschema.validate(json.loads(chat(variables, schema=schema).text), schema)
    request = ChatRequest("dummy", (("user", "x"),), 0.7, 1.0, 9, 1, schema=schema, variables=variables)
    jsonschema.validate(json.loads(asyncio.run(Dummy().chat(request)).text), schema)
    assert json.loads(chat(variables).text) == "[dummy text of the offline stand-in]"
    short = {"type": "string", "maxLength": 6}
    assert json.loads(chat(variables, schema=short).text) == "[dummy"


@given(
    st.text(max_size=80),
    st.lists(st.text(max_size=80), max_size=3),
    st.sampled_from([None, "", "MWh", "is_blank", "%"]),
)
@settings(max_examples=scaled(60))
def test_any_text_gets_an_answer_and_a_plan(question, texts, unit):
    variables = {"question": question, "answer_unit": unit, "n_queries": 3, "snippets": [("d", text) for text in texts]}
    prediction = parse_answer(chat({**variables, "role": "answer"}), ["d"])
    assert prediction.error is None
    assert prediction.ref_ids in ((), ("d",))
    assert len(json.loads(chat({**variables, "role": "plan"}).text)["queries"]) <= 3


@pytest.mark.parametrize(
    ("question", "text"),
    [
        (lambda n: "what " * (2 * n), lambda n: "A. A. A. " * n),
        (lambda n: "which of: " + "a, " * (3 * n) + "or b?", lambda n: "1.1.1." * (2 * n)),
        (lambda n: ": a" * (3 * n), lambda n: "| a | b |\n" * n),
    ],
)
def test_time_of_hostile_text_grows_with_its_length(question, text):
    def read(snippets: list[tuple[str, str]]) -> None:
        [(asked, found)] = snippets
        chat({"role": "answer", "question": asked, "snippets": [("d", found)]})

    check_linear(lambda n: [(question(n), text(n))], read, n=2_500)
