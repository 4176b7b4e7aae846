"""Progress on a terminal, in a notebook and in a log; what the flags leave of it."""

from __future__ import annotations

import ctypes
import io
import itertools
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from kohaku_ray.pages import terminal
from kohaku_ray.pages.terminal import (
    INTERRUPTED,
    Progress,
    is_interrupted,
    print_error,
    print_interrupted,
    print_progress,
    print_result,
    print_summary,
    shown_as,
    signals_interrupt,
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(terminal, "time", made)
    return made


def test_the_lines_of_a_log_come_at_ever_longer_intervals_and_say_what_is_left(capsys, clock):
    with Progress("answer", 41, "questions") as progress:
        moments = []
        for second in range(0, 7200, 15):
            clock.now = float(second)
            progress.show(min(second // 400, 40), "2 calls in flight")
            if printed := capsys.readouterr().err:
                moments.append(second)
                last = printed
    gaps = [after - before for before, after in itertools.pairwise(moments)]
    assert gaps == sorted(gaps)
    assert gaps[0] == 15
    assert gaps[-1] == 300
    assert len(moments) < 60
    assert last.startswith("answer  17/41 questions  ")
    assert " s each  about 2 h " in last
    assert last.endswith(" left  2 calls in flight\n")


def test_nothing_done_has_no_speed(capsys, clock):
    with Progress("answer", 41, "questions") as progress:
        clock.now = 15.0
        progress.show(0, "2 calls in flight")
    assert capsys.readouterr().err == "answer  0/41 questions  2 calls in flight\n"


def test_a_log_gets_plain_lines_every_two_seconds_at_most(capsys, clock):
    """`documents` wrote 18 lines for 37 files (users5.md)."""
    with Progress("answer", 80, "questions") as progress:
        for done in range(1, 81):
            clock.now += 0.1
            progress.show(done, "short", f"{done} calls")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "answer  20/80 questions  10.0/s  20 calls"
    assert lines[-1] == "answer  80/80 questions  10.0/s  80 calls"
    assert len(lines) == 4
    assert not any("\r" in line for line in lines)


def test_what_an_earlier_start_did_counts_for_no_speed_and_work_may_shrink(capsys, clock):
    """A race said `439 s each, about 1 h 4 min left`; it took 4 minutes (users5.md 2.15)."""
    with Progress("race", 400, "questions × cells", done=100) as progress:
        clock.now = 10.0
        progress.expect(300)
        progress.show(110)
    line = "race    110/300 questions × cells  1.0/s  about 3 min 10 s left\n"
    assert capsys.readouterr().err == line


def test_slow_work_and_much_work_can_be_read(capsys, clock):
    with Progress("sweep", 13, "runs") as slow, Progress("batch", 2_000_000, "lines") as long:
        clock.now += 3600
        slow.show(2 + 14 / 41, "0 failed")
        long.show(1_234_567)
        long.show(0)
    assert capsys.readouterr().err.splitlines() == [
        "sweep   2.3/13 runs  1,538 s each  about 4 h 33 min left  0 failed",
        "batch   1,234,567/2,000,000 lines  343/s  about 37 min 12 s left",
    ]


def test_a_terminal_gets_one_bar_with_the_time_that_is_left(monkeypatch, clock):
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with Progress("answer", 4, "questions") as progress:
        progress.show(1, "3 calls", "at length")
        print_progress("a line above it")
        progress.show(4, "12 calls")
    shown = screen.getvalue()
    assert "\r" in shown
    assert "1/4 questions |" in shown
    assert "3 calls" in shown
    assert "at length" not in shown
    last = shown.rstrip("\n").split("\r")[-1]
    assert "4/4 questions" in last
    assert "100%, 00:00 left, 12 calls" in last
    # the bar is drawn in place: no line but the one said, and its own at the end
    assert shown.count("\n") == 2
    assert "a line above it\n" in shown
    assert terminal._mode.n_bars == 0


def test_quiet_leaves_errors_and_the_line(capsys):
    with shown_as(quiet=True):
        print_progress("progress")
        print_result("a table")
        with Progress("answer", 1, "questions") as progress:
            progress.show(1)
        print_error("an error")
        print_summary("the line", {"a": 1})
    assert capsys.readouterr() == ("the line\n", "an error\n")


def test_json_alone_is_on_stdout_even_beside_a_library_that_prints(capsys):
    with shown_as(as_json=True):
        print("a library's greeting")
        print_result("a table")
        print_summary("the line", {"text": "\x1b[2J é"})
    printed = capsys.readouterr()
    assert printed.out == '{"text": "\\u001b[2J \\u00e9"}\n'
    assert printed.err == "a library's greeting\na table\n"
    print_result("as before\x1b")
    assert capsys.readouterr().out == "as before\ufffd\n"


def test_a_signal_is_known_while_the_main_thread_is_in_c_and_until_the_outermost_block_ends():
    """Ray's processes of a group end by the same signal: what watches them must know of it before Python's handler."""
    mutex, libc = ctypes.create_string_buffer(64), ctypes.CDLL(None)
    known = []

    def send() -> None:
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGTERM)
        deadline = time.monotonic() + 10
        while not is_interrupted() and time.monotonic() < deadline:
            time.sleep(0.01)
        known.append(is_interrupted())
        libc.pthread_mutex_unlock(mutex)

    def wait_in_c() -> None:
        with signals_interrupt():
            assert not is_interrupted()
            thread.start()
            libc.pthread_mutex_lock(mutex)  # no signal ends it, and Python's handler runs after it

    libc.pthread_mutex_lock(mutex)
    thread = threading.Thread(target=send)
    with signals_interrupt():
        with pytest.raises(KeyboardInterrupt):
            wait_in_c()
        thread.join()
        assert is_interrupted()
    assert known == [True]
    assert not is_interrupted()


CAUGHT = """
import sys
from kohaku_ray.pages.terminal import signals_interrupt
with signals_interrupt():
    try:
        exec("import os, signal; os.kill(os.getpid(), signal.SIGTERM); list(range(10**6))")
    except KeyboardInterrupt:
        print("caught")
sys.exit(3)
"""


def test_a_signal_that_comes_within_exec_leaves_the_exit_code_to_the_command(tmp_path):
    """Classes of libraries are made by ``exec`` while they are imported."""
    (tmp_path / "caught.py").write_text(CAUGHT)
    done = subprocess.run([sys.executable, "-m", "caught"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (3, "caught\n"), done.stderr


class InterruptedAtItsEnd:
    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        list(range(10**6))


def test_a_signal_that_comes_while_an_object_ends_is_raised_after_it(capsys):
    """Python ignores what ``__del__`` raises, and modules that an interrupted import leaves end in the same way."""
    with signals_interrupt():
        InterruptedAtItsEnd()
        with pytest.raises(KeyboardInterrupt):
            time.sleep(5)
    assert capsys.readouterr().err == ""


def test_no_line_of_progress_comes_after_what_says_the_end(capsys):
    """A thread of a sweep waits for its actors while Ray shuts down, and says so every few seconds."""
    with signals_interrupt():
        print_progress("before")
        print_interrupted()
        print_progress("from another thread")
        print_interrupted()
    print_progress("of the next command")
    assert capsys.readouterr().err.splitlines() == ["before", INTERRUPTED, "of the next command"]
