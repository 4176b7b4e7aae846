"""Made-up sweeps, scored as real ones are."""

from dataclasses import replace
from hashlib import sha256
from itertools import product

import numpy as np

from kohaku_ray.evaluation.submissions import SubmissionRow
from kohaku_ray.evaluation.wattbot import WATTBOT
from kohaku_ray.sweep.compare import Axis, SweepAnswer, SweepCell, SweepQuestion, SweepRecord, SweepRun, SweepTable

HOSTILE = "<script>alert(1)</script>\"' | \\textbf{x} $\\x$ 50 % a_b & #1 ~ ^ `c` *d* \u202e\x00{{ 7*7 }}</td></style>"
REASON = "retriever.index.encoder names jinaai/jina-embeddings-v4 | which is not on this machine: 50 % & <b>"
SEEDS = (0, 1, 2)


def asked(n):
    """Questions: numbers, texts, ranges, and every tenth without an answer."""
    made = []
    for number in range(n):
        value = ("is_blank", f"{10 + 7 * number}", "[1,5]", f"model {number}", f"{0.5 + number}")[
            0 if number % 10 == 9 else 1 + number % 4
        ]
        text = (
            f"How many kWh did hall {number} draw in 2024, by its own report?" if number else f"Is this {HOSTILE} so?"
        )
        unit = "is_blank" if value == "is_blank" else "kWh"
        made.append(SweepQuestion(f"q{number:03d}", text, value, unit, f"['doc{number % 7}']"))
    return tuple(made)


def row(question, value, refs):
    ids = () if refs == "is_blank" else tuple(refs.strip("[]'").split("', '"))
    return SubmissionRow(question.question_id, "", "", value, "", ids, refs_raw=refs)


def answered(question, skill, rng):
    """One made-up answer and its score: right by ``skill``, otherwise wrong in some way."""
    truth = row(question, question.answer_value, "is_blank" if question.answer_value == "is_blank" else question.refs)
    value, refs = truth.answer_value, truth.refs_raw
    if rng.random() > skill:
        value = ("is_blank", "41", "4100", "words", "[2,9]", value)[rng.integers(6)]
        refs = "is_blank" if value == "is_blank" else "['doc1', 'doc2']"
    given = row(question, value, refs)
    score = WATTBOT.score_question(truth, given)
    return SweepAnswer(value, refs, WATTBOT.classify(truth, given)), tuple(score.parts.values())


class Maker:
    """Makes cells and the runs they stand on; equal settings are one cell and share their runs."""

    def __init__(self, n_questions):
        self.questions = asked(n_questions)
        self.runs = {}

    def cell(self, labels, skill, seeds=SEEDS, **more):
        name = str(sorted(labels.items()))
        parts, run_ids = [], []
        for seed in seeds:
            rng = np.random.default_rng(int.from_bytes(sha256(f"{name} {seed}".encode()).digest()[:8]))
            pairs = [answered(question, skill, rng) for question in self.questions]
            parts.append(np.array([score for _, score in pairs]).T)
            run_id = sha256(f"{name} {seed} run".encode()).hexdigest()[:16]
            run_ids.append(run_id)
            k = int(labels.get("k", 16))
            predictions = {question.question_id: pair[0] for question, pair in zip(self.questions, pairs, strict=True)}
            self.runs[run_id] = SweepRun(
                run_id,
                f"runs/sweep/{run_id}",
                seed,
                {"model": labels.get("roles.answer.model", "extractive"), "k": str(k)},
                predictions,
                int(len(self.questions) * 230 * k * (1 + skill)),
                round(0.4 * k * len(self.questions) * (0.5 + skill), 3),
            )
        scored = {name: np.array([part[position] for part in parts]) for position, name in enumerate(WATTBOT.parts)}
        return SweepCell(
            sha256(name.encode()).hexdigest()[:16],
            labels,
            "finished",
            seeds=tuple(seeds),
            question_ids=tuple(question.question_id for question in self.questions),
            parts=scored,
            total=WATTBOT.weigh(scored),
            run_ids=tuple(run_ids),
            measures={
                "matches": np.array([3.0 + skill] * len(seeds)),
                "characters": np.linspace(9000, 9900, len(seeds)),
            },
            **more,
        )

    def table(self, name, title, axes, base=0.5, **more):
        """A whole grid; what stands further back on an axis is somewhat better."""
        axes = tuple(Axis(key, tuple(labels)) for key, labels in axes.items())
        cells = []
        for labels in product(*(axis.labels for axis in axes)):
            steps = [axis.labels.index(label) / len(axis.labels) for axis, label in zip(axes, labels, strict=True)]
            cell_labels = {axis.name: label for axis, label in zip(axes, labels, strict=True)}
            cells.append(self.cell(cell_labels, base + 0.4 * float(np.mean(steps))))
        return SweepTable(name, title, axes, tuple(cells), **more)


