"""What an older release had and this one has not: settings, commands, formats, with what to write instead."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

KEYS: dict[str, str] = {
    "kohaku.count_question": "drop it; the question is one of kohaku.queries (false: one more of them)",
    "kohaku.image_pixels": "drop it; an image above 2^20 pixels is scaled down",
    "kohaku.image_tokens": "drop it; an image takes 1,280 tokens of the context",
    "kohaku.paragraph_tokens": "drop it; a paragraph of up to an eighth of kohaku.max_context_tokens is shown whole",
    "kohaku.require_refs": "drop it; an answer that cites no document of its context is blank",
    "documents.sentence_split": "drop it; Punkt splits, with the abbreviations of the format's language",
    "index.bm25.k1": "drop it; it is 1.5, as rank_bm25 has it",
    "index.bm25.b": "drop it; it is 0.75, as rank_bm25 has it",
    "index.search_float16": "drop it; a higher index.shards, or an IVF with PQ (index.factory), needs less of a GPU",
    "index.nprobe": "drop it; a query searches 16 inverted lists: a factory of fewer lists finds more",
    "index.build_gpus": "drop it; a builder has a GPU where the cluster has some and index.factory has lists (IVF)",
    "index.parsers": "drop it; there are as many as CPUs",
    "deployments.*.abstain_below": "drop it; the baseline abstains below a share of 0.35 of the question's terms",
    "deployments.*.router": "drop it; all calls of a question go to one replica, whose prefix cache has its context",
    "deployments.*.max_images": "write engine_kwargs: {limit_mm_per_prompt: {image: N}}; the default is 16",
    "deployments.*.load_bound": "drop it; no replica has more questions in flight than the mean, rounded up",
    "deployments.*.send_priority": "drop it; a replica of this engine takes older questions first by itself",
    "deployments.*.max_reply_mib": "drop it; 4 MiB of a response are read",
    "index.encoder.max_reply_mib": "drop it; 64 MiB of a response are read: lower index.encoder.batch_texts",
    "deployments.*.batch.max_requests": "drop it; a file has at most 50,000 calls",
    "deployments.*.batch.max_mb": "drop it; a file has at most 200 MB",
    "deployments.*.price.batch": "drop it; a call by a batch costs half",
    "hybrid.initial_dense": "drop it; BM25 alone gathers the initial context, as published",
    "hybrid.per_question": "drop it; hybrid.subquery_ranking: false leaves out the order by cross-encoder",
    "hybrid.neighbours": "drop it; a text is shown by itself",
    "hybrid.shares": "drop it; shares are (size + s) / (total + n·s)",
    **dict.fromkeys(
        (
            "hybrid.expansion_tries",
            "hybrid.rrf_k",
            "hybrid.kmeans_n_clusters",
            "hybrid.smoothing",
            "hybrid.mmr_relevance_weight",
            "hybrid.answer_tries",
            "hybrid.initial_context_size",
            "hybrid.subquestion_max_documents",
            "hybrid.subquestion_fusion_max_documents",
            "hybrid.cluster_sample_size",
            "hybrid.mmr_top_k",
        ),
        "drop it; the published value is the only one (kohaku_ray/systems/hybrid/settings.py)",
    ),
    "kohaku.check_value": "leave the key out (it made five right values wrong and four wrong ones right)",
    "ensemble.evidence": "leave the key out, members share what is shown; ensemble.scope: question lets each search",
    "ensemble.waves": "drop it; a bare majority of the members answers first, then one after the other",
    "kohaku.second_round": "leave the key out; kohaku.max_retries and kohaku.replan search again for a blank answer",
    "deployments.*.batch_size": "drop it; a replica of kind transformers answers one call after the other",
}
"""Dotted key of a configuration, ``*`` for a name that a user chose → what to write instead."""

COMMANDS: dict[str, str] = {
    "batch": "vLLM's run-batch answers such a file (`vllm run-batch -i in.jsonl -o out.jsonl --model MODEL`)",
    "map": "Run(load_config(CONFIG)).draw_map() of Python draws it (kohaku-ray docs paper, Figure 6)",
}
"""Name of a command → what does its work."""

_STEERING = "a job is no longer steered while it runs: stop it, edit the sweep's YAML, start it again"

OPTIONS: dict[str, str] = {
    "bundle --base": "name a run's directory: a sweep's are below its `runs`, and the sweep reads its tables from them",
    "init --from": "write `base: paper` (KohakuRAG) or `base: hybrid` into a YAML file, and what differs below it",
    "sweep --stop": _STEERING,
    "sweep --resume": _STEERING,
}
"""Command and option → what to do instead."""

PARSERS: dict[str, str] = {
    "Docling": "its Markdown or HTML (docling --to md)",
    "MinerU": "NAME.md, which it writes beside",
    "Marker": "its Markdown or HTML (marker --output_format markdown)",
    "olmOCR": "its Markdown (olmocr --markdown)",
}
"""Parser whose JSON is no document → what of it is one."""


def removed_key(key: str) -> str | None:
    """Say when a setting left and what to write instead; None: no release had it."""
    instead = next((text for pattern, text in KEYS.items() if fnmatchcase(key, pattern)), None)
    return None if instead is None else f"{key} left in 0.2: {instead}"


def removed_parser(parser: str) -> str:
    """Say that the JSON of a parser left and what to give instead."""
    return f"JSON of {parser}, which left in 0.2: give {PARSERS[parser]}"


def removed_usage(words: str) -> str | None:
    """Say when a command, or an option of one, left and what to do instead; None: no release had it."""
    usages = COMMANDS | OPTIONS
    left = next((usage for usage in usages if usage == words or usage.endswith(f" {words}")), None)
    return None if left is None else f"kohaku-ray {left} left in 0.2: {usages[left]}"


def without_removed(values: Mapping[str, Any], parent: str = "") -> dict[str, Any]:
    """Drop the settings that left, in every section: a bundle's configuration names each with its default."""
    kept = {key: value for key, value in values.items() if not removed_key(f"{parent}{key}")}
    return {
        key: without_removed(value, f"{parent}{key}.") if isinstance(value, Mapping) else value
        for key, value in kept.items()
    }
