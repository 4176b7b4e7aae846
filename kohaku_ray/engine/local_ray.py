"""Start a Ray on this machine for one job, closed to other users."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib.util import cache_from_source
from pathlib import Path
from typing import TextIO, cast

from ray._private import ray_constants
from ray._raylet import AuthenticationTokenLoader  # type: ignore[attr-defined]

from kohaku_ray.errors import ConfigError
from kohaku_ray.pages.terminal import UntilInterrupted, is_interrupted, print_interrupted, print_progress

AGENTS = ("ray.dashboard.agent", "ray._private.runtime_env.agent.main")
"""Modules of the agents that each start of Ray waits for."""

FAILURES = ("Check failed", "Timed out")
"""What the raylet writes of why it ends."""


def compile_agents(dashboard: Path | None = None, modules: Sequence[str] = AGENTS) -> None:
    """Compile once what Ray's agents import, where the installer has not: uv does not by itself.

    Ray waits 15 s for its agents, and on a busy machine they take longer to compile their imports: no start succeeded
    in 16. The bytecode of a directory that cannot be written goes to this user's cache.

    Args:
        dashboard: The installed ``ray/dashboard``, of which each agent imports ``utils``.
        modules: What is imported for it.
    """
    directory = dashboard or Path(ray_constants.__file__).parents[1] / "dashboard"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    utils, cache = str(directory / "utils.py"), Path.home() / ".cache/kohaku_ray/bytecode"
    if os.path.exists(cache_from_source(utils)):
        return
    if sys.pycache_prefix is None and not os.access(directory, os.W_OK):
        try:
            cache.mkdir(parents=True, exist_ok=True)
        except OSError:
            return  # nowhere to keep it
        environment["PYTHONPYCACHEPREFIX"] = os.environ["PYTHONPYCACHEPREFIX"] = str(cache)
        if os.path.exists(f"{cache}{directory}/{Path(cache_from_source(utils)).name}"):
            return
    print_progress("ray     its agents have no bytecode: compiling once what they import (some seconds of CPU)")
    imports = "; ".join(f"import {module}" for module in modules)
    command = [sys.executable, "-c", imports]
    subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True)  # noqa: S603  # our own


def raylet_reason(directory: str) -> str:
    """Return the last line in which the raylet of a Ray in a directory says why it ended; empty: it does not."""
    try:
        text = Path(directory, "session_latest/logs/raylet.out").read_text(errors="replace")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(text.splitlines()) if any(word in line for word in FAILURES)), "")


LONGEST_DIRECTORY = 40
"""Longest path, in bytes, of the directory below which Ray makes its sockets: their own part is 65 of Linux's 107."""


HEAR_EVERY_S = 0.02
"""Interval at which it is looked whether a signal has come: one to the whole process group ends the raylet, too, and
then Ray ends the driver at the next call of any thread, without a word."""


@contextmanager
def interruption_said() -> Iterator[None]:
    """Say at once that a signal has ended the job, also while the main thread waits for Ray, and nothing of Ray's."""
    is_over = threading.Event()

    def hear() -> None:
        while not is_over.wait(HEAR_EVERY_S):
            if is_interrupted():
                print_interrupted()
                return

    thread = threading.Thread(target=hear, name="interruption said", daemon=True)
    thread.start()
    try:
        with redirect_stdout(cast("TextIO", UntilInterrupted(sys.stdout))):
            yield
    finally:
        is_over.set()
        thread.join()


@contextmanager
def on_loopback() -> Iterator[None]:
    """Let a Ray that starts in the block listen on 127.0.0.1 alone, without a port for metrics.

    Ray does so by itself on Windows and macOS, by the same setting. RAY_enable_metrics_collection=1 keeps the metrics.
    """
    variable = ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR
    usual = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False  # what this process read at import
    os.environ.setdefault("RAY_enable_metrics_collection", "0")
    try:
        with _set_variables({variable: "0"}):  # for the processes that it starts
            yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = usual


@contextmanager
def own_token() -> Iterator[None]:
    """Let a Ray that starts in the block ask for a token that this job alone knows.

    Ray itself writes one to ~/.ray/auth_token, which other users of the machine may read: whoever has it runs code as
    this user. A token that the environment sets stays, and so does ``RAY_AUTH_MODE=disabled``.
    """
    mode = os.environ.get("RAY_AUTH_MODE")
    if mode == "disabled" or {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys():
        yield
        return
    loader = AuthenticationTokenLoader.instance()
    try:
        with _set_variables({"RAY_AUTH_TOKEN": secrets.token_hex(32)}):
            loader.reset_cache()
            yield
    finally:
        loader.reset_cache()
        if mode is None:
            os.environ.pop("RAY_AUTH_MODE", None)  # Ray turns tokens on for a local cluster, and leaves it set


@contextmanager
def private_directory() -> Iterator[str]:
    """Make a directory for Ray's sockets and logs that no other user can enter; it is kept if the block fails.

    Ray's own, /tmp/ray, can be written by everybody, who could put a socket in the place of a job's. RAY_TMPDIR, where
    it is set, names another, as ever.

    Raises:
        ConfigError: There is no directory for temporary files whose path is short enough for a socket's.
    """
    if chosen := os.environ.get("RAY_TMPDIR"):
        yield os.path.join(chosen, "ray")
        return
    parents = [tempfile.gettempdir(), "/tmp"]  # noqa: S108  # mkdtemp makes a directory that is ours alone
    for parent in parents:
        if len(os.fsencode(parent)) + len("/ray-own-12345678/r") <= LONGEST_DIRECTORY and os.access(parent, os.W_OK):
            break
    else:
        raise ConfigError(
            f"TMPDIR is {parents[0]} ({len(os.fsencode(parents[0]))} bytes), which leaves no room for the names of "
            f"Ray's sockets, and /tmp cannot be written: set TMPDIR to a path of at most {LONGEST_DIRECTORY - 19} bytes"
        )
    directory = tempfile.mkdtemp(prefix="ray-own-", dir=parent)
    try:
        yield os.path.join(directory, "r")  # Ray opens the directory itself, though not what is around it, to everybody
    except (KeyboardInterrupt, ConfigError):
        shutil.rmtree(directory, ignore_errors=True)
        raise
    shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _set_variables(variables: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
