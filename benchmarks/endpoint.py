"""How well the index job's encoder keeps an endpoint busy, beside a bare asyncio client at the same concurrency.

    python benchmarks/endpoint.py [--texts 20000] [--ongoing 32] [--delays 0.02,0.1] [--rounds 3]

A server in a process of its own answers every request after so many seconds with vectors of 384 numbers: what a model
would compute is waited for, so that the clients alone are compared. Ours is the index job's actor (``Encode``), with
its blocks, retries and files; the bare one sends the same batches by httpx with keep-alive connections, a semaphore
and ``gather``, and reads the vectors. Both in turns, in one run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
from gpu_sections import sentences

from kohaku_ray.collection.indexes import check_endpoint, encoder_settings
from kohaku_ray.collection.indexing import NEW_TEXT, Encode, new_texts, sorted_window
from kohaku_ray.config import load_config
from kohaku_ray.engine.jobs.index_stream import ENCODER_THREADS
from kohaku_ray.index.endpoint import CHARS_PER_TOKEN, divide_texts
from kohaku_ray.index.identity import token_counter, vector_keys

DIM = 384


async def _answer(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float, vectors: Sequence[str]
) -> None:
    """Answer the requests of a connection."""
    try:
        while head := (await reader.readuntil(b"\r\n\r\n")).decode().lower():
            length = int(head.partition("content-length:")[2].split("\r\n")[0])
            texts = json.loads(await reader.readexactly(length))["input"]
            await asyncio.sleep(delay_s)
            # By length: the client refuses a server that gives different texts one vector.
            found = (vectors[len(text) % len(vectors)] for text in texts)
            rows = ",".join(f'{{"index":{row},"embedding":{vector}}}' for row, vector in enumerate(found))
            body = f'{{"data":[{rows}]}}'.encode()
            closes = "connection: close" in head
            kept = b"Connection: close\r\n" if closes else b""
            writer.write(b"HTTP/1.1 200 OK\r\n%bContent-Length: %d\r\n\r\n%b" % (kept, len(body), body))
            await writer.drain()
            if closes:
                break
    except asyncio.IncompleteReadError:
        pass
    finally:
        writer.close()


def serve(port: Any, delay_s: float) -> None:
    """Serve until the process is ended."""
    drawn = np.random.default_rng(0).standard_normal((64, DIM)).round(7).tolist()
    vectors = [json.dumps(vector, separators=(",", ":")) for vector in drawn]

    async def run() -> None:
        server = await asyncio.start_server(lambda r, w: _answer(r, w, delay_s, vectors), "127.0.0.1", 0, backlog=256)
        port.put(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


def ours(blocks: Sequence[pa.Table], overrides: list[str]) -> float:
    """Encode blocks as the index job does; returns the seconds."""
    with tempfile.TemporaryDirectory() as folder:
        config = load_config("demo", [*overrides, f"index.path={folder}"])
        check_endpoint(config)
        encode = Encode(config, gpu=False)
        began = time.perf_counter()
        with ThreadPoolExecutor(ENCODER_THREADS) as threads:
            list(threads.map(encode, blocks))
        return time.perf_counter() - began


def bare(batches: Sequence[list[str]], base_url: str, ongoing: int) -> float:
    """Send the same batches by httpx alone; returns the seconds."""

    async def run() -> None:
        slots, limits = asyncio.Semaphore(ongoing), httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=base_url, timeout=60, limits=limits) as client:

            async def send(batch: list[str]) -> Any:
                async with slots:
                    reply = await client.post("/embeddings", json={"model": "m", "input": batch})
                    return np.array([row["embedding"] for row in reply.json()["data"]], np.float32)

            await asyncio.gather(*map(send, batches))

    began = time.perf_counter()
    asyncio.run(run())
    return time.perf_counter() - began


def main() -> None:
    """Print texts per second of both and their ratio, per delay of the server."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=20_000)
    parser.add_argument("--ongoing", type=int, default=32)
    parser.add_argument("--delays", default="0.02,0.1")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    texts = list(dict.fromkeys(f"{text} {number}" for number, text in enumerate(sentences(arguments.texts))))
    for delay_s in map(float, arguments.delays.split(",")):
        port: Any = multiprocessing.Queue()
        process = multiprocessing.Process(target=serve, args=(port, delay_s), daemon=True)
        process.start()
        base_url = f"http://127.0.0.1:{port.get(timeout=60)}/v1"
        encoder = {"kind": "openai", "base_url": base_url, "model": "m", "api_key_env": None}
        encoder["max_ongoing"] = arguments.ongoing
        overrides = [f"index.encoder={json.dumps(encoder)}"]
        config = load_config("demo", overrides)
        keys = [key.tobytes() for key in vector_keys(encoder_settings(config), texts)]
        n_tokens = token_counter(config.index.encoder.tokenizer)(texts)
        table = pa.table([keys, n_tokens, texts, [0] * len(texts)], schema=NEW_TEXT)
        window = sorted_window(new_texts([{"texts": table}], config), 1, True)
        blocks = [window.slice(row, 1) for row in range(len(window))]
        of_block = (block["text"][0].as_py() for block in blocks)
        settings: Any = config.index.encoder
        bounds = (settings.batch_texts, settings.batch_tokens * CHARS_PER_TOKEN, len)
        batches = [batch for some in of_block for batch in divide_texts(some, *bounds)]
        took: dict[str, list[float]] = {"ours": [], "bare": []}
        for _ in range(arguments.rounds):
            took["bare"].append(bare(batches, base_url, arguments.ongoing))
            took["ours"].append(ours(blocks, overrides))
        process.terminate()
        best = {name: len(texts) / min(seconds) for name, seconds in took.items()}
        middle = statistics.median(b / o for b, o in zip(took["bare"], took["ours"], strict=True))
        print(
            f"server of {delay_s:g} s, {arguments.ongoing} in flight, {len(texts)} texts in {len(batches)} requests of "
            f"{len(blocks)} blocks: ours {best['ours']:,.0f} texts/s, bare {best['bare']:,.0f} texts/s, ratio of "
            f"the best {best['ours'] / best['bare']:.3f}, median ratio {middle:.3f}"
        )


if __name__ == "__main__":
    main()
