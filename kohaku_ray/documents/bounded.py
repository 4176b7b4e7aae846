"""Stop parsing at a time limit: by a timer in this process, or in a child process where a library may not return.

The limit counts CPU seconds, so that what is indexed does not depend on the machine's load; a parser that waits instead
of computing is ended by the clock. A timer's signal is handled between two steps of Python, and so never inside MuPDF
or lexbor. The child's timers have no handler: the kernel ends the process wherever it is. A library that crashes, or
takes all memory, loses only that file. One child parses many files, and ends when this process does.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing.connection import Connection, Pipe
from typing import TYPE_CHECKING, TypeVar

from kohaku_ray.documents.figures import map_images, with_image
from kohaku_ray.documents.model import Document
from kohaku_ray.documents.text.sentences import split_sentences
from kohaku_ray.errors import DataError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

_AGAIN_S = 0.05  # seconds between the timer's signals: an exception raised inside a destructor is lost
CLOCK_TIMES = 40  # seconds of the clock per CPU second allowed: forty busy processes per core leave a process so much
MEMORY_GIB = 1.5  # most memory that parsing a file may take in the child, beyond the child's own and the file

T = TypeVar("T")


class UnfinishedError(DataError):
    """A parser took too long, or ended its process."""


class _TimeUp(BaseException):
    """Raised by the timer; no parser catches it."""


def in_time(call: Callable[[], T], limit_s: float, late: DataError, cpu: bool = True) -> T:
    """Call what may take long, in Python or in the kernel, under a time limit; in the main thread only.

    Args:
        call: What is called.
        limit_s: CPU seconds of this thread, and `CLOCK_TIMES` as many of the clock; without ``cpu`` of the clock alone.
        late: What is raised where it took longer.
        cpu: Whether the call computes; else it waits for the kernel, which costs no CPU.

    Raises:
        DataError: ``late``, or what the call raised.
    """
    over = False
    load_sentences()
    end = time.thread_time() + limit_s

    def stop(number: int, _: object) -> None:
        # the timer counts the CPU seconds of all threads
        if not over and (number == signal.SIGALRM or time.thread_time() >= end):
            raise _TimeUp

    before = {number: signal.signal(number, stop) for number in (signal.SIGALRM, signal.SIGPROF)}
    try:
        start_timers(limit_s, _AGAIN_S, cpu)
        result = call()
        over = True
    except _TimeUp:
        over = True
        raise late from None
    finally:
        over = True
        start_timers(0.0)
        for number, handler in before.items():
            signal.signal(number, handler)
    return result


def start_timers(limit_s: float, again_s: float = 0.0, cpu: bool = True) -> None:
    """Start the timers of CPU seconds (SIGPROF) and of the clock (SIGALRM), or stop them at 0; see `in_time`."""
    if cpu:
        signal.setitimer(signal.ITIMER_PROF, limit_s, again_s)
    signal.setitimer(signal.ITIMER_REAL, limit_s * (CLOCK_TIMES if cpu else 1), again_s)


def parse_in_child(name: str, data: bytes, timeout_s: float, images: bool) -> Document:
    """Call `parse_file` in this process's child, which is started where there is none; see `in_time`."""
    with _lock:
        child = _running(reads_pdf(name, data))
        try:
            child.connection.send((name, data, timeout_s, images))
            reply = child.connection.recv()
        except (EOFError, OSError):
            reply = child.process.wait()
        except BaseException:  # interrupted between request and reply: the next file must not get this reply
            child.process.kill()
            child.process.wait()
            raise
    if isinstance(reply, str):
        raise DataError(reply)
    if isinstance(reply, tuple):
        return unpacked(*reply)
    if reply in (-signal.SIGPROF, -signal.SIGALRM):
        raise late(name, len(data), timeout_s)
    ending = f"signal {signal.Signals(-reply).name}" if reply < 0 else f"exit code {reply}"
    raise UnfinishedError(
        f"{name}: its {len(data):,} bytes ended the parser's process ({ending}): "
        "export the document again, or leave it out."
    )


def late(name: str, n_bytes: int, timeout_s: float) -> UnfinishedError:
    """Make the error of a file that takes too long to parse."""
    return UnfinishedError(
        f"{name}: its {n_bytes:,} bytes are not parsed after {timeout_s:g} s of CPU time, or "
        f"{timeout_s * CLOCK_TIMES:,g} s of waiting: split or simplify the file, or set documents.timeout_s above "
        f"{timeout_s:g}."
    )


def out_of_memory(what: str) -> DataError:
    """Make the error of a file that takes too much memory."""
    return DataError(
        f"{what} takes more than {MEMORY_GIB:g} GiB of memory: split or simplify the file, or leave it out."
    )


@dataclass(frozen=True)
class _Child:
    """A process that runs `child.serve`, and the id of the process that started it."""

    process: subprocess.Popen[bytes]
    connection: Connection
    owner: int


_lock = threading.Lock()
_child: _Child | None = None


def reads_pdf(name: str, data: bytes) -> bool:
    """Tell whether a file may be read as a PDF; for any other MuPDF is not loaded."""
    return name.lower().endswith(".pdf") or data.startswith(b"%PDF")


def _running(is_pdf: bool) -> _Child:
    """Return this process's child; one inherited through a fork answers the parent. ``is_pdf``: its first file is."""
    global _child
    if _child is None or _child.owner != os.getpid() or _child.process.poll() is not None:
        ours, its = Pipe()
        with its:
            process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-P", "-c", f"from {__package__}.child import serve; serve({its.fileno()}, {is_pdf})"],
                stdin=subprocess.DEVNULL,
                stdout=2,  # what a library prints is no answer of the program's
                pass_fds=[its.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
            )
        _child = _Child(process, ours, os.getpid())
    return _child


@cache
def load_sentences() -> None:
    """Import what splits sentences, so that it does not count against a file's time limit."""
    split_sentences("One. Two.")


@cache
def document_adapter() -> TypeAdapter[Document]:
    """Return what reads and writes documents as JSON."""
    from pydantic import TypeAdapter

    return TypeAdapter(Document)


def packed(document: Document) -> str:
    """Write a document as JSON, without the pixels of its images."""
    bare = map_images(document, lambda paragraph: with_image(paragraph, lambda image: replace(image, data=b"")))
    return document_adapter().dump_json(bare).decode()


def unpacked(tree: str, pixels: Sequence[bytes] = ()) -> Document:
    """Read what ``packed`` wrote; ``pixels`` are the PNGs of its images in reading order, else they have no data."""
    document, data = document_adapter().validate_json(tree), iter(pixels)
    return map_images(
        document, lambda paragraph: with_image(paragraph, lambda image: replace(image, data=next(data, b"")))
    )
