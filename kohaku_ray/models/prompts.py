"""Prompts: Jinja templates in, system and user message out.

A template is one file with the blocks ``system`` and ``user``. It runs in Jinja's sandbox, and an unknown variable is
an error. Text from a document or a question file is data: ``one_line`` cleans it, so that no text can start a line of
its own or pose as a reference line.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from jinja2.sandbox import SandboxedEnvironment

from kohaku_ray.errors import ConfigError
from kohaku_ray.models.request import PromptImage
from kohaku_ray.records import Question, digest

BLOCKS = ("system", "user")

MOST_KEPT_CHARS = 8192
"""Longest snippet whose cleaned text is kept for the next prompt."""

MOST_MARK_CHARS = 200  # longest mark that could be read as one of a reference
_TEMPLATE_CODE = "<template>"  # the file name Jinja gives code compiled from a string
_INVISIBLE = ("Cc", "Cf", "Cs")  # categories of control and format characters and surrogates
_OPEN = "".join(char for char in map(chr, range(ord("["), 2**16)) if unicodedata.category(char) == "Ps")
_OPENING = re.compile(rf"[{re.escape(_OPEN)}⎡⎢⎣]+")  # all opening brackets but the round one, and parts of square ones
_LATIN = re.compile(r"(?:LATIN|INDICATOR) [A-Z ]*\b([REFID])(?: WITH .*)?")  # names: LATIN LETTER SMALL CAPITAL R
_LOOK_ALIKE = str.maketrans(  # what NFKD leaves of Unicode's confusables (UTS 39); letters that show nothing are none
    {
        **dict.fromkeys(
            "\u0433\u0491\u13a1\u13b1\u13d2\u1587\u1d26\u2c85\ua4e3\uab47\U000104dc\U00016f35",
            "r",
        ),
        **dict.fromkeys(
            "\u03b5\u0435\u0454\u04bd\u13ac\u212e\u22ff\u2d39\ua4f0\U00010286\U000118c6\U000118ce",
            "e",
        ),
        **dict.fromkeys(
            "\u03dd\u0493\u0584\u15b4\u1e9d\ua4dd\U00010287\U000102a5\U00010525\U000118c2",
            "f",
        ),
        **dict.fromkeys(
            "1l\u01c0\u0269\u03b9\u0456\u04cf\u06f1\u13a5\u16c1\u2373\u2c93\u2d4f\ua4f2\ua647\U0001028a\U00010309"
            "\U00010320\U000118c3\U00016f28",
            "i",
        ),
        **dict.fromkeys("\u0501\u056a\u13a0\u13e7\u146f\u15de\u15ea\ua4d2\ua4d3", "d"),
        **dict.fromkeys("\u115f\u1160\u3164\uffa0"),
    }
)


class PromptSnippet(NamedTuple):
    """A piece of a document, cited by its document's id."""

    ref_id: str
    text: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered prompt; its images stand before the user message's text.

    Attributes:
        variables: The template's variables and ``role``, with the documents' own line breaks.
    """

    system: str
    user: str
    variables: Mapping[str, Any]
    images: tuple[PromptImage, ...] = ()

    @property
    def messages(self) -> tuple[tuple[str, str], ...]:
        """The prompt as ``(role, content)`` pairs; an empty system message is left out."""
        return tuple((role, text) for role, text in (("system", self.system), ("user", self.user)) if text)


def one_line(text: str) -> str:
    """Make a text fit for one line of a prompt, without a way to pose as another reference.

    Control and invisible characters go, all whitespace becomes single spaces, and the bracket of anything that reads
    like ``[ref_id=…]`` becomes a round one: whatever its width, accents, alphabet, and signs between the letters.
    """
    line = " ".join(text.split())
    if not line.isprintable():
        line = " ".join("".join(char for char in line if unicodedata.category(char) not in _INVISIBLE).split())
    return _OPENING.sub(_rounded, line)


def _rounded(opening: re.Match[str]) -> str:
    """A round bracket where the next letters are those of ``ref_id``, else the bracket as it is."""
    letters = ""
    for char in opening.string[opening.end() : opening.end() + MOST_MARK_CHARS]:
        latin = None if char.isascii() else _LATIN.search(unicodedata.name(char, ""))
        folded = latin[1].lower() if latin else unicodedata.normalize("NFKD", char).casefold().translate(_LOOK_ALIKE)
        letters += "".join(filter(str.isalnum, folded))
        if letters[:5] == "refid":
            return "("
        if not "refid".startswith(letters):
            break
    return opening[0]


class Template(NamedTuple):
    """One role's template: its Jinja source, its file or role for messages, and variables to try it with."""

    text: str
    origin: str
    examples: tuple[Mapping[str, Any], ...] = ()


