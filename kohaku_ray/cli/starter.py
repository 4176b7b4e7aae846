"""The files that ``kohaku-ray init`` writes: a configuration, and templates of questions and metadata."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from kohaku_ray.errors import DataError

CONFIG, QUESTIONS, METADATA, DOCUMENTS = "my.yaml", "questions.csv", "metadata.csv", "documents"
"""Names in the directory."""

_NOT_SENT = {".rayignore": "# What `ray job submit --working-dir .` does not send to the cluster.\nruns/\n.venv/\n"}

_SETTINGS = f"""\
# Relative paths are relative to this file. `kohaku-ray validate {CONFIG}` says what a run would use.
base: default                  # [default, models/ollama] answers with a model
run: runs/mine                 # outputs; a changed configuration should get a directory of its own
documents:
  paths: [{DOCUMENTS}]           # files and directories: PDF, HTML, Markdown, text, CSV, KohakuRAG JSON
  metadata: {METADATA}       # titles and addresses of the documents; drop the line if you have none
questions: {{path: {QUESTIONS}}}
ledger: {{path: runs/ledger}}    # every model reply, so that no call is made twice; runs may share it
ensemble: {{members: 5}}         # answers per question that vote; 1: no ensemble
"""

_QUESTIONS = """\
id,question,answer_unit
q001,"How much water did the campus use in 2023?",m3
q002,"Which supplier delivered the pumps?",
"""

_METADATA = """\
id,title,url,year,type,citation
water_report,Water report 2023,https://example.org/water_report.pdf,2023,report,
"""


def write_starter(directory: str, *, with_gold: bool) -> list[str]:
    """Write the files, ``with_gold`` answers in the questions' columns, and return their names; none is overwritten.

    Raises:
        DataError: One of them is there already, or cannot be written.
    """
    from kohaku_ray.evaluation.truth import gold_template

    questions = gold_template() if with_gold else _QUESTIONS
    texts = {CONFIG: _SETTINGS, QUESTIONS: questions, METADATA: _METADATA, **_NOT_SENT}
    home = Path(directory)
    existing = [name for name in texts if os.path.lexists(home / name)]
    if existing:
        raise DataError(
            f"{directory} has {', '.join(existing)} already, which init does not overwrite: name another directory, or "
            "remove them"
        )
    try:
        (home / DOCUMENTS).mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            with (home / name).open("x", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        raise DataError(
            f"{error.filename or directory} cannot be written ({error.strerror or error}): name another directory"
        ) from None
    return [*texts, f"{DOCUMENTS}/"]


def next_steps(directory: str, written: Sequence[str]) -> str:
    """Say what was written and what to do next."""
    config = shlex.quote(os.path.join(directory, CONFIG))
    steps = [
        f"put your documents into {os.path.join(directory, DOCUMENTS)}, and their titles into {METADATA}: the id is "
        "the file's name without its suffix",
        f"replace the questions in {QUESTIONS}",
        f"kohaku-ray validate {config} && kohaku-ray index {config} && kohaku-ray answer {config}",
    ]
    return "\n".join([f"{directory}: {', '.join(written)}", *(f"{n}. {step}" for n, step in enumerate(steps, 1))])
