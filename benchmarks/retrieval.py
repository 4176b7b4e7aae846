"""Retrieval quality on WattBot: the share of gold documents and gold values in the context.

Each figure is compared with that of the published code with the same encoder, for which true and false count as 1 and
0. Beside them stand the metrics ``passages`` and ``context_value`` of the package, with 95 % intervals over the
questions; ``context_value`` leaves true and false out. Run after `kohaku-ray index configs/wattbot.yaml`:

    python benchmarks/retrieval.py [--config configs/wattbot.yaml] [--set KEY=VALUE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kohaku_ray.answering.local_index import LocalIndex
from kohaku_ray.collection.sources import resolve
from kohaku_ray.config import Config, load_config
from kohaku_ray.evaluation.paired import paired_bootstrap
from kohaku_ray.evaluation.passages import (
    ShownPassage,
    gold_numbers,
    gold_quotations,
    numbers_stand_in,
    passage_scores,
)
from kohaku_ray.evaluation.submissions import SubmissionRow, read_submission
from kohaku_ray.index.terms import stop_words
from kohaku_ray.records import Question
from kohaku_ray.retrieval.context import Context, assemble
from kohaku_ray.retrieval.evidence import Evidence, distinct_rows, localise, rank
from kohaku_ray.retrieval.windows import choose
from kohaku_ray.systems.kohaku import SYSTEM


@dataclass(frozen=True)
class Setting:
    """One row of the table; ``published`` is (document recall, value share) of the published code."""

    name: str
    queries: int
    top_k_final: int | None
    dedup: str
    max_context_tokens: int | None
    published: tuple[float, float] | None = None
    top_k: int = 16
    windows: bool = False


SETTINGS = (
    Setting("question alone", 1, None, "node", None, (0.872, 0.657)),
    Setting("question alone, 8,000 tokens", 1, None, "node", 8000),
    Setting("four queries, final 16", 4, 16, "node", None, (0.949, 0.657)),
    Setting("four queries, final 16, tree", 4, 16, "tree", None, (0.949, 0.657)),
    Setting("four queries, final 16, 8,000 tokens", 4, 16, "node", 8000),
    Setting("four queries, final 16, tree, 8,000 tokens", 4, 16, "tree", 8000),
    Setting("four queries, all", 4, None, "node", None, (1.000, 0.743)),
    Setting("four queries, all, tree", 4, None, "tree", None, (1.000, 0.743)),
    Setting("four queries, all, tree, 8,000 tokens", 4, None, "tree", 8000),
    *(Setting(f"four queries, final 16, tree, {n:,} tokens", 4, 16, "tree", n) for n in (4000, 2000)),
    *(Setting(f"windows, k 64, {n:,} tokens", 4, None, "node", n, top_k=64, windows=True) for n in (8000, 4000, 2000)),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="configs/wattbot.yaml")
    parser.add_argument("--set", dest="overrides", action="append", default=[])
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    config = load_config(arguments.config, [*arguments.overrides, "kohaku.bm25_top_k=0"])
    truth = list(read_submission(resolve(config.questions.path)).rows.values())
    index = LocalIndex.open(config)
    rows = [measure(config, index, truth, setting) for setting in SETTINGS]
    if arguments.json:
        print(json.dumps(rows, indent=2))
    else:
        print_table(rows)
    return 0 if all(row["kept"] for row in rows) else 1


def measure(config: Config, index: LocalIndex, truth: Sequence[SubmissionRow], setting: Setting) -> dict[str, object]:
    recalls, values_held, n_matches, n_tokens = [], [], [], []
    metrics: dict[str, list[float]] = {"recall": [], "mrr": [], "value": []}
    for row in truth:
        context, text = asyncio.run(context_of(config, index, row, setting))
        n_matches.append(len(context.matches))
        n_tokens.append(context.n_tokens)
        if row.ref_ids:
            recalls.append(len(set(row.ref_ids) & set(context.doc_ids)) / len(set(row.ref_ids)))
        if wanted := wanted_numbers(row):
            values_held.append(numbers_stand_in(wanted, text))
        if quotations := gold_quotations(row):
            shown = [ShownPassage(snippet.doc_id, snippet.text) for snippet in context.snippets]
            for name, score in passage_scores(quotations, shown).items():
                metrics[name].append(score)
        if numbers := gold_numbers(row):
            metrics["value"].append(float(numbers_stand_in(numbers, text)))
    recall, share = float(np.mean(recalls)), float(np.mean(values_held))
    return {
        "setting": setting.name,
        "recall": recall,
        "value": share,
        "published": setting.published,
        "kept": setting.published is None
        or (round(recall, 3) >= setting.published[0] and round(share, 3) >= setting.published[1]),
        "n_questions": len(truth),
        "n_with_refs": len(recalls),
        "n_numeric": len(values_held),
        "matches": float(np.mean(n_matches)),
        "tokens": float(np.mean(n_tokens)),
        "metrics": {name: interval_of(scores) for name, scores in metrics.items()},
    }


def interval_of(scores: Sequence[float]) -> tuple[int, float | None, float | None, float | None]:
    """Number of questions, mean, and the bounds of its 95 % interval."""
    interval = paired_bootstrap(scores)
    return len(scores), interval.mean, interval.low, interval.high


async def context_of(config: Config, index: LocalIndex, row: SubmissionRow, setting: Setting) -> tuple[Context, str]:
    kohaku = config.settings.model_copy(update={"max_context_tokens": setting.max_context_tokens})
    queries = variants(row.question)[: setting.queries]
    vectors = await index.embed(queries, False)
    dense = await index.search(vectors, SYSTEM.views["nodes"].kinds, setting.top_k, None)
    [nodes] = await index.nodes([tuple(distinct_rows(dense))], kohaku.section_tokens, ())
    question = Question(row.question_id, row.question)
    evidence = Evidence(question, tuple(queries), localise(dense, nodes), (), nodes)
    ranked = rank(
        evidence,
        top_k=setting.top_k,
        top_k_final=setting.top_k_final,
        strategy="combined",
        normalise="max",
        alpha=0.4,
        dedup=setting.dedup,  # type: ignore[arg-type]
        bm25_top_k=0,
    )
    if setting.windows:
        context = choose(nodes, ranked, budget=setting.max_context_tokens)
    else:
        context = assemble(
            nodes,
            ranked,
            budget=setting.max_context_tokens,
            once=True,
            paragraph_tokens=kohaku.longest_paragraph,
            siblings=kohaku.siblings,
            section_tokens=kohaku.section_tokens,
        )
    return context, "\n".join(snippet.text for snippet in context.snippets)


def variants(question: str) -> list[str]:
    """Four deterministic queries: the question; without stop words; its names and numbers; with the field's name."""
    stop = stop_words()
    content = [word for word in re.findall(r"[\w.\-']+", question) if word.lower() not in stop]
    keywords = [word for word in content if not word.islower()]
    return [question, " ".join(content), " ".join(keywords) or question, f"{question} data center energy"]