class Prompts:
    """The templates of one run, by role."""

    def __init__(self, templates: Mapping[str, Template]) -> None:
        """Compile the templates, given by role, and try each with its examples.

        Raises:
            ConfigError: A template does not parse, lacks a block or names an unknown variable; with file and line.
        """
        self._sources = dict(templates)
        self._templates = {role: _compiled(source.text, source.origin) for role, source in templates.items()}
        for role, template in templates.items():
            for example in template.examples:
                self.render(role, example)

    def render(self, role: str, variables: Mapping[str, Any]) -> Prompt:
        """Render a role's template. Texts are cleaned by ``one_line``; ids of snippets keep their spelling.

        Raises:
            ConfigError: The template cannot be rendered; with file and line.
        """
        template, variables = self._templates[role], {"role": role, **variables}
        shown = {key: _shown(value) for key, value in variables.items()}
        try:
            system, user = ("".join(template.blocks[block](template.new_context(shown))).strip() for block in BLOCKS)
        except Exception as error:  # a template may raise anything: it is the user's own program
            line, traceback = 1, error.__traceback__  # the line of the innermost frame that runs the template's code
            while traceback is not None:
                if traceback.tb_frame.f_code.co_filename == _TEMPLATE_CODE:
                    line = template.get_corresponding_lineno(traceback.tb_lineno)
                traceback = traceback.tb_next
            raise ConfigError(
                f"{self._sources[role].origin}, line {line}: {error}: a template may use {', '.join(sorted(shown))}"
            ) from error
        return Prompt(system, user, variables)

    @property
    def digest(self) -> str:
        """Hash of the templates' text: 16 hexadecimal characters."""
        return digest({role: template.text for role, template in self._sources.items()})

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the templates' text, tried before: another machine need not have the directory."""
        return Prompts, ({role: source._replace(examples=()) for role, source in self._sources.items()},)


def asked(question: Question) -> dict[str, Any]:
    """Return the variables of a question: its text, and its unit and type if the file has them."""
    return {
        "question": question.text,
        "answer_unit": question.answer_unit or None,
        "answer_type": question.answer_type or None,
    }


def _shown(value: Any) -> Any:
    """Clean every text for a template; document ids keep their spelling, as the model copies them."""
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, PromptSnippet):
        return _cleaned_once(value) if len(value.text) <= MOST_KEPT_CHARS else _cleaned(value)
    if isinstance(value, Mapping):
        return {key: _shown(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return tuple(map(_shown, value))
    return value


def _cleaned(snippet: PromptSnippet) -> PromptSnippet:
    return PromptSnippet(" ".join(snippet.ref_id.split()), one_line(snippet.text))


_cleaned_once = functools.lru_cache(maxsize=2048)(_cleaned)
"""Members of an ensemble, and questions about the same passages, show the same snippets."""


def read_templates(
    roles: Mapping[str, tuple[str, tuple[Mapping[str, Any], ...]]], package: Path | None, directory: str | None
) -> dict[str, Template]:
    """Read each role's template.

    Args:
        roles: By role, its template (a file below ``package``, or the text itself, which has a ``{``) and its examples.
        package: The system's own directory of templates.
        directory: The user's directory: its files replace those of the same name, and ``ROLE.j2`` replaces a template
            that is no file.

    Raises:
        ConfigError: The directory, or all of its files, are missing, or a file is no UTF-8 text.
    """
    names = {role: f"{role}.j2" if "{" in text else text for role, (text, _) in roles.items()}
    users: dict[str, Path] = {}
    if directory is not None:
        folder, wanted = Path(directory), sorted(set(names.values()))
        if not folder.is_dir():
            raise ConfigError(f"the prompt directory {directory!r} does not exist: create it or leave prompts out")
        users = {name: folder / name for name in wanted if (folder / name).exists()}
        if not users:
            raise ConfigError(
                f"the prompt directory {directory!r} holds neither {' nor '.join(wanted)}: add one of them"
            )
    templates = {}
    for role, (text, examples) in roles.items():
        file = users.get(names[role]) or (None if "{" in text else (package or Path()) / text)
        try:
            source = text if file is None else file.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file}: cannot be read as UTF-8 text: {error}") from error
        templates[role] = Template(source, str(file) if file else f"template of role {role}", examples)
    return templates


class _Environment(SandboxedEnvironment):
    """Jinja's sandbox, which asks six questions about each attribute: a snippet's two fields are always safe."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Read an attribute as a template may."""
        if type(obj) is PromptSnippet and attribute in PromptSnippet._fields:
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)


@functools.lru_cache(maxsize=256)
def _compiled(source: str, origin: str) -> jinja2.Template:
    """Compile a template once per process: every task of an actor unpickles the run's prompts."""
    environment = _Environment(
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # a prompt is not HTML: escaping would change the evidence
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=False,
    )
    try:
        template = environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(f"{origin}, line {error.lineno}: {error.message}: correct the template") from error
    missing = [block for block in BLOCKS if block not in template.blocks]
    if missing:
        last = source.count("\n") + 1
        raise ConfigError(
            f"{origin}, line {last}: the file ends without {' and '.join(missing)}: "
            f"add {' and '.join(f'{{% block {block} %}}…{{% endblock %}}' for block in missing)}"
        )
    return template
