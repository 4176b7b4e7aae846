"""Progress on a terminal, in a notebook and in a log; what the flags leave of it."""

from __future__ import annotations

import ctypes
import errno
import io
import itertools
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from kit.rows import check_rows

from kohaku_ray.cli import main
from kohaku_ray.pages import terminal
from kohaku_ray.pages.terminal import (
    INTERRUPTED,
    Progress,
    UntilInterrupted,
    is_interrupted,
    print_error,
    print_interrupted,
    print_progress,
    print_result,
    print_summary,
    show_as,
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
        clock.now = 20.0
        progress.show(120)
    lines = [
        "race    110/300 questions × cells  1.0/s",
        "race    120/300 questions × cells  1.0/s  about 3 min 0 s left",
    ]
    assert capsys.readouterr().err.splitlines() == lines


def test_time_left_is_told_from_the_first_unit_done_and_not_below_5_percent(capsys, clock):
    """`encode … 23.0/s about 3 h 11 min left` took 5 minutes: an encoder takes long to start (users6.md, doubt 1)."""
    with Progress("encode", 1000, "texts") as progress:
        for now, done in ((120, 1), (135, 46), (150, 91), (350, 691)):
            clock.now = float(now)
            progress.show(done)
    assert [line.partition("texts")[2] for line in capsys.readouterr().err.splitlines()] == [
        "  120 s each",
        "  3.0/s",
        "  3.0/s  about 5 min 3 s left",
        "  3.0/s  about 1 min 43 s left",
    ]


def test_a_bar_gives_no_time_left_below_5_percent(monkeypatch, clock):
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with Progress("encode", 100, "texts") as progress:
        progress.show(4)
        assert " left" not in screen.getvalue()
        progress.show(100)
    assert "100%, 00:00 left" in screen.getvalue()


def test_slow_work_and_much_work_can_be_read(capsys, clock):
    with Progress("sweep", 13, "runs") as slow, Progress("batch", 2_000_000, "lines") as long:
        clock.now += 1
        slow.show(0.0001)
        long.show(1)
        capsys.readouterr()
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
    with show_as(quiet=True):
        print_progress("progress")
        print_result("a table")
        with Progress("answer", 1, "questions") as progress:
            progress.show(1)
        print_error("an error")
        print_summary("the line", {"a": 1})
    assert capsys.readouterr() == ("the line\n", "an error\n")


def test_json_alone_is_on_stdout_even_beside_a_library_that_prints(capsys):
    with show_as(as_json=True):
        print("a library's greeting")
        print_result("a table")
        print_summary("the line", {"text": "\x1b[2J é"})
    printed = capsys.readouterr()
    assert printed.out == '{"text": "\\u001b[2J \\u00e9"}\n'
    assert printed.err == "a library's greeting\na table\n"
    print_result("as before\x1b")
    assert capsys.readouterr().out == "as before\ufffd\n"


PRINTS = """
import sys
from kohaku_ray.pages.terminal import print_progress, print_result, print_whatever_reads
with print_whatever_reads():
    for _ in range(3):
        print_progress("at work")
        print_result("Größe — ≥ 3")
    print("a library's line")
    open(sys.argv[1], "w").write("done")
"""


def test_work_goes_on_without_its_reader(tmp_path):
    """attack6.md, B3: `2>&1 | head -1` ended `answer` with exit code 0 and no outputs."""
    output, ends = tmp_path / "output", os.pipe()
    os.close(ends[0])
    done = subprocess.run([sys.executable, "-c", PRINTS, output], stdout=ends[1], stderr=ends[1], check=False)
    os.close(ends[1])
    assert (done.returncode, output.read_text()) == (0, "done")


def test_streams_that_are_closed_from_the_start_lead_nowhere(tmp_path):
    """attack6.md, B20: what was opened next got their numbers, and all that is printed."""
    output = tmp_path / "output"
    command = f"exec {shlex.join([sys.executable, '-c', PRINTS, str(output)])} <&- >&- 2>&-"
    assert subprocess.run(["/bin/sh", "-c", command], check=False).returncode == 0
    assert output.read_text() == "done"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "ascii:surrogateescape"])  # the last: as LC_ALL=C has it
