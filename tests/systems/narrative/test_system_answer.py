"""Two stages, their bar, windows of a whole book, and what becomes of bad replies: in process, without Ray."""

import asyncio
import json
from dataclasses import asdict

import jsonschema
import pytest
from kit.rows import check_rows
from systems.narrative.stories import INDEX, PRISON, judged, prepared, rows_of, scripted, stories, tools_for, verdict

from kohaku_ray.config import load_config
from kohaku_ray.ensemble.vote import VoteRule, vote
from kohaku_ray.errors import ConfigError, ContextOverflowError, ModelError
from kohaku_ray.records import Prediction, Reply
from kohaku_ray.runs.seeds import seed_of
from kohaku_ray.systems.narrative import SYSTEM
from kohaku_ray.systems.narrative.label import CONSISTENT, CONTRADICT
from kohaku_ray.systems.narrative.settings import refuse_identical_members

STORIES = stories()
STORY = STORIES["46"]
FAKE = (
    "deployments.fake={kind: openai, base_url: 'http://127.0.0.1:9/v1', model: fake, api_key_env: null}",
    "roles.search.model=fake",
)
WARM = ("roles.search.temperature=0.7",)
TWO_MODELS = "ensemble.models=[extractive,b]"
ROCK = "The Prisoner of the Rock:sec1:c0"


def asked(search, verify=None, story=STORY, **settings):
    """What is judged where the models reply so, and the tools that were asked."""
    tools = tools_for(scripted(search, verify))
    return judged(story, tools, **settings), tools


def roles(tools):
    return [call.role for call in tools.sent]


# ---- stages


def test_without_a_claimed_contradiction_there_is_one_call():
    answer, tools = asked(verdict(CONSISTENT, 0.8))
    assert roles(tools) == ["search"]
    assert (answer.prediction.answer_value, answer.measures["confidence"]) == (CONSISTENT, 0.8)
    assert answer.prediction.ref_ids == ("The Prisoner of the Rock",)
    assert not answer.prediction.is_blank


@pytest.mark.parametrize(
    ("label", "confidence", "final", "left"),
    [
        (CONTRADICT, 0.95, CONTRADICT, 0.95),
        (CONTRADICT, 0.9, CONTRADICT, 0.9),
        (CONTRADICT, 0.89, CONSISTENT, 0.11),
        (CONSISTENT, 0.6, CONSISTENT, 0.6),
    ],
)
def test_a_claimed_contradiction_is_confirmed_from_the_bar_on(label, confidence, final, left):
    answer, tools = asked(verdict(CONTRADICT, 0.6), verdict(label, confidence))
    assert roles(tools) == ["search", "verify"]
    assert answer.prediction.answer_value == final
    assert answer.measures["confidence"] == pytest.approx(left)
    assert answer.measures["contradiction"] == pytest.approx(left if final == CONTRADICT else 1 - left)
    assert [(row.step, row.note) for row in answer.trace] == [("search", CONTRADICT), ("verify", label)]
    assert ("below the bar of 0.9" in answer.prediction.explanation) == (label != final)


def test_the_bar_and_the_stages_are_settings_and_the_prompt_says_the_bar():
    tools = tools_for(scripted(verdict(CONTRADICT), verdict(CONTRADICT, 0.7)))
    assert judged(STORY, tools, verify_bar=0.65).prediction.answer_value == CONTRADICT
    assert "at least 65 % sure" in tools.sent[1].prompt.user
    assert "Silence is not contradiction" in tools.sent[1].prompt.user
    tools = tools_for(scripted(verdict(CONTRADICT, 0.55)))
    assert judged(STORY, tools, stages=1).prediction.answer_value == CONTRADICT
    assert roles(tools) == ["search"]


def test_stage_two_sees_what_stage_one_accuses():
    claim = verdict(CONTRADICT, node_id=ROCK, quote="stood on a bare rock", analysis="He was not there.")
    _, tools = asked(claim, verdict(CONSISTENT), k=6)
    verify = tools.sent[1].prompt.user
    assert "The accusation: Because." in verify
    assert "stood on a bare rock: He was not there." in verify
    first, second = ([part["ref_id"] for part in call.prompt.variables["passages"]] for call in tools.sent)
    assert first[0] != ROCK
    assert second == [ROCK, *(item for item in first if item != ROCK)]


# ---- what the models are shown


def test_excerpts_show_chapter_and_progress_and_findings_are_in_the_context():
    _, tools = asked(verdict(CONTRADICT), verdict(CONTRADICT), story=STORIES["137"])
    for call in tools.sent:
        assert f"[ref_id={ROCK}] (CHAPTER II. THE ROCK, 50 % of the book) Anton Varga was arrested" in call.prompt.user
        assert "act_after_death: Anton Varga died in 1810 in the story" in call.prompt.user
        assert "Its heading: Prison" in call.prompt.user
    _, tools = asked(verdict(CONSISTENT), story=STORIES["137"], reasoning=False)
    assert "act_after_death" not in tools.sent[0].prompt.user


