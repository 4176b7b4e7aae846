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
from typing import Any, TextIO

from kohaku_ray.pages.text import write_duration

LINES_EVERY_S = (2.0, 300.0)
"""Shortest and longest time between two lines of progress where no bar can be drawn: a tenth of the time so far."""

SAY_LEFT_S = 60.0
"""Shortest time left that such a line gives."""


INTERRUPTED = "interrupted: run the same command again to go on"
"""What a job says that a signal has ended."""


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
def shown_as(*, quiet: bool = False, as_json: bool = False) -> Iterator[None]:
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
    """Let SIGTERM, which ``ray job stop`` sends, end the block as Ctrl-C does: Ray's own handler makes Ray abort."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: Any) -> None:
        _mode.is_interrupted = True
        # Cython says so where it breaks the import of a module of its own, and goes on.
        warnings.filterwarnings("ignore", "Cython module failed to patch", RuntimeWarning)
        raise Interrupted

    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, interrupt)}
    if callable(signal.getsignal(signal.SIGINT)):  # not where a shell lets a job in the background ignore it
        before[signal.SIGINT] = signal.signal(signal.SIGINT, interrupt)
    try:
        with nullcontext() if _mode.signals is not None else _no_signal_lost():
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
    _mode.signals = pipe[0]
    before = signal.set_wakeup_fd(pipe[1], warn_on_full_buffer=False)
    usual, sys.unraisablehook = sys.unraisablehook, hear
    try:
        yield
    finally:
        sys.unraisablehook = usual
        signal.set_wakeup_fd(before)
        _mode.signals, _mode.is_interrupted, _mode.is_end_said = None, False, False
        for end in pipe:
            os.close(end)


def is_interrupted() -> bool:
    """Tell whether a signal has come that ends the job."""
    if _mode.signals is not None:
        with suppress(BlockingIOError):
            if not {signal.SIGINT, signal.SIGTERM}.isdisjoint(os.read(_mode.signals, 4096)):
                _mode.is_interrupted = True  # and never back: a thread and the handler set it
    return _mode.is_interrupted


def print_interrupted() -> None:
    """Print, once, that a signal has ended the job; of two threads, one."""
    with _end_said:
        if not _mode.is_end_said:
            _mode.is_end_said = True
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
        print(printable(text), flush=True)  # noqa: T201


def print_summary(line: str, values: Mapping[str, Any]) -> None:
    """Print a command's result: its values with ``--json``, else its one line with ``--quiet``."""
    if _mode.json:
        print(json.dumps(values, default=str), file=_mode.stdout, flush=True)  # JSON escapes control characters
    elif _mode.quiet:
        print(printable(line), flush=True)  # noqa: T201


def printable(text: Any) -> str:
    """Replace control characters: text of documents and models must not control the terminal."""
    return "".join(char if char.isprintable() or char in "\n\t" else "\ufffd" for char in str(text))


def _to_stderr(text: str) -> None:
    if _mode.n_bars:
        from tqdm import tqdm

        tqdm.write(text, file=sys.stderr)  # above the bar
    else:
        print(text, file=sys.stderr, flush=True)  # noqa: T201


class Progress:
    """Shows how far a job is, and how long it will take.

    On a terminal and in a notebook it is one bar, drawn in place; elsewhere it is a line at ever longer intervals.
    """

    def __init__(self, job: str, total: float, unit: str, began: float | None = None, done: float = 0.0) -> None:
        """Start the clock; the first ``show`` draws.

        ``job`` is the first word of every line, ``total`` its whole work, counted in ``unit`` (in the plural),
        ``began`` when it began, by ``time.perf_counter`` (default: now), with how much of it ``done`` before.
        """
        self._job, self._total, self._unit, self._done_before = job, total, unit, done
        self._began, self._last_line_s = time.perf_counter() if began is None else began, 0.0
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
            self._bar = self._drawn()
        if self._bar is not None:
            self._bar.n = done
            self._bar.set_postfix_str(note, refresh=False)
            self._bar.refresh() if done >= self._total else self._bar.update(0)
            return
        now = time.perf_counter()
        shortest_s, longest_s = LINES_EVERY_S
        if now - self._last_line_s < min(max((now - self._began) / 10, shortest_s), longest_s) and done < self._total:
            return
        self._last_line_s = now
        rate = (done - self._done_before) / max(now - self._began, 1e-9)
        speed = f"{1 / rate:,.0f} s each" if 0 < rate < 0.1 else f"{rate:,.{int(rate < 100)}f}/s" if rate else ""
        left_s = (self._total - done) / rate if rate else 0.0
        left = f"about {write_duration(left_s)} left" if left_s >= SAY_LEFT_S else ""
        so_far, total = (f"{n:,.1f}".removesuffix(".0") for n in (done, self._total))
        facts = [f"{self._job:<8}{so_far}/{total} {self._unit}", speed, left, more or note]
        print_progress("  ".join(filter(None, facts)))

    def expect(self, total: float) -> None:
        """Change the whole work, where it grows or shrinks on the way."""
        self._total = total
        if self._bar is not None:
            self._bar.total = total

    def _drawn(self) -> Any:
        from tqdm import tqdm

        _mode.n_bars += 1
        return tqdm(
            total=self._total,
            initial=self._done_before,
            desc=f"{self._job:<7}",
            file=sys.stderr,
            dynamic_ncols=True,
            mininterval=0.1,
            bar_format=f"{{desc}} {{n:.0f}}/{{total:.0f}} {self._unit} |{{bar}}| {{percentage:3.0f}}%, "
            "{remaining} left{postfix}",
        )


def draws_bars(stream: Any) -> bool:
    """Tell whether a stream draws a line again after a carriage return: a terminal or a notebook's."""
    if "ipykernel" in sys.modules and type(stream).__module__.startswith("ipykernel"):
        return True
    return bool(getattr(stream, "isatty", lambda: False)()) and os.environ.get("TERM") != "dumb"