def test_a_terminal_that_has_not_a_character_gets_another(tmp_path, encoding):
    """attack6.md, B15: a traceback after all work."""
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    done = subprocess.run(
        [sys.executable, "-c", PRINTS, tmp_path / "output"], env=environment, capture_output=True, check=True
    )
    begins = "Größe ? ? 3" if encoding == "latin-1" else "Gr??e ? ? 3"
    assert done.stdout.decode(encoding.partition(":")[0]).startswith(begins)


def test_a_signal_is_known_while_the_main_thread_is_in_c_and_until_the_outermost_block_ends():
    """Ray's processes of a group end by the same signal: what watches them must know of it before Python's handler.

    "(raylet) The autoscaler failed with the following error" once stood before the line that says what ended.
    """
    mutex, libc = ctypes.create_string_buffer(64), ctypes.CDLL(None)
    known, written = [], io.StringIO()

    def send() -> None:
        time.sleep(0.2)
        print("before", file=UntilInterrupted(written))
        os.kill(os.getpid(), signal.SIGTERM)
        deadline = time.monotonic() + 10
        while not is_interrupted() and time.monotonic() < deadline:
            time.sleep(0.01)
        known.append(is_interrupted())
        print("(raylet) failed", file=UntilInterrupted(written))
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
        print("the main thread", file=UntilInterrupted(written))
    assert known == [True]
    assert written.getvalue() == "before\nthe main thread\n"
    assert not is_interrupted()


CAUGHT = """
import sys
from kohaku_ray.pages.terminal import signals_interrupt
with signals_interrupt():
    try:
        exec(f"import os; os.kill(os.getpid(), {sys.argv[1]}); list(range(10**6))")
    except KeyboardInterrupt:
        print("caught")
sys.exit(3)
"""


@check_rows(
    "number, is_ignored",
    [(signal.SIGTERM, False), (signal.SIGHUP, False), (signal.SIGHUP, True), (signal.SIGINT, True)],
)
def test_a_signal_that_comes_within_exec_leaves_the_exit_code_to_the_command(tmp_path, number, is_ignored):
    """Classes of libraries are made by ``exec`` while they are imported; `nohup` ignores SIGHUP (attack6 B12)."""
    (tmp_path / "caught.py").write_text(CAUGHT)
    done = subprocess.run(
        [sys.executable, "-m", "caught", str(int(number))],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=lambda: signal.signal(number, signal.SIG_IGN if is_ignored else signal.SIG_DFL),
    )
    assert (done.returncode, done.stdout) == (3, "" if is_ignored else "caught\n"), done.stderr


def test_a_job_whose_terminal_is_closed_ends_without_another_error(monkeypatch):
    def write(_):
        raise OSError(errno.EIO, "the terminal is closed")

    monkeypatch.setattr(sys, "stderr", SimpleNamespace(write=write, flush=lambda: None))
    with signals_interrupt():
        print_interrupted()


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


def test_a_signal_that_comes_while_its_handlers_are_set_is_one_line(capsys, monkeypatch, tmp_path):
    """It ended a command in a traceback (a quick test of a start, once in some hundred)."""
    set_fd = signal.set_wakeup_fd

    def interrupted_first(*given, **named):
        os.kill(os.getpid(), signal.SIGTERM)
        return set_fd(*given, **named)

    handlers = [signal.getsignal(number) for number in terminal.ENDING]
    with monkeypatch.context() as patched:
        patched.setattr(signal, "set_wakeup_fd", interrupted_first)
        assert main(["init", str(tmp_path / "mine.yaml")]) == 1
    assert capsys.readouterr() == ("", f"{INTERRUPTED}\n")
    assert [signal.getsignal(number) for number in terminal.ENDING] == handlers
    assert not terminal.is_interrupted()
    assert main(["init", str(tmp_path / "mine.yaml")]) == 0


def test_no_line_of_progress_comes_after_what_says_the_end(capsys):
    """A thread of a sweep waits for its actors while Ray shuts down, and says so every few seconds."""
    with signals_interrupt():
        print_progress("before")
        print_interrupted()
        print_progress("from another thread")
        print_interrupted()
    print_progress("of the next command")
    assert capsys.readouterr().err.splitlines() == ["before", INTERRUPTED, "of the next command"]
