"""kohaku-ray: its commands, from a shell."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Sequence

from kohaku_ray.cli.arguments import make_parser
from kohaku_ray.errors import ConfigError, KohakuRayError
from kohaku_ray.pages.terminal import complain, conclude, shown_as
from kohaku_ray.run.outcomes import BAD_CONFIG, FAILED, OK, Outcome, failure


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code.

    0: all done; 3: finished with some rows in error; 2: configuration; 1: anything else.
    """
    parser = make_parser()
    if "_ARGCOMPLETE" in os.environ:  # a shell asks for completions
        import argcomplete

        argcomplete.autocomplete(parser)
    arguments = parser.parse_args(argv)
    with shown_as(quiet=arguments.quiet, as_json=arguments.json):
        try:
            return _concluded(arguments)
        except KohakuRayError as error:
            return _complain(arguments, error, BAD_CONFIG if isinstance(error, ConfigError) else FAILED)
        except KeyboardInterrupt:
            complain("interrupted: repeat the same command to go on")
            return FAILED
        except BrokenPipeError:
            return OK


def _concluded(arguments: argparse.Namespace) -> int:
    command: Callable[[argparse.Namespace], Outcome | Iterable[Outcome]] = arguments.command
    returned, code = command(arguments), OK
    for outcome in [returned] if isinstance(returned, Outcome) else returned:
        conclude(outcome.line, outcome.as_json(arguments.name, _hider(arguments)))
        code = max(code, outcome.code)
    return code


def _complain(arguments: argparse.Namespace, error: Exception, code: int) -> int:
    hide = _hider(arguments)
    complain(f"kohaku-ray: {hide(str(error))}")
    conclude("", failure(arguments.name, error, code, hide)) if arguments.json else None
    return code


def _hider(arguments: argparse.Namespace) -> Callable[[str], str]:
    hide: Callable[[str], str] = getattr(arguments, "hide", str)
    return hide
