"""The child process that parses files for ``bounded.parse_in_child``: a crash of a parser ends it alone."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

from kohaku_ray.documents.bounded import MEMORY_GIB, document_adapter, load_sentences, packed, reads_pdf, start_timers
from kohaku_ray.documents.figures import images_of
from kohaku_ray.documents.formats import FORMATS, OnDemand
from kohaku_ray.documents.parse import parse_file
from kohaku_ray.errors import DataError


def serve(handle: int, is_pdf: bool) -> None:
    """Parse the files that arrive on a connection until it closes (the child's main loop).

    When a parser ends its process, another is forked with all imports done, since imports take seconds: those of PDFs
    only where one arrived first, or a parser ended.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    for number in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM, signal.SIGPROF])
    connection = Connection(handle)
    _load()
    if is_pdf:
        _load_pdf()
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
            _load_pdf()  # most files that end a parser are PDFs: the next one need not import it again


def _serve_forked(connection: Connection) -> NoReturn:
    code = 1
    try:
        while True:
            name, data, timeout_s, images = connection.recv()
            if reads_pdf(name, data):
                _load_pdf()  # here, so that it does not count against the file's time limit
            n_pages = int(Path("/proc/self/statm").read_text().split()[0])
            most = n_pages * resource.getpagesize() + int(MEMORY_GIB * 2**30)
            resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))
            start_timers(timeout_s)
            reply: str | tuple[str, list[bytes]]
            try:
                document = parse_file(name, data, images=images)
                reply = packed(document), [image.data for _, _, image in images_of(document)]
            except DataError as error:
                reply = str(error)
            start_timers(0.0)
            connection.send(reply)
    except (EOFError, OSError):
        code = 0
    finally:
        os._exit(code)  # the usual exit waits for threads that a fork does not copy


def _load() -> None:
    """Import what parsers import on first use, so that it does not count against a file's time limit."""
    import selectolax.lexbor  # noqa: F401

    for parser in FORMATS.values():
        if isinstance(parser, OnDemand):
            parser.load()
    document_adapter()
    load_sentences()


def _load_pdf() -> None:
    with contextlib.suppress(ImportError):  # the parser says what to install
        import pymupdf  # noqa: F401
