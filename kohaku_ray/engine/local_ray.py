"""Start a Ray on this machine for one job, closed to other users, and end the job if a process of that Ray dies."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import psutil
import ray
from ray._private import parameter, ray_constants, utils, worker
from ray._private.node import Node
from ray._raylet import AuthenticationTokenLoader  # type: ignore[attr-defined]

from kohaku_ray.errors import ConfigError
from kohaku_ray.pages.terminal import is_interrupted, print_error, print_interrupted, print_progress

LONGEST_DIRECTORY = 40
"""Longest path, in bytes, of the directory below which Ray makes its sockets: their own part is 65 of Linux's 107."""

HEAR_EVERY_S = 0.02
"""Interval at which it is looked whether a signal has come: one to the whole process group ends the raylet, too, and
then Ray ends the driver at the next call of any thread, without a word."""

LOOK_EVERY_S = 0.25
"""Interval at which it is looked whether Ray's processes run: Ray ends a driver that lost its raylet without a word."""

STOPPED_S = 30.0
"""Longest time for which one of them may be stopped, as by a signal."""

_WHOLE = {"raylet": "raylet", "gcs_server": "GCS"}
"""Processes without which no call ends, by Ray's names for them."""


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
def end_started() -> Iterator[None]:
    """End the processes that the block has started if it fails: Ray would leave those of a start that fails.

    Ray does not take SIGTERM over meanwhile: it would end this process without a word.
    """
    before = set(psutil.Process().children(recursive=True))
    usual, utils.set_sigterm_handler = utils.set_sigterm_handler, lambda _: None
    try:
        yield
    except Exception:
        ray.shutdown()
        for process in set(psutil.Process().children(recursive=True)) - before:
            with suppress(psutil.Error):
                process.kill()
        raise
    finally:
        utils.set_sigterm_handler = usual


@contextmanager
def few_processes() -> Iterator[None]:
    """Let a Ray that starts in the block do without autoscaler, dashboard and copying its workers' logs to the driver.

    They are for clusters that others watch or that grow. The first and the last cost half a second of CPU each at the
    start; the dashboard, whose server Ray starts and waits for though its pages are left out, more than a second.
    """
    usual, start_dashboard = parameter.RayParams, Node.start_api_server
    parameter.RayParams = partial(usual, no_monitor=True, include_log_monitor=False)
    Node.start_api_server = _name_no_dashboard
    try:
        yield
    finally:
        parameter.RayParams, Node.start_api_server = usual, start_dashboard


def _name_no_dashboard(node: Node, **_: Any) -> None:
    """Name an address where nobody listens: a node that has none looks for it each second, and logs each time."""
    node.get_gcs_client().internal_kv_put(
        ray_constants.DASHBOARD_ADDRESS.encode(), b"127.0.0.1:9", True, ray_constants.KV_NAMESPACE_DASHBOARD
    )


@contextmanager
def plain_messages() -> Iterator[None]:
    """Print what Ray tells this process without its colours; nothing of actors that we end, or after a signal."""
    usual = worker.print_to_stdstream

    def print_plain(message: dict[str, Any], **_: Any) -> None:
        for line in message["lines"]:
            if not is_interrupted() and "killed by `ray.kill`" not in line:
                print_progress(f"ray     {line}")

    worker.print_to_stdstream = print_plain
    try:
        yield
    finally:
        worker.print_to_stdstream = usual


@contextmanager
def missed_when_dead() -> Iterator[None]:
    """End this process, with the reason, if a process of the local Ray dies, or is stopped, on which all calls wait.

    Ray ends a driver without its raylet in seconds, and one without its GCS after a minute, in the middle of a call and
    without a reason; a job that is just starting would wait for ever, and so would one whose raylet a signal stopped.
    """
    node, is_over = worker._global_node, threading.Event()

    def find_ended() -> Iterator[str]:
        for kind, process in node.dead_processes():
            if kind in _WHOLE:
                code = process.returncode
                yield f"{_WHOLE[kind]} on this machine ended (exit code {code}): it was killed, or no memory was left"

    def hears_end(wait_s: float) -> bool:
        until = time.monotonic() + wait_s
        while time.monotonic() < until:
            if is_over.wait(HEAR_EVERY_S):
                return True
            if is_interrupted():
                print_interrupted()
        return False

    def look() -> None:
        stopped_s = dict.fromkeys(_WHOLE, 0.0)  # by this thread's looks: Ctrl-Z stops the job with its Ray
        while not hears_end(LOOK_EVERY_S):
            reasons = list(find_ended())
            for kind in _WHOLE:
                pids = [entry.process.pid for entry in node.all_processes.get(kind, ())]
                stopped_s[kind] = stopped_s[kind] + LOOK_EVERY_S if any(map(_is_stopped, pids)) else 0.0
                if stopped_s[kind] >= STOPPED_S:
                    reasons.append(f"{_WHOLE[kind]} on this machine is stopped (SIGSTOP) for {STOPPED_S:g} s")
            if reasons and not is_over.is_set():
                again = "Run the same command again: recorded model calls are not made again"
                print_interrupted() if is_interrupted() else print_error(f"kohaku-ray: Ray's {reasons[0]}. {again}")
                node.kill_all_processes(check_alive=False, allow_graceful=False)
                os._exit(1)

    thread = threading.Thread(target=look, name="missed when dead", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _is_stopped(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False


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
