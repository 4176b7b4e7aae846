"""Two small novels as an index in memory, stories about them, and models that follow a script."""

import asyncio
import json
import re

import numpy as np
import pyarrow as pa
from kit.scripted_tools import ScriptedTools

from kohaku_ray.index.chunks import Chunks
from kohaku_ray.index.flatten import flatten
from kohaku_ray.index.nodes import NodeTable
from kohaku_ray.models.request import ChatRequest
from kohaku_ray.systems.narrative import SYSTEM
from kohaku_ray.systems.narrative.answer import answer
from kohaku_ray.systems.narrative.novel import parse_novel
from kohaku_ray.systems.narrative.offline import OfflineJudge
from kohaku_ray.systems.narrative.prepare import prepare
from kohaku_ray.systems.narrative.settings import NarrativeSettings
from kohaku_ray.systems.questions import read_questions

PRISON = """Title: The Prisoner of the Rock

*** START OF THE PROJECT ***

CHAPTER I. THE HARBOUR

It was in 1815 that Anton Varga came home. Anton Varga was born in Lisbon in 1796, and the town knew Anton Varga well.

Old Pereira kept the lamp. “Anton is no thief,” said Pereira to his wife, who mended the nets and
thought of the price of herring.

CHAPTER II. THE ROCK

Anton Varga was arrested in 1815 and thrown into the fortress. The fortress stood on a bare rock, and Anton counted
the tides there.

Fourteen years later, in 1829, Anton Varga escaped from the fortress. Pereira wept for joy when Anton knocked.

CHAPTER III. THE LAMP

Pereira died in 1831. The lamp of the harbour went out, and Anton Varga sailed for Brazil in 1832.

CHAPTER IV. HOME

Anton Varga grew vines. Nobody asked Anton about the rock, and he kept the nets of Pereira on the wall.
"""

GARDEN = """CHAPTER I

Clara Holt planted roses in the garden of her aunt. Clara Holt had never seen the sea. Clara Holt sang.

CHAPTER II

The roses of Clara Holt bloomed late. A gardener who had known Clara Holt admired the roses, and
for love of Clara Holt he left them.
"""

HEADER = "id,book_name,char,caption,content,label\n"
ROWS = (
    '46,The Prisoner of the Rock,Anton Varga,,"Anton Varga was born in Lisbon, and his father mended nets.",consistent',
    '137,"the prisoner, of the ROCK",Anton Varga,Prison,"Anton Varga died in Vienna in 1810.",contradict',
    "007,Prisoner of the Rock,Zeno Quill,,A stranger mended the nets of the harbour.,consistent",
    "9,The Garden,Clara Holt,,Clara Holt loved roses.,consistent",
    "10,The Kitchen,Clara Holt,,Clara Holt loved roses.,consistent",
)


def count(texts):
    return np.array([len(text.split()) for text in texts], np.int64)


def nodes(over="section", size=40, **books):
    """Index novels by file name, in chunks of at most ``size`` words."""
    chunks = Chunks(unit="tokens", size=size, min_size=10, over=over)
    built = [parse_novel(name, text.encode()) for name, text in books.items()]
    table = NodeTable(pa.concat_tables([flatten(document, chunks, count) for document in built]))
    return table.with_tokens(count([table.text_of(row) for row in range(len(table))]))


INDEX = nodes(**{"The Prisoner of the Rock": PRISON, "The Garden": GARDEN})


def stories(*rows, flip=False):
    text = HEADER + "\n".join(rows or ROWS)
    if flip:
        other = {"consistent": "contradict", "contradict": "consistent"}
        text = re.sub(r",(consistent|contradict)$", lambda match: f",{other[match[1]]}", text, flags=re.MULTILINE)
    questions = read_questions("train.csv", text.encode(), columns=SYSTEM.columns)
    return {question.question_id: question for question in questions}


def offline(call):
    """The offline judge, asked as the engine asks it."""
    request = ChatRequest("m", call.prompt.messages, 0.0, 1.0, 500, 42, call.schema, "s", call.prompt.variables)
    return OfflineJudge().chat(request)


def verdict(label, confidence=0.95, node_id=None, quote="", claim="c", analysis="a", **fields):
    cited = [{"node_id": node_id, "quote": quote, "claim": claim, "analysis": analysis}] if node_id else []
    return json.dumps({"excerpts": cited, "rationale": "Because.", "label": label, "confidence": confidence} | fields)


def scripted(search, verify=None):
    """Replies by role; a list gives one after the other."""
    left = {"search": iter(search if isinstance(search, list) else [search] * 99), "verify": iter([verify] * 99)}
    return lambda call: next(left[call.role])


def tools_for(script=offline, index=INDEX, **fields):
    return ScriptedTools(index, script, SYSTEM, **fields)


def prepared(question, tools=None, **settings):
    return asyncio.run(prepare(question, tools or tools_for(), NarrativeSettings(**settings)))


def judged(question, tools=None, **settings):
    tools, config = tools or tools_for(), NarrativeSettings(**settings)

    async def run():
        return await answer(await prepare(question, tools, config), tools, config)

    return asyncio.run(run())


def rows_of(result, step):
    return [row for row in result.trace if row.step == step]