def test_a_name_the_book_lacks_is_left_out_of_the_search_and_said_to_the_model():
    unknown, known = (asked(verdict(CONSISTENT), story=STORIES[key])[1] for key in ("007", "46"))
    assert "Zeno Quill, a name that the novel does not have." in unknown.sent[0].prompt.user
    searched = [[item[1] for item in tools.asked if item[0] == "embed"][-1] for tools in (unknown, known)]
    assert not any("Zeno" in text for text in searched[0])
    assert searched[1][-1].startswith("Anton Varga Anton Varga was born")


def test_the_schema_admits_the_shown_ids_alone_and_no_endless_text():
    _, tools = asked(verdict(CONSISTENT), k=2)
    (call,) = tools.sent
    shown = [part["ref_id"] for part in call.prompt.variables["passages"]]
    longest = {"quote": "q" * 256, "claim": "c" * 256, "analysis": "a" * 256}
    (cited,) = json.loads(verdict(CONSISTENT, node_id=shown[1], **longest))["excerpts"]
    good = verdict(CONSISTENT, excerpts=[cited] * 8, rationale="r" * 512)
    jsonschema.validate(json.loads(good), call.schema)
    assert len(good) < 2048 * 4.5, "English has more characters a token: the longest judgement is not cut off"
    longer = [{**cited, name: text + "."} for name, text in longest.items()]
    for wrong in (
        verdict(CONSISTENT, node_id="other:c0"),
        verdict("maybe"),
        verdict(CONSISTENT, extra=1),
        verdict(CONSISTENT, excerpts=[cited] * 9),
        verdict(CONSISTENT, rationale="r" * 513),
        *(verdict(CONSISTENT, excerpts=[item]) for item in longer),
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(json.loads(wrong), call.schema)
    assert list(call.schema["properties"]) == ["excerpts", "rationale", "label", "confidence"]


# ---- the dossier


@pytest.mark.parametrize(
    ("quote", "excerpt"),
    [
        ("Anton is no thief", "Anton is no thief"),
        ('"Anton is no thief," said Pereira', "“Anton is no thief,” said Pereira"),
        (
            "mended the nets and thought of the price of herring.",
            "mended the nets and\nthought of the price of herring.",
        ),
        ("... ANTON is no thief ...", "Anton is no thief"),
    ],
)
def test_a_quotation_becomes_the_books_own_characters(quote, excerpt):
    node_id = "The Prisoner of the Rock:sec0:c1"
    judgement = judged(STORY, tools_for(scripted(verdict(CONSISTENT, node_id=node_id, quote=quote, claim="a thief"))))
    evidence, claim, analysis = rows_of(judgement, "dossier")
    (cited,) = json.loads(judgement.details)["dossier"]
    assert (cited["evidence"], cited["is_quoted"], cited["claim"], cited["node_id"]) == (
        excerpt,
        True,
        "a thief",
        node_id,
    )
    assert (evidence.text, claim.text, analysis.text) == (excerpt, "a thief", "a")
    assert evidence.note == "evidence 1: CHAPTER I. THE HARBOUR, 25 % of the book"
    assert (evidence.node_id, evidence.doc_id, claim.doc_id) == (node_id, "The Prisoner of the Rock", None)
    assert evidence.text in PRISON
    assert judgement.measures["misquoted"] == 0


@pytest.mark.parametrize("quote", ["Anton is a thief", "", "“”"])
def test_what_the_book_does_not_say_becomes_the_whole_chunk_and_is_counted(quote):
    judgement = judged(STORY, tools_for(scripted(verdict(CONSISTENT, node_id=ROCK, quote=quote))))
    assert rows_of(judgement, "dossier")[0].text == INDEX.text_of(INDEX.row_of(ROCK))
    assert judgement.measures["misquoted"] == 1


def test_an_excerpt_that_was_not_shown_is_left_out_and_counted():
    judgement = judged(STORY, tools_for(scripted(verdict(CONSISTENT, node_id="The Garden:sec0:c0", quote="Clara"))))
    assert rows_of(judgement, "dossier") == []
    assert judgement.prediction.n_foreign_refs == 1


# ---- bad replies


@check_rows(
    ("reply", "message"),
    [
        ("I cannot say.", "search: no JSON object with a label and a confidence in a reply of 13 characters"),
        ("", "the reply is empty"),
        ('{"label": "perhaps", "confidence": 1}', "no JSON object"),
        (Reply('{"label": "con', finish_reason="length", completion_tokens=7), "cut at 7 tokens: raise max_tokens"),
        (ModelError("the server said 400"), "ModelError: the server said 400"),
    ],
)
def test_a_reply_without_a_judgement_is_a_blank_row_with_its_error(reply, message):
    judgement = judged(STORY, tools_for(scripted(reply)))
    assert (judgement.prediction.is_blank, judgement.prediction.answer_value) == (True, "")
    assert message in judgement.prediction.error
    assert judgement.trace[-1].error == judgement.prediction.error


def test_a_failed_second_stage_keeps_the_first_in_the_trace():
    judgement = judged(STORY, tools_for(scripted(verdict(CONTRADICT), "nonsense")))
    assert judgement.prediction.is_blank
    assert [row.step for row in judgement.trace] == ["search", "verify"]
    assert judgement.trace[1].error.startswith("verify: no JSON object")


@check_rows(
    ("fields", "label", "confidence"),
    [
        ({"label": "0", "confidence": 0.9}, CONTRADICT, 0.9),
        ({"label": "True", "confidence": "85%"}, CONSISTENT, 0.85),
        ({"label": "Contradictory", "confidence": 97}, CONTRADICT, 0.97),
        ({"label": "consistent", "confidence": "high"}, CONSISTENT, 0.5),
        ({"label": "consistent", "confidence": -3}, CONSISTENT, 0.0),
        ({"label": "consistent", "excerpts": [None, {"node_id": 5}]}, CONSISTENT, 0.5),
    ],
)
def test_loose_replies_are_read(fields, label, confidence):
    judgement = judged(STORY, tools_for(scripted(f"Well:\n```json\n{json.dumps(fields)}\n```")), stages=1)
    assert (judgement.prediction.answer_value, judgement.measures["confidence"]) == (label, confidence)


# ---- the model's window


def test_excerpts_that_do_not_fit_are_left_out_from_the_last():
    everything = tools_for(scripted(verdict(CONSISTENT)))
    judged(STORY, everything)
    n_chars = sum(len(text) for _, text in everything.sent[0].prompt.messages)
    tight = tools_for(scripted(verdict(CONSISTENT)), window_tokens=n_chars // 4 + 100 - 60, max_tokens=100)
    judged(STORY, tight)
    (all_shown,), (shown,) = ([call.prompt.variables["passages"] for call in t.sent] for t in (everything, tight))
    assert 0 < len(shown) < len(all_shown)
    assert shown == all_shown[: len(shown)]


def test_a_window_for_no_excerpt_is_an_error_with_the_way_out():
    tools = tools_for(scripted(verdict(CONSISTENT)), window_tokens=400, max_tokens=100)
    judgement = judged(STORY, tools)
    assert tools.sent == []
    assert "not one excerpt fits the model's window of 400 tokens" in judgement.prediction.error
    assert "roles.search.max_tokens, which is 100: lower that, or serve" in judgement.prediction.error


def test_a_refused_prompt_is_sent_once_more_with_fewer_excerpts():
    tools = tools_for(scripted([ContextOverflowError("too long"), verdict(CONSISTENT)]))
    assert judged(STORY, tools).prediction.answer_value == CONSISTENT
    first, second = (len(call.prompt.variables["passages"]) for call in tools.sent)
    assert (first, second) == (6, 5)
    twice = judged(STORY, tools_for(scripted([ContextOverflowError("too long")] * 2)))
    assert twice.prediction.error == "ContextOverflowError: too long"


# ---- the whole book


def windows(tools):
    calls = [call for call in tools.sent if call.role == "search"]
    return [[part["ref_id"] for part in call.prompt.variables["passages"]] for call in calls]


def joined(parts):
    return [item for part in parts for item in part]


WHOLE = [part.node_id for part in prepared(STORY, evidence="book").book]


def test_windows_of_the_book_hold_every_chunk_once_and_are_the_same_for_all_stories():
    seen = []
    for key in ("46", "137", "007"):
        _, tools = asked(verdict(CONSISTENT), story=STORIES[key], evidence="book", window_tokens=60)
        seen.append(windows(tools))
        prefixes = [call.prompt.user.split("\n\nThe backstory is about")[0] for call in tools.sent]
        assert all(prefix.count("[ref_id=") == len(ids) for prefix, ids in zip(prefixes, seen[-1], strict=True))
    assert seen[0] == seen[1] == seen[2]
    assert len(seen[0]) > 2
    assert joined(seen[0]) == WHOLE


@pytest.mark.parametrize("sure", [0.7, 0.3])
def test_the_surest_contradiction_of_any_window_goes_to_stage_two(sure):
    accused = verdict(CONTRADICT, sure, node_id=ROCK, quote="bare rock")
    replies = [verdict(CONSISTENT, 0.99), accused, verdict(CONTRADICT, 0.2), *[verdict(CONSISTENT)] * 9]
    answer, tools = asked(replies, verdict(CONTRADICT, 0.93), evidence="book", window_tokens=60, k=2)
    assert (answer.prediction.answer_value, roles(tools)[-1]) == (CONTRADICT, "verify")
    assert answer.measures["calls"] == len(tools.sent)
    shown = [part["ref_id"] for part in tools.sent[-1].prompt.variables["passages"]]
    assert shown[0] == ROCK
    assert set(shown[1:]) <= {part.node_id for part in prepared(STORY, k=2).passages}


def test_a_window_that_does_not_fit_is_halved_and_nothing_is_unread():
    whole = tools_for(scripted(verdict(CONSISTENT)))
    judged(STORY, whole, evidence="book")
    assert windows(whole) == [WHOLE]
    n_chars = sum(len(text) for _, text in whole.sent[0].prompt.messages)
    tools = tools_for(scripted(verdict(CONSISTENT)), window_tokens=n_chars // 4 + 100 - 60, max_tokens=100)
    judged(STORY, tools, evidence="book", window_tokens=10_000)
    assert len(windows(tools)) == 2
    assert joined(windows(tools)) == WHOLE


def late(replies):
    """Replies in the order of the calls, the first one last."""
    left = iter(enumerate(replies))

    async def give(index, reply):
        for _ in range(50 - 5 * index):
            await asyncio.sleep(0)
        return reply

    return lambda call: give(*next(left))


def test_windows_that_end_in_another_order_give_the_same_row_to_the_byte():
    replies = [verdict(CONSISTENT, 0.6, rationale=f"Window {number}.") for number in range(6)]
    in_turn = judged(STORY, tools_for(scripted(list(replies))), evidence="book", window_tokens=30)
    assert judged(STORY, tools_for(late(replies)), evidence="book", window_tokens=30) == in_turn
    assert in_turn.prediction.explanation == "Window 0."
    assert json.loads(in_turn.reply)["rationale"] == "Window 0."


def test_a_window_that_fails_is_the_rows_error_once_all_have_ended():
    replies = [verdict(CONSISTENT), ModelError("second"), "nonsense", *[verdict(CONTRADICT)] * 3]
    for script in (scripted(list(replies)), late(list(replies))):
        tools = tools_for(script)
        judgement = judged(STORY, tools, evidence="book", window_tokens=30)
        assert judgement.prediction.error == "ModelError: second"
        assert len(tools.sent) == 6


# ---- ensembles


@check_rows(
    ("overrides", "message"),
    [
        (
            ("ensemble.members=3", *FAKE),
            r"3 but members 0 and 1 both ask fake, at temperature 0, .*members to 1, roles",
        ),
        (("ensemble.members=2",), r"both ask extractive, a judge without seeds, so .* or ensemble\.models"),
        (("ensemble.members=2", *WARM), "both ask extractive, a judge without seeds"),
        (("ensemble.members=3", TWO_MODELS, "deployments.b={kind: extractive}"), "members 0 and 2"),
        (
            ("ensemble.members=3", *WARM, "ensemble.early_stop=value", *FAKE),
            r"ensemble\.early_stop is value but ballots of system narrative have weights",
        ),
    ],
)
def test_members_that_would_say_the_same_are_refused_with_the_way_out(overrides, message):
    with pytest.raises(ConfigError, match=message):
        load_config("narrative", overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("ensemble.members=3", *WARM, *FAKE),
        ("ensemble.members=3", "roles.verify.temperature=0.7", *FAKE),
        ("ensemble.members=2", TWO_MODELS, "deployments.b={kind: extractive, window_tokens: 65536}"),
    ],
)
def test_members_that_differ_are_fine(overrides):
    refuse_identical_members(load_config("narrative", overrides))


def test_a_lone_member_asks_with_the_documents_own_seed():
    lone, two = load_config("narrative"), load_config("narrative", ["ensemble.members=2", *WARM, *FAKE])
    assert [seed_of(lone, "1", 0, attempt, role) for attempt in (0, 1) for role in ("search", "verify")] == [42] * 4
    assert len({seed_of(two, "1", member, 0, "search") for member in range(2)} | {42}) == 3


def test_labels_vote_by_confidence_and_abstentions_do_not():
    def row(label, confidence):
        prediction = Prediction(answer_value=label, is_blank=not label)
        return {**asdict(prediction), "measures": {"confidence": confidence} if label else {}}

    unsure, sure, silent = row(CONSISTENT, 0.4), row(CONTRADICT, 0.95), row("", 0)
    verdict = vote([SYSTEM.ballot(item) for item in (silent, unsure, unsure, sure)], VoteRule())
    assert (verdict.answer_value, [group.weight for group in verdict.groups]) == (CONTRADICT, [1, 0.8, 0.95])
    assert vote([SYSTEM.ballot(row(CONSISTENT, 0.0))], VoteRule()).answer_value == CONSISTENT
