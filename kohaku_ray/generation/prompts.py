"""Prompts: Jinja templates in, system and user message out.

A template is one file with the blocks ``system`` and ``user``. It runs in Jinja's sandbox, and an unknown variable is
an error. Whatever comes from a document or a question file is data: ``one_line`` has passed over it, so that no text
can begin a line of its own or pose as a reference line.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple

import jinja2
from jinja2.sandbox import SandboxedEnvironment

from kohaku_ray.errors import ConfigError
from kohaku_ray.records import Question

PromptOrder = Literal["context_first", "question_first"]

TEMPLATES = ("plan.j2", "answer.j2")
BLOCKS = ("system", "user")

_TEMPLATE_CODE = "<template>"  # the file name Jinja gives code compiled from a string
_REF_MARK = re.compile(r"[\[［【]+(?=[\W_]*ref[\W_]*id)", re.IGNORECASE)


class Snippet(NamedTuple):
    """A piece of a document, cited by its document's id."""

    ref_id: str
    text: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered prompt.

    Attributes:
        system: The system message.
        user: The user message.
        variables: What it was rendered from (``role`` is ``plan`` or ``answer``), with the documents' own line breaks.
    """

    system: str
    user: str
    variables: Mapping[str, Any]

    @property
    def messages(self) -> tuple[tuple[str, str], ...]:
        """The prompt as ``(role, content)`` pairs; an empty system message is left out."""
        return tuple((role, text) for role, text in (("system", self.system), ("user", self.user)) if text)


def one_line(text: str) -> str:
    """Make a text fit for one line of a prompt, without a way to pose as another reference.

    Control and invisible characters go, all whitespace becomes single spaces, and the bracket of anything that reads
    like ``[ref_id=…]`` becomes a round one.
    """
    line = " ".join(text.split())
    if not line.isprintable():
        line = " ".join("".join(filter(_is_visible, line)).split())
    return _REF_MARK.sub("(", line)


def _is_visible(char: str) -> bool:
    return unicodedata.category(char) not in ("Cc", "Cf", "Cs")


class Prompts:
    """The templates of one run."""

    def __init__(self, directory: str | None = None) -> None:
        """Load the templates and try each once.

        Args:
            directory: Where the user's own ``plan.j2`` or ``answer.j2`` lie; what it lacks comes from the package.

        Raises:
            ConfigError: The directory or both files are missing, or a template does not parse, lacks a block or names
                an unknown variable; with the file and the line.
        """
        self._compile(_read_sources(directory))
        sample = Question("q", "?", answer_unit="u", answer_type="t")
        self.plan(sample, 2)
        for order in ("context_first", "question_first"):
            self.answer(sample, [Snippet("d", "t")], [Snippet("d", "c")], order)

    def plan(self, question: Question, n_queries: int) -> Prompt:
        """Ask for ``n_queries`` search queries."""
        return self._render("plan.j2", {"role": "plan", **_asked(question), "n_queries": n_queries})

    def answer(
        self,
        question: Question,
        snippets: Sequence[Snippet] | Sequence[tuple[str, str]],
        media: Sequence[Snippet] | Sequence[tuple[str, str]] = (),
        order: PromptOrder = "context_first",
    ) -> Prompt:
        """Ask for the answer.

        Args:
            question: With its unit and type, which are stated with it where the file has them.
            snippets: The context in rank order, as (document id, text).
            media: Captions of images and tables, as (document id, caption).
            order: Documents, captions, question, instructions; or question, instructions, documents, captions.
        """
        variables = {
            "role": "answer",
            **_asked(question),
            "snippets": tuple(Snippet(*snippet) for snippet in snippets),
            "media": tuple(Snippet(*medium) for medium in media),
            "order": order,
        }
        return self._render("answer.j2", variables)

    @property
    def digest(self) -> str:
        """Name the templates by their text: 16 hexadecimal characters."""
        texts = json.dumps({name: text for name, (text, _) in self._sources.items()}, sort_keys=True)
        return hashlib.blake2b(texts.encode(), digest_size=8).hexdigest()

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel as the templates' text: another machine need not have the directory."""
        return _from_sources, (self._sources,)

    def _compile(self, sources: Mapping[str, tuple[str, str]]) -> None:
        self._sources = dict(sources)
        self._templates = {name: _compiled(*sources[name]) for name in TEMPLATES}

    def _render(self, name: str, variables: Mapping[str, Any]) -> Prompt:
        template = self._templates[name]
        shown = {key: _shown(value) for key, value in variables.items()}
        try:
            system, user = ("".join(template.blocks[block](template.new_context(shown))).strip() for block in BLOCKS)
        except Exception as error:  # a template may raise anything: it is the user's own program
            line = _template_line(error.__traceback__, template)
            raise ConfigError(f"{self._sources[name][1]}, line {line}: {error}: {_way_out(shown)}") from error
        return Prompt(system, user, dict(variables))


def _from_sources(sources: Mapping[str, tuple[str, str]]) -> Prompts:
    prompts = Prompts.__new__(Prompts)
    prompts._compile(sources)
    return prompts


def _asked(question: Question) -> dict[str, Any]:
    return {
        "question": question.text,
        "answer_unit": question.answer_unit or None,
        "answer_type": question.answer_type or None,
    }


def _shown(value: Any) -> Any:
    """Clean every text a template will show; document ids keep their spelling, for they are to be copied."""
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, tuple):
        return tuple(Snippet(" ".join(ref_id.split()), one_line(text)) for ref_id, text in value)
    return value


def _read_sources(directory: str | None) -> dict[str, tuple[str, str]]:
    """Read each template as (text, where it came from)."""
    package = resources.files("kohaku_ray.generation") / "templates"
    sources = {name: ((package / name).read_text("utf-8"), str(package / name)) for name in TEMPLATES}
    if directory is None:
        return sources
    folder = Path(directory)
    if not folder.is_dir():
        raise ConfigError(
            f"the prompt directory {directory!r} does not exist: create it or leave generation.prompts out"
        )
    own = [name for name in TEMPLATES if (folder / name).exists()]
    if not own:
        raise ConfigError(
            f"the prompt directory {directory!r} holds neither {' nor '.join(TEMPLATES)}: add one of them"
        )
    for name in own:
        try:
            sources[name] = ((folder / name).read_text("utf-8"), str(folder / name))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{folder / name}: cannot be read as UTF-8 text: {error}") from error
    return sources


def _compiled(source: str, origin: str) -> jinja2.Template:
    environment = SandboxedEnvironment(
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


def _template_line(traceback: TracebackType | None, template: jinja2.Template) -> int:
    """Find the template's line that failed: the innermost frame that runs the template's code."""
    line = 1
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == _TEMPLATE_CODE:
            line = template.get_corresponding_lineno(traceback.tb_lineno)
        traceback = traceback.tb_next
    return line


def _way_out(variables: Mapping[str, Any]) -> str:
    return f"a template may use {', '.join(sorted(variables))}"
