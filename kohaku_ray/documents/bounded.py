"""Parsing under a time limit: by a timer in this process, or in a child process where a library may not return.

A timer's signal is handled between two steps of Python, and so never inside MuPDF or lexbor. The child's timer has no
handler: the kernel ends the process wherever it is. A library that crashes, or takes all memory, loses only that
file. One child parses many files, and ends when this process does.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import islice
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import IO, Any, NoReturn, TypeVar

from kohaku_ray.documents.figures import images_of
from kohaku_ray.documents.model import Attachment, Document, Image, Paragraph, Section, Sentence
from kohaku_ray.documents.sentences import split_sentences
from kohaku_ray.errors import DataError

_AGAIN_S = 0.05
"""Seconds between signals of the timer; it repeats, because an exception raised inside a destructor is lost."""


MEMORY_GIB = 1.5  # most memory that parsing a file may take in the child, beyond the child's own and the file

T = TypeVar("T")


class UnfinishedError(DataError):
    """A parser took too long, or ended its process."""


class _TimeUp(BaseException):
    """Raised by the timer; no parser catches it."""


def in_time(call: Callable[[], T], timeout_s: float, late: DataError) -> T:
    """Call what may take long, in Python or in the kernel, under a time limit; in the main thread only.

    Raises:
        DataError: ``late``, where it took longer than ``timeout_s``, or what the call raised.
    """
    over = False

    def stop(*_: object) -> None:
        if not over:
            raise _TimeUp

    _load_sentences()
    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, timeout_s, _AGAIN_S)
        result = call()
        over = True
    except _TimeUp:
        over = True
        raise late from None
    finally:
        over = True
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return result


def parse_in_child(name: str, data: bytes, timeout_s: float, images: bool = False) -> Document:
    """Call `parse_file` in this process's child, which is started where there is none; see `in_time`."""
    with _lock:
        child = _running()
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
    if reply == -signal.SIGALRM:
        raise late(name, len(data), timeout_s)
    raise UnfinishedError(
        f"{name}: its {len(data):,} bytes ended the parser's process ({_ending(reply)}): "
        "export the document again, or leave it out."
    )


def late(name: str, n_bytes: int, timeout_s: float) -> UnfinishedError:
    """Make the error of a file that takes too long to parse."""
    return UnfinishedError(
        f"{name}: its {n_bytes:,} bytes are not parsed after {timeout_s:g} s: split or simplify the file, "
        f"or set documents.timeout_s above {timeout_s:g}."
    )


def out_of_memory(what: str) -> DataError:
    """Make the error of a file that takes too much memory."""
    return DataError(
        f"{what} takes more than {MEMORY_GIB:g} GiB of memory: split or simplify the file, or leave it out."
    )


