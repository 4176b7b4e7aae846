"""The files that ``kohaku-ray init`` writes: a configuration, and templates of questions and metadata."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from kohaku_ray.errors import DataError

CONFIG, QUESTIONS, METADATA, DOCUMENTS = "my.yaml", "questions.csv", "metadata.csv", "documents"
"""Names in the directory."""

_SETTINGS = f"""\
# Relative paths are relative to this file. `kohaku-ray validate {CONFIG}` says what a run would use.
base: default                  # [default, models/ollama] answers with a model: see configs/models
run: runs/my                   # outputs; a changed configuration should get a directory of its own
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


def write_starter(directory: str, *, with_gold: bool = False) -> list[str]:
    """Write the files; nothing is overwritten.

    Args:
        directory: Where; it is made if it is not there.
        with_gold: The questions have columns of gold answers, so that a run is scored.

    Returns:
        Their names in the directory.

    Raises:
        DataError: One of them is there already, or cannot be written.
    """
    texts = {CONFIG: _SETTINGS, QUESTIONS: _gold() if with_gold else _QUESTIONS, METADATA: _METADATA}
    home = Path(directory)
    there = [name for name in texts if os.path.lexists(home / name)]
    if there:
        raise DataError(
            f"{directory} has {', '.join(there)} already, which init does not overwrite: name another directory, or "
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
    return "\n".join(
        (
            f"{directory}: {', '.join(written)}",
            f"1. put your documents into {os.path.join(directory, DOCUMENTS)}, and their titles into {METADATA}: the "
            "id is the file's name without its suffix",
            f"2. replace the questions in {QUESTIONS}",
            f"3. kohaku-ray validate {config} && kohaku-ray index {config} && kohaku-ray answer {config}",
        )
    )


def _gold() -> str:
    from kohaku_ray.evaluation.truth import gold_template

    return gold_template()
