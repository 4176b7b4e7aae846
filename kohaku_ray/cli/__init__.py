"""The command line ``kohaku-ray``: run the command that the arguments name, and return its exit code."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from kohaku_ray.errors import KohakuRayError, is_mistake
from kohaku_ray.outcomes import BAD_CONFIG, FAILED, OK, Outcome, failure
from kohaku_ray.pages.terminal import (
    ENDING,
    INTERRUPTED,
    Interrupted,
    is_interrupted,
    print_error,
    print_interrupted,
    print_summary,
    print_whatever_reads,
    show_as,
    signals_interrupt,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code.

    0: all done; 3: finished with some rows in error; 2: a mistake in what was given; 1: anything else.

    Args:
        argv: Default: the arguments of this process. A signal that ends the command then ends the process here, as an
            interpreter that shuts down crashes in Ray's threads where Ray is half started (attack5 A8).
    """
    with print_whatever_reads():
        try:
            with signals_interrupt():
                try:
                    return _run_command([*(sys.argv[1:] if argv is None else argv)])
                except BaseException as error:
                    # Libraries make another error of an interrupt; Ray, while it starts, ends us by SystemExit.
                    is_exit = isinstance(error, SystemExit) and error.code == signal.SIGTERM
                    if not (is_interrupted() or is_exit or isinstance(error, KeyboardInterrupt)):
                        raise
                    if argv is None:
                        _end_interrupted()
                    print_interrupted()
        except Interrupted:  # while handlers were set or taken back
            if argv is None:
                _end_interrupted()
            print_error(INTERRUPTED)
    return FAILED


def _run_command(given: list[str]) -> int:
    from kohaku_ray.cli.arguments import make_parser  # a signal is heard while it loads

    parser = make_parser()
    if "_ARGCOMPLETE" in os.environ:  # a shell asks for completions
        import argcomplete

        argcomplete.autocomplete(parser)
    arguments = parser.parse_args([*given[1:], "--help"] if given[:1] == ["help"] else given)
    arguments.hide = str  # a configuration hides what its environment variables hold
    code = OK
    with show_as(quiet=arguments.quiet, as_json=arguments.json):
        try:
            if arguments.name != "sweep":  # whose relative directory ``shared`` moves
                written = {f"the {name}": getattr(arguments, name, None) for name in ("output", "jsonl", "page")}
                if files := {name: os.path.abspath(path) for name, path in written.items() if isinstance(path, str)}:
                    from kohaku_ray.settings import check_kept  # which imports pydantic

                    check_kept(files)
            returned = arguments.command(arguments)
            for outcome in [returned] if isinstance(returned, Outcome) else returned:
                print_summary(outcome.line, outcome.as_json(arguments.name, arguments.hide))
                code = max(code, outcome.code)
        except (KohakuRayError, FileNotFoundError) as failed:
            if is_interrupted():
                raise
            error = _cause_of(failed)
            code = BAD_CONFIG if is_mistake(error) else FAILED
            print_error(f"kohaku-ray: {arguments.hide(str(error))}")
            if arguments.json:
                print_summary("", failure(arguments.name, error, code, arguments.hide))
    return code


def _cause_of(error: KohakuRayError | FileNotFoundError) -> KohakuRayError:
    """Return what is to be said: that the working directory was removed meanwhile, where it was, or the error."""
    from kohaku_ray.settings import check_working_directory  # which imports pydantic

    try:
        check_working_directory()
    except KohakuRayError as removed:
        return removed
    if isinstance(error, FileNotFoundError):
        raise error
    return error


def _end_interrupted() -> NoReturn:
    for number in ENDING:  # `timeout` sends a second one, to the whole group
        signal.signal(number, signal.SIG_IGN)
    print_interrupted()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # whoever read it has gone, or it is closed
            stream.flush()
    os._exit(FAILED)
