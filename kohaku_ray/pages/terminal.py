"""What a command shows: progress on stderr, a result on stdout; less with ``--quiet``, JSON with ``--json``."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from dataclasses import dataclass
from io import TextIOWrapper
from typing import Any, TextIO

from kohaku_ray.pages.text import write_duration

LINES_EVERY_S = (2.0, 300.0)
"""Shortest and longest time between two lines of progress where no bar can be drawn: a tenth of the time so far."""

SAY_LEFT_S = 60.0
"""Shortest time left that such a line gives."""

SAY_LEFT_FROM = 0.05
"""Share of the work from which a line gives the time left: the first units of a run wait for models and processes."""


INTERRUPTED = "interrupted: run the same command again to go on"
"""What a job says that a signal has ended."""


ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end a job: Ctrl-C, ``ray job stop``, and a terminal that is closed."""


class Interrupted(KeyboardInterrupt):
    """The error that a signal raises: a bare KeyboardInterrupt within ``exec`` ends Python by SIGINT, though caught."""


@dataclass(slots=True)
class _Mode:
    quiet: bool = False
    json: bool = False
    stdout: TextIO | None = None
    n_bars: int = 0
    is_interrupted: bool = False
    is_end_said: bool = False
    signals: int | None = None  # where the numbers of signals can be read before Python's handlers run


_mode = _Mode()
_end_said = threading.Lock()


@contextmanager
def print_whatever_reads() -> Iterator[None]:
    """Let what the block prints end no work: characters that a terminal has not are replaced, a reader may go.

    A stream that is closed from the start leads nowhere: its number would be that of the next file or connection.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):  # the latter: LC_ALL=C
            stream.reconfigure(errors="replace")
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except BrokenPipeError:  # of a library's prints
                drop_output(stream)
            except (AttributeError, ValueError):  # closed
                pass


@contextmanager
def show_as(*, quiet: bool = False, as_json: bool = False) -> Iterator[None]:
    """Show what the block says as the flags ask; with ``as_json`` nothing but ``show_json`` reaches stdout."""
    before = (_mode.quiet, _mode.json, _mode.stdout)
    _mode.quiet, _mode.json, _mode.stdout = quiet, as_json, sys.stdout
    try:
        if as_json:
            with redirect_stdout(sys.stderr):
                yield
        else:
            yield
    finally:
        _mode.quiet, _mode.json, _mode.stdout = before


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """Let every signal of ``ENDING`` end the block as Ctrl-C does, unless it is ignored: as by ``nohup``.

    Of SIGTERM, Ray's own handler makes Ray abort.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: Any) -> None:
        _mode.is_interrupted = True
        # Cython says so where it breaks the import of a module of its own, and goes on.
        warnings.filterwarnings("ignore", "Cython module failed to patch", RuntimeWarning)
        raise Interrupted

    heard = [number for number in ENDING if signal.getsignal(number) not in (signal.SIG_IGN, None)]
    before = dict[int, Any]()
    try:
        for number in heard:
            before[number] = signal.signal(number, interrupt)
        with nullcontext() if _mode.signals is not None else _no_signal_lost():
            yield
    finally:
        for changed, handler in before.items():
            signal.signal(changed, handler)
        if _mode.signals is None:  # the outermost block ends
            _mode.is_interrupted = _mode.is_end_said = False


@contextmanager
def _no_signal_lost() -> Iterator[None]:
    """Let ``is_interrupted`` know of a signal as it comes, and raise again an interrupt that Python ignores.

    Python's handler waits for the main thread to leave C, and what it raises within ``__del__`` is printed, no more.
    """

    def interrupt_again() -> None:
        if _mode.signals is not None:  # the block has not ended meanwhile
            os.kill(os.getpid(), signal.SIGTERM)

    def hear(unraisable: Any) -> None:
        if isinstance(unraisable.exc_value, Interrupted):
            threading.Timer(0.05, interrupt_again).start()
        else:
            usual(unraisable)

    pipe = os.pipe()
    for end in pipe:
        os.set_blocking(end, False)
    usual, before = sys.unraisablehook, signal.set_wakeup_fd(-1)
    try:
        _mode.signals, sys.unraisablehook = pipe[0], hear
        signal.set_wakeup_fd(pipe[1], warn_on_full_buffer=False)
        yield
    finally:
        sys.unraisablehook = usual
        signal.set_wakeup_fd(before)
        _mode.signals = None
        for end in pipe:
            os.close(end)


def is_interrupted() -> bool:
    """Tell whether a signal has come that ends the job."""
    if _mode.signals is not None:
        with suppress(BlockingIOError):
            if not set(ENDING).isdisjoint(os.read(_mode.signals, 4096)):
                _mode.is_interrupted = True  # and never back: a thread and the handler set it
    return _mode.is_interrupted