def subsampled(maker, name="ensemble_size"):
    """Ensemble sizes under two voting strategies: 32 subsamples a cell, and no runs of its own."""
    sizes, rules = ("1", "3", "5", "9", "15"), ("majority", "answer_priority", "union")
    cells = []
    for rule, size in product(rules, sizes):
        rng = np.random.default_rng([rules.index(rule), int(size)])
        value = (
            rng.random((32, len(maker.questions))) < 0.6 + 0.02 * int(size) ** 0.8 + 0.03 * rules.index(rule)
        ) * 1.0
        parts = {"value": value, "ref": value, "abstain": np.ones_like(value)}
        cells.append(
            SweepCell(
                sha256(f"{rule} {size}".encode()).hexdigest()[:16],
                {"vote.strategy": rule, "size": size},
                "finished",
                seeds=tuple(range(32)),
                question_ids=tuple(question.question_id for question in maker.questions),
                parts=parts,
                total=WATTBOT.weigh(parts),
            )
        )
    axes = (Axis("vote.strategy", rules), Axis("size", sizes))
    return SweepTable(name, "Ensemble size and voting strategy", axes, tuple(cells), repeats="subsamples")


def small_sweep(n_questions=24):
    """Six tables: a plain grid with every state, one axis, three axes, subsamples, thin cells, nothing at all."""
    maker = Maker(n_questions)
    k = ("4", "8", "16")
    grid = maker.table(
        "model_k",
        "Models and depth of retrieval",
        {"roles.answer.model": ("extractive", "qwen3-8b", "gpt-oss_20b & co", "llama-3.3"), "k": k},
        notes=("Skipped: gpt-5, which asks for a key.",),
    )
    cells = list(grid.cells)
    cells[8] = replace(
        maker.cell(cells[8].labels, 0.7, seeds=(0, 1)), state="partial", reason="seed 2: no reply in 600 s"
    )
    for index, state, reason in (
        (9, "skipped", REASON),
        (10, "failed", f"the backend said {HOSTILE}"),
        (11, "unfinished", "0 of 3 seeds so far"),
    ):
        cells[index] = SweepCell(cells[index].cell_id, cells[index].labels, state, reason)
    thin = Maker(5)
    return SweepRecord(
        "small",
        "A small sweep",
        (
            replace(grid, cells=tuple(cells)),
            maker.table("queries", "Planner queries", {"planner.queries": ("2", "4", "6")}),
            maker.table(
                "dedup",
                "Deduplication and BM25",
                {"kohaku.dedup": ("none", "node", "tree"), "retrieval.bm25": ("0", "4"), "k": k},
                show=("matches", "characters"),
            ),
            subsampled(maker),
            thin.table("thin", "Few & hostile", {"roles.answer.model": ("extractive", HOSTILE), "only_k": ("all",)}),
            SweepTable(
                "nothing",
                "Encoders",
                (Axis("index.encoder.model", ("jina-v4",)), Axis("k", k)),
                tuple(SweepCell(f"none{n}", {"index.encoder.model": "jina-v4", "k": n}, "skipped", REASON) for n in k),
                notes=("Nothing was run.",),
            ),
        ),
        maker.questions,
        tuple(maker.runs.values()) + tuple(run for key, run in thin.runs.items() if key not in maker.runs),
        WATTBOT,
        ("One cell failed.",),
        {"kohaku-ray": "0.1.0", "questions": "sample/questions.csv, sha256 0123abcd"},
        {"Calls asked": "12,345", "Calls made": "4,321 (35 %)", "Seconds": "98.7"},
    )


def sweep_of_four_runs():
    """Two facts, three cells with scores that are easy to sum, one run of none of them."""

    def run(number, model, k):
        return SweepRun(f"r{number}", "", 0, {"model": model, "k": k}, {}, 0, 0.0)

    def cell(number, value, ref):
        parts = {"value": np.array([value]), "ref": np.array([ref]), "abstain": np.ones((1, 2))}
        total = 0.75 * parts["value"] + 0.15 * parts["ref"] + 0.10 * parts["abstain"]
        return SweepCell(
            f"c{number}", {"a": str(number)}, "finished", "", (0,), ("p", "q"), parts, total, (f"r{number}",)
        )

    runs = (run(0, "b", "16"), run(1, "b", "4"), run(2, "a", "16"), run(3, "c", "8"))
    cells = (cell(0, [1.0, 0.0], [1.0, 0.5]), cell(1, [1.0, 1.0], [0.0, 0.0]), cell(2, [0.0, 0.0], [1.0, 1.0]))
    table = SweepTable("t", "T", (Axis("a", ("0", "1", "2")),), cells)
    return SweepRecord("s", "S", (table, replace(table, name="again", cells=cells[:1])), (), runs, WATTBOT)
