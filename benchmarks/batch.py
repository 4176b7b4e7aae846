"""What `kohaku-ray batch` costs beside a bare client of the same server, which only waits.

    python benchmarks/batch.py [--lines 50000] [--seconds 0.5] [--at-once 64]

The server replies after ``--seconds``. Lower bound of both: ``lines / at_once · seconds``. The bare client sends the
same bodies from one process, as many at once, and reads the replies; its rate is measured on a tenth of the lines.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import aiohttp
from aiohttp import web

REPLY = {
    "id": "waiting",
    "object": "chat.completion",
    "created": 0,
    "model": "waiting",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 20, "completion_tokens": 1, "total_tokens": 21},
}
CONFIG = """
model: waiting
ledger: {{path: {place}/ledger}}
deployments:
  waiting: {{kind: openai, base_url: "{url}", model: waiting, api_key_env: null, max_ongoing: {at_once}}}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lines", type=int, default=50_000)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--at-once", type=int, default=64)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.seconds)
        return
    bound = arguments.lines / arguments.at_once * arguments.seconds
    command = [sys.executable, __file__, "--serve", "--seconds", str(arguments.seconds)]
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server,
    ):
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        try:
            n_bare = max(arguments.lines // 10, arguments.at_once)
            bare = asyncio.run(bare_client(url, n_bare, arguments.at_once)) * arguments.lines / n_bare
            first, _ = batch(folder, url, arguments.lines, arguments.at_once)
            again, peak = batch(folder, url, arguments.lines, arguments.at_once)
        finally:
            server.terminate()
    print(f"{arguments.lines:,} lines, {arguments.at_once} at once, {arguments.seconds} s each: bound {bound:.1f} s")
    print(f"bare client        {bare:8.1f} s  {bare / bound:.3f} of the bound")
    print(f"kohaku-ray batch   {first:8.1f} s  {first / bare:.3f} of the bare client, start-up included")
    print(f"from the ledger    {again:8.1f} s  driver's peak {peak / 1024:.0f} MiB")


def body(number: int) -> dict[str, object]:
    return {"model": "waiting", "messages": [{"role": "user", "content": f"Is {number} a number?"}], "max_tokens": 4}


async def bare_client(url: str, n_lines: int, at_once: int) -> float:
    """Seconds for the calls alone."""
    slots = asyncio.Semaphore(at_once)

    async def ask_line(session: aiohttp.ClientSession, number: int) -> None:
        async with slots, session.post(f"{url}/chat/completions", json=body(number)) as response:
            await response.json()

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        began = time.perf_counter()
        await asyncio.gather(*(ask_line(session, number) for number in range(n_lines)))
        return time.perf_counter() - began


def batch(folder: str, url: str, n_lines: int, at_once: int) -> tuple[float, int]:
    """Seconds of the command, and its peak of memory in KiB."""
    config, source = Path(folder, "batch.yaml"), Path(folder, "in.jsonl")
    config.write_text(CONFIG.format(place=folder, url=url, at_once=at_once))
    with source.open("w") as file:
        for number in range(n_lines):
            line = {"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions", "body": body(number)}
            file.write(json.dumps(line) + "\n")
    began = time.perf_counter()
    command = [sys.executable, "-m", "kohaku_ray", "batch", source, Path(folder, "out.jsonl"), "--with", config]
    subprocess.run(command, check=True)
    return time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss


def serve(seconds: float) -> None:
    """Reply after a while; print the address first."""

    async def chat(request: web.Request) -> web.Response:
        await request.read()
        await asyncio.sleep(seconds)
        return web.json_response(REPLY)

    async def run() -> None:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", chat)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
        await site.start()
        print(f"http://127.0.0.1:{runner.addresses[0][1]}/v1", flush=True)
        await asyncio.Event().wait()

    asyncio.run(run())


if __name__ == "__main__":
    main()
