"""The gold answers that a run's configuration names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kohaku_ray.documents.data.rows import HUB
from kohaku_ray.errors import DataError
from kohaku_ray.store.storage import is_directory, is_file, join_path, read_file


def own_truth(run: str) -> str | None:
    """Return the question file that a run answered, if it is there: it may hold gold answers."""
    path = _questions_path(run)
    return path if path is not None and (path.startswith(HUB) or is_file(path)) else None


def truth_of(runs: Sequence[str]) -> str:
    """Find gold answers: the first question file that a run's configuration names."""
    path = next(filter(None, map(_questions_path, runs)), None)
    if path is None:
        for run in runs:
            if not is_file(run) and not is_directory(run):
                raise DataError(f"{run}: no such file or directory: give a run's directory or a submission file")
        raise DataError(f"{', '.join(runs)}: no run's directory among them names its questions: give --truth CSV")
    return path


def _questions_path(run: str) -> str | None:
    """Return the question file that a run's configuration names; its system need not be installed."""
    file = join_path(run, "config.yaml")
    if not is_file(file):
        return None
    # On demand: pages import this module, and no configuration.
    from kohaku_ray.collection.sources import resolve
    from kohaku_ray.config.load import expand
    from kohaku_ray.config.yaml_text import read_yaml

    config = read_yaml(read_file(file))
    questions = config.get("questions") if isinstance(config, Mapping) else None
    path = questions.get("path") if isinstance(questions, Mapping) else None
    return resolve(str(expand(path))) if path is not None else None
