"""The batch job through ledger and replicas: equal lines asked once, order, errors, resumed after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
from kit.answers import deployment, flags
from kit.batches import a_line, rows
from kit.fake_openai import Action, FakeOpenAI, completion, error_body

from kohaku_ray.cli import main
from kohaku_ray.config import load_config
from kohaku_ray.run.exchange.batch_file import errors_path

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def text_of(body: dict) -> str:
    return body["messages"][-1]["content"]


def write(path: Path, lines: list) -> str:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return str(path)


def arguments(server: FakeOpenAI, cluster: str, home: Path, source: str, output: str) -> list[str]:
    model = json.dumps(deployment(server, max_ongoing=4, max_tries=2, backoff_s=0.01))
    settings = {"cluster.address": cluster, "ledger.path": f"{home}/ledger", "ledger.flush_s": "0.2"}
    return ["batch", source, output, *flags(settings | {"deployments.fake": model})]


def test_equal_lines_are_asked_once_in_order_and_bad_ones_stop_nothing(cluster, keep_up, tmp_path, capsys):
    def script(index, body):
        if text_of(body) == "forbidden":
            return Action(400, error_body("this is not allowed"))
        if text_of(body) == "long":
            return Action(400, error_body("too many tokens", "context_length_exceeded"))
        # Earlier lines take longer: a job that wrote replies as they come would have another order.
        return Action(delay_s=0.3 if text_of(body) == "p0" else 0.0, body=completion(f"re: {text_of(body)}"))

    asked = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
    prompts = [a_line(f"id{n}", f"p{n % 7}") for n in range(30)]
    others = [
        a_line("again", "p0", seed=5, max_tokens=9, response_format=asked),
        a_line("forbidden", "forbidden"),
        a_line("id3", "p3"),
        a_line("long", "long"),
    ]
    source, out = write(tmp_path / "in.jsonl", [*prompts, *others]), str(tmp_path / "out.jsonl")
    with FakeOpenAI(script) as server:
        command = arguments(server, cluster, tmp_path, source, out)
        keep_up({"fake": load_config(None, command[4::2]).deployments["fake"]})
        assert main([*command, "--json"]) == 3
        told = json.loads(capsys.readouterr().out)
        counts = Counter((text_of(request.body), request.body["seed"]) for request in server.log)
        assert counts == dict.fromkeys([*((f"p{n}", 0) for n in range(7)), ("p0", 5), ("forbidden", 0), ("long", 0)], 1)
        [sent] = [request.body for request in server.log if request.body["seed"] == 5]
        assert (sent["max_tokens"], sent["response_format"]["json_schema"]["schema"]) == (9, SCHEMA)

        assert [row["custom_id"] for row in rows(out)] == [f"id{n}" for n in range(30)] + ["again"]
        contents = [row["response"]["body"]["choices"][0]["message"]["content"] for row in rows(out)]
        assert contents == [f"re: p{n % 7}" for n in range(30)] + ["re: p0"]
        assert (told["n_lines"], told["calls"]["made"], sum(told["calls"].values())) == (34, 8, 31)
        bad = rows(errors_path(out))
        assert [row["custom_id"] for row in bad] == ["forbidden", "id3", "long"]
        assert "this is not allowed" in bad[0]["error"]["message"]
        codes = [row["response"] and row["response"]["body"]["error"]["code"] for row in bad]
        assert codes == [None, "duplicate_custom_id", "context_length_exceeded"]

        first, n_asked = Path(out).read_bytes(), server.n_requests
        first_errors = Path(errors_path(out)).read_bytes()
        assert main(command) == 3
        assert {text_of(request.body) for request in server.log[n_asked:]} == {"forbidden", "long"}, "what has no reply"
        assert (Path(out).read_bytes(), Path(errors_path(out)).read_bytes()) == (first, first_errors)


MANY = pytest.param(20, marks=[pytest.mark.chaos, pytest.mark.long, pytest.mark.timeout(1800)])


@pytest.mark.parametrize("n_kills", [1, MANY])
def test_killed_and_repeated_it_asks_what_is_missing_and_writes_the_same_bytes(cluster, keep_up, tmp_path, n_kills):
    kills = {8 + 12 * kill for kill in range(n_kills)}
    n_lines = 12 * n_kills + 30
    driver: list[subprocess.Popen] = []
    lock = threading.Lock()

    def script(index, body):
        with lock:
            if index in kills and driver:
                os.kill(driver[-1].pid, signal.SIGKILL)
        return Action(delay_s=0.05, body=completion(f"re: {text_of(body)}"))

    lines = [a_line(f"id{n}", f"p{n % (n_lines - 10)}") for n in range(n_lines)]
    source, out = write(tmp_path / "in.jsonl", lines), str(tmp_path / "out.jsonl")
    with FakeOpenAI(script) as server:
        command = arguments(server, cluster, tmp_path, source, out)
        keep_up({"fake": load_config(None, command[4::2]).deployments["fake"]})
        for _ in range(n_kills):
            driver.append(subprocess.Popen([sys.executable, "-m", "kohaku_ray", *command], stderr=subprocess.PIPE))
            _, errors = driver[-1].communicate(timeout=240)
            assert driver[-1].returncode == -signal.SIGKILL, errors.decode()
            assert not os.path.exists(out)
        driver.clear()
        assert main(command) == 0
        counts = Counter(text_of(request.body) for request in server.log)
        assert counts == dict.fromkeys([f"p{n}" for n in range(n_lines - 10)], 1), "the ledger outlives the driver"
        resumed, n_asked = Path(out).read_bytes(), server.n_requests

        assert main([*command[:2], str(tmp_path / "again.jsonl"), *command[3:]]) == 0
        assert server.n_requests == n_asked, "a second run asks nothing anew"
        assert (tmp_path / "again.jsonl").read_bytes() == resumed
        whole = arguments(server, cluster, tmp_path / "elsewhere", source, str(tmp_path / "whole.jsonl"))
        assert main(whole) == 0
        assert server.n_requests == 2 * n_asked
        assert (tmp_path / "whole.jsonl").read_bytes() == resumed, "as of a job that was never killed"
    assert sorted(path.name for path in tmp_path.glob("*.part")) == []


@pytest.mark.parametrize(
    ("out", "code", "message"), [("out.jsonl", 3, "0 of 2 lines answered"), ("in.jsonl", 2, "is both the input and an")]
)
def test_a_file_without_a_usable_line_starts_nothing_and_no_input_is_overwritten(tmp_path, capsys, out, code, message):
    source, out = write(tmp_path / "in.jsonl", [a_line("a", "p", n=2), "{"]), str(tmp_path / out)
    before = Path(source).read_bytes()
    with FakeOpenAI() as server:
        assert main(arguments(server, "127.0.0.1:1", tmp_path, source, out)) == code
    assert message in "".join(capsys.readouterr())
    assert Path(source).read_bytes() == before
    assert code == 2 or len(rows(errors_path(out))) == 2