class UntilInterrupted:
    """A stream to which other threads than the main one write nothing more once a signal has come.

    Ray's prints there what its processes say of their own ends, to which a signal to the whole group was sent, too.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text, or drop it; returns its length."""
        if threading.current_thread() is threading.main_thread() or not is_interrupted():
            self._stream.write(text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def print_interrupted() -> None:
    """Print, once, that a signal has ended the job; of two threads, one."""
    with _end_said:
        if not _mode.is_end_said:
            _mode.is_end_said = True
            with suppress(OSError):  # the terminal may be closed
                print_error(INTERRUPTED)


def print_progress(text: str) -> None:
    """Print a line of progress to stderr, so that it does not mix with results on stdout; none after the job's end."""
    if not (_mode.quiet or _mode.is_end_said):
        _to_stderr(text)


def print_error(text: str) -> None:
    """Print an error to stderr, whatever the flags."""
    _to_stderr(text)


def print_result(text: Any) -> None:
    """Print a result for a person: nothing with ``--quiet``, and to stderr with ``--json``."""
    if not _mode.quiet:
        _print(printable(text), sys.stdout)


def print_summary(line: str, values: Mapping[str, Any]) -> None:
    """Print a command's result: its values with ``--json``, else its one line with ``--quiet``."""
    if _mode.json:
        _print(json.dumps(values, default=str), _mode.stdout)  # JSON escapes control characters
    elif _mode.quiet:
        _print(printable(line), sys.stdout)


def printable(text: Any) -> str:
    """Replace control characters: text of documents and models must not control the terminal."""
    return "".join(char if char.isprintable() or char in "\n\t" else "\ufffd" for char in str(text))


def _to_stderr(text: str) -> None:
    if _mode.n_bars:
        from tqdm import tqdm

        tqdm.write(text, file=sys.stderr)  # above the bar
    else:
        _print(text, sys.stderr)


def _print(text: str, stream: TextIO | None) -> None:
    try:
        print(text, file=stream, flush=True)
    except BrokenPipeError:
        drop_output(stream)


def drop_output(stream: TextIO | None) -> None:
    """Let a stream whose reader has gone (``| head``, a log collector that ended) lead nowhere: the job goes on."""
    if stream is not None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


class Progress:
    """Shows how far a job is, and how long it will take.

    On a terminal and in a notebook it is one bar, drawn in place; elsewhere it is a line at ever longer intervals.
    """

    def __init__(self, job: str, total: float, unit: str, done: float = 0.0) -> None:
        """Start the clock; the first ``show`` draws.

        ``job`` is the first word of every line, ``total`` its whole work, counted in ``unit`` (in the plural), of which
        so much was ``done`` before.
        """
        self._job, self._total, self._unit, self._done_before = job, total, unit, done
        self._began, self._last_line_s = time.perf_counter(), 0.0
        self._first: tuple[float, float] | None = None  # when units were first done, and how many
        self._bar: Any = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            _mode.n_bars -= 1
            self._bar.close()
            self._bar = None

    def show(self, done: float, note: str = "", more: str = "") -> None:
        """Show the state: work ``done`` so far, and a ``note``, or ``more`` at length where there is no bar."""
        if _mode.quiet:
            return
        if self._bar is None and draws_bars(sys.stderr):
            self._bar = self._make_bar()
        tells_left = done - self._done_before >= SAY_LEFT_FROM * (self._total - self._done_before)
        if self._bar is not None:
            self._bar.n = done
            self._bar.bar_format = self._bar_format(", {remaining} left" if tells_left else "")
            self._bar.set_postfix_str(note, refresh=False)
            self._bar.refresh() if done >= self._total else self._bar.update(0)
            return
        now = time.perf_counter()
        if self._first is None and done > self._done_before:
            self._first = now, done
        shortest_s, longest_s = LINES_EVERY_S
        if now - self._last_line_s < min(max((now - self._began) / 10, shortest_s), longest_s) and done < self._total:
            return
        self._last_line_s = now
        since_s, before = (self._began, self._done_before) if self._first is None else self._first
        is_measured = done > before and self._first is not None and tells_left
        if done <= before:  # the first units: a speed, which the start is part of, and no time left
            since_s, before = self._began, self._done_before
        rate = max(done - before, 0.0) / max(now - since_s, 1e-9)
        speed = f"{1 / rate:,.0f} s each" if 0 < rate < 0.1 else f"{rate:,.{int(rate < 100)}f}/s" if rate else ""
        left_s = (self._total - done) / rate if is_measured else 0.0
        left = f"about {write_duration(left_s)} left" if left_s >= SAY_LEFT_S else ""
        so_far, total = (f"{n:,.1f}".removesuffix(".0") for n in (done, self._total))
        facts = [f"{self._job:<8}{so_far}/{total} {self._unit}", speed, left, more or note]
        print_progress("  ".join(filter(None, facts)))

    def expect(self, total: float) -> None:
        """Change the whole work, where it grows or shrinks on the way."""
        self._total = total
        if self._bar is not None:
            self._bar.total = total

    def _make_bar(self) -> Any:
        from tqdm import tqdm

        _mode.n_bars += 1
        return tqdm(
            total=self._total,
            initial=self._done_before,
            desc=f"{self._job:<7}",
            file=sys.stderr,
            dynamic_ncols=True,
            mininterval=0.1,
            bar_format=self._bar_format(""),
        )

    def _bar_format(self, left: str) -> str:
        return f"{{desc}} {{n:.0f}}/{{total:.0f}} {self._unit} |{{bar}}| {{percentage:3.0f}}%{left}{{postfix}}"


def draws_bars(stream: Any) -> bool:
    """Tell whether a stream draws a line again after a carriage return: a terminal or a notebook's."""
    if "ipykernel" in sys.modules and type(stream).__module__.startswith("ipykernel"):
        return True
    return bool(getattr(stream, "isatty", lambda: False)()) and os.environ.get("TERM") != "dumb"