def wanted_numbers(row: SubmissionRow) -> tuple[float, ...]:
    """Return the numbers of a gold value; true and false are 1 and 0."""
    value = row.answer_value.strip()
    return (float(value),) if value in ("0", "1") else gold_numbers(row)


def print_table(rows: Sequence[dict[str, object]]) -> None:
    first = rows[0]
    print(
        f"{first['n_questions']} questions; document recall over {first['n_with_refs']} with gold references, "
        f"gold value in the context over {first['n_numeric']} numeric or range questions; k 16 unless named\n"
    )
    print(f"{'setting':<44}{'recall':>8}{'value':>8}  {'published':>13}  {'ratio':>11}{'matches':>9}{'tokens':>8}")
    for row in rows:
        published = row["published"]
        beside = f"{published[0]:.3f} · {published[1]:.3f}" if published else ""
        ratio = f"{row['recall'] / published[0]:.2f} · {row['value'] / published[1]:.2f}" if published else ""
        print(
            f"{row['setting']:<44}{row['recall']:>8.3f}{row['value']:>8.3f}  {beside:>13}  {ratio:>11}"
            f"{row['matches']:>9.1f}{row['tokens']:>8.0f}"
        )
    counts = {name: n for name, (n, *_) in first["metrics"].items()}
    print(
        f"\nrecall and reciprocal rank of gold quotations over {counts['recall']} questions, numbers of the gold value "
        f"in the context over {counts['value']}; in brackets 95 % intervals\n"
    )
    print(f"{'setting':<44}{'passage recall':>22}{'reciprocal rank':>22}{'value in context':>22}")
    for row in rows:
        cells = (
            "none" if low is None else f"{mean:.3f} ({low:.3f} … {high:.3f})"
            for _, mean, low, high in row["metrics"].values()
        )
        print(f"{row['setting']:<44}" + "".join(f"{cell:>22}" for cell in cells))


if __name__ == "__main__":
    sys.exit(main())