def _ending(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


@dataclass(frozen=True)
class _Child:
    """A process that runs `serve`, and the id of the process that started it."""

    process: subprocess.Popen[bytes]
    connection: Connection
    owner: int


_lock = threading.Lock()
_child: _Child | None = None


def _running() -> _Child:
    """Return this process's child; one inherited through a fork answers the parent."""
    global _child
    if _child is None or _child.owner != os.getpid() or _child.process.poll() is not None:
        ours, its = Pipe()
        with its:
            process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-P", "-c", f"from {__name__} import serve; serve({its.fileno()})"],
                stdin=subprocess.DEVNULL,
                stdout=2,  # what a library prints is no answer of the program's
                pass_fds=[its.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
            )
        _child = _Child(process, ours, os.getpid())
    return _child


def serve(handle: int) -> None:
    """Parse the files that arrive on a connection until it closes (the child's main loop).

    When a parser ends its process, another is forked with all imports done, since imports take seconds.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    connection = Connection(handle)
    _load()
    gc.freeze()  # the collector looks at a file's objects only
    with contextlib.suppress(EOFError, OSError):
        while True:
            worker = os.fork()
            if not worker:
                _serve_forked(connection)
            code = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
            if not code:
                return
            connection.send(code)


def _serve_forked(connection: Connection) -> NoReturn:
    from kohaku_ray.documents.parse import parse_file

    code = 1
    try:
        while True:
            name, data, timeout_s, images = connection.recv()
            n_pages = int(Path("/proc/self/statm").read_text().split()[0])
            most = n_pages * resource.getpagesize() + int(MEMORY_GIB * 2**30)
            resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))
            signal.setitimer(signal.ITIMER_REAL, timeout_s)
            reply: str | tuple[str, bytes]
            try:
                document = parse_file(name, data, images=images)
                reply = packed(document), b"".join(pixels_of(document))
            except DataError as error:
                reply = str(error)
            signal.setitimer(signal.ITIMER_REAL, 0)
            connection.send(reply)
    except (EOFError, OSError):
        code = 0
    finally:
        os._exit(code)  # the usual exit waits for threads that a fork does not copy


def _load() -> None:
    """Import what parsers import on first use, so that it does not count against a file's time limit."""
    import pymupdf  # noqa: F401
    import selectolax.lexbor  # noqa: F401

    _load_sentences()


@cache
def _load_sentences() -> None:
    split_sentences("One. Two.")


def packed(document: Document) -> str:
    """Write a document as JSON of a few flat lists: one object per sentence would take as long to send as to parse.

    The pixels of its images are left out, see ``pixels_of``.
    """
    sections = [(section.title, section.page, len(section.paragraphs)) for section in document.sections]
    paragraphs = [
        (
            paragraph.text,
            paragraph.page,
            paragraph.bbox,
            _packed_attachment(paragraph.attachment),
            dict(paragraph.attributes),
            [end for sentence in paragraph.sentences for end in (sentence.start, sentence.end)],
        )
        for section in document.sections
        for paragraph in section.paragraphs
    ]
    left_out = dict(document.images_left_out)
    head = document.doc_id, document.title, dict(document.metadata), document.image_rejects, left_out, document.odd
    return json.dumps((*head, document.n_pages, sections, paragraphs))


def pixels_of(document: Document) -> list[bytes]:
    """List the PNGs of a document's images, in reading order."""
    return [image.data for _, _, image in images_of(document)]


def _packed_attachment(attachment: Attachment | None) -> Any:
    if attachment is None:
        return None
    image = attachment.image
    pixels = image and (image.digest, len(image.data), image.width, image.height, image.caption, image.mentions)
    return attachment.kind, attachment.path, attachment.caption, pixels


def unpacked(reply: str, pixels: bytes = b"") -> Document:
    """Read what ``packed`` wrote; without ``pixels`` the images have no data."""
    doc_id, title, metadata, rejects, left_out, odd, n_pages, sections, paragraphs = json.loads(reply)
    source = io.BytesIO(pixels)
    made = iter([_paragraph(source, *paragraph) for paragraph in paragraphs])
    of_sections = tuple(Section(heading, tuple(islice(made, n)), page) for heading, page, n in sections)
    return Document(doc_id, title, of_sections, metadata, tuple(map(tuple, rejects)), left_out, tuple(odd), n_pages)


def _paragraph(
    pixels: IO[bytes], text: str, page: int | None, bbox: Any, attachment: Any, attributes: Any, ends: list[int]
) -> Paragraph:
    return Paragraph(
        text,
        tuple(map(Sentence, ends[::2], ends[1::2])),
        page,
        None if bbox is None else tuple(bbox),
        None if attachment is None else _attachment(pixels, *attachment),
        attributes,
    )


def _attachment(pixels: IO[bytes], kind: str, path: str | None, caption: str | None, image: Any) -> Attachment:
    if image is None:
        return Attachment(kind, path, caption)
    digest, n_bytes, width, height, printed, mentions = image
    return Attachment(kind, path, caption, Image(digest, pixels.read(n_bytes), width, height, printed, tuple(mentions)))
