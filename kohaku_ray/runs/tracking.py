"""Export a finished run to MLflow or Weights & Biases: its configuration, its figures, its files."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import re
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from kohaku_ray.config import Config
from kohaku_ray.config.plain import leaves
from kohaku_ray.config.sections import TrackingConfig
from kohaku_ray.errors import ConfigError, DataError
from kohaku_ray.models.summary import AnswerSummary
from kohaku_ray.runs.scoring import ScoredRun
from kohaku_ray.settings import check_kept
from kohaku_ray.store.storage import is_file, is_uri, join_path, publish, read_file

ARTIFACTS = ("report.html", "submission.csv", "answers.jsonl", "config.yaml")
"""Files of a run that are exported, where they are there."""

MARK = "tracked.json"
"""File of a run that was exported: the tracker's settings, where it is there, its id and the local store, if one."""

_MLFLOW_PARAMS, _MLFLOW_CHARS = 100, 6000  # of one request, and of one value


@dataclass(frozen=True, slots=True)
class Exported:
    """What a tracker gets: a run's name, settings by key, figures, paths of artifacts, and the name of its sweep."""

    name: str
    params: Mapping[str, str]
    figures: Mapping[str, float]
    files: Sequence[str]
    group: str = ""


class Place(NamedTuple):
    """Where a tracker put what it got: in words, and the id that it gave."""

    where: str
    run_id: str


def check_tracking(config: Config) -> None:
    """Check before anything starts that the configured tracker's packages are there, and that its store is kept."""
    name = config.tracking.to
    if name is None:
        return
    needed = (
        (name, "sqlalchemy", "alembic") if name == "mlflow" and _is_database(_mlflow_uri(config.tracking)) else (name,)
    )
    missing = [package for package in needed if importlib.util.find_spec(package) is None]
    if missing:
        where = "" if missing[0] == name else f" (for its store, {_without_password(_mlflow_uri(config.tracking))})"
        raise ConfigError(
            f"tracking.to is {name} but the package {missing[0]} is missing{where}: pip install 'kohaku-ray[{name}]', "
            "or set tracking.to to null"
        )
    store = local_store(config.tracking.model_copy(update={"store": None}))
    if store is not None and is_uri(config.tracking.store or ""):
        raise ConfigError(
            f"tracking.store is {config.tracking.store}, where {name} cannot write: give a local directory, or "
            "a server by tracking.uri"
        )
    check_kept({"tracking.store": local_store(config.tracking) or ""})


def local_store(tracking: TrackingConfig) -> str | None:
    """Find the file or directory of this machine that a tracker writes to; None: a server, or a database's own."""
    if tracking.to == "wandb":
        return os.path.join(tracking.store or "", "wandb") if _is_wandb_offline() else None
    uri = _mlflow_uri(tracking)
    if uri.startswith("sqlite:///"):
        return uri.removeprefix("sqlite:///").partition("?")[0]
    return None if is_uri(uri) and not uri.startswith("file:") else uri.removeprefix("file://")


def _mlflow_uri(tracking: TrackingConfig) -> str:
    """Return MLflow's address; that of a local store with an absolute path, which no later job reads otherwise."""
    uri = tracking.uri or os.environ.get("MLFLOW_TRACKING_URI", "") or "sqlite:///mlflow.db"
    base = tracking.store or ""
    if uri.startswith("sqlite:///"):
        return f"sqlite:///{os.path.join(base, uri.removeprefix('sqlite:///'))}"
    return uri if is_uri(uri) or uri.startswith("databricks") else os.path.join(base, uri)


def _is_wandb_offline() -> bool:
    return os.environ.get("WANDB_MODE", "online") in ("offline", "dryrun")


def _without_password(uri: str) -> str:
    return re.sub(r"(?<=://)[^/@]*@", "", uri).partition("?")[0]


def _is_database(uri: str) -> bool:
    return uri.partition(":")[0].partition("+")[0] in ("sqlite", "postgresql", "mysql", "mssql")


def track(config: Config, summary: AnswerSummary, scored: ScoredRun | None, sweep: str = "") -> str | None:
    """Export a finished run to the configured tracker, and mark the run as exported; returns where it is there.

    ``sweep`` names its sweep: MLflow's tag ``sweep``, the group of Weights & Biases.

    Raises:
        ConfigError: The tracker's package is missing.
        DataError: The tracker refused; the run itself is whole.
    """
    if config.tracking.to is None:
        return None
    check_tracking(config)
    artifacts = [os.path.join(summary.run, name) for name in ARTIFACTS]
    files = [file for file in artifacts if os.path.isfile(file)]
    name = os.path.basename(summary.run.rstrip("/"))
    place = export(config, Exported(name, settings_of(config), figures_of(summary, scored), files, sweep), summary.run)
    mark = {**_mark_of(config), **place._asdict(), "kept_in": local_store(config.tracking)}
    publish(join_path(summary.run, MARK), json.dumps(mark, indent=2).encode(), "check the run's directory")
    return place.where


def is_tracked(config: Config) -> bool:
    """Tell whether a run was exported to the tracker that is configured now, or none is; a local store must have it."""
    if config.tracking.to is None:
        return True
    path = join_path(config.run, MARK)
    if not is_file(path):
        return False
    mark = json.loads(read_file(path))
    if not _mark_of(config).items() <= mark.items():
        return False
    store = local_store(config.tracking)
    return store is None or (mark.get("kept_in") == store and _holds(store, str(mark.get("run_id"))))


def _holds(store: str, run_id: str) -> bool:
    """Tell whether a local store, a database or a directory, has a run."""
    if os.path.isdir(store):  # MLflow: EXPERIMENT/RUN; Weights & Biases: offline-run-TIME-RUN
        return any(Path(store).glob(f"*/{run_id}")) or any(Path(store).glob(f"offline-run-*-{run_id}"))
    if not os.path.isfile(store):
        return False
    try:
        with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as database:
            return database.execute("SELECT 1 FROM runs WHERE run_uuid = ?", (run_id,)).fetchone() is not None
    except sqlite3.Error:
        return False


def _mark_of(config: Config) -> dict[str, str | None]:
    """Say which tracker is configured, its secrets hidden."""
    settings = config.tracking.model_dump(exclude={"store"})
    return settings | {name: config.hide(text) for name, text in settings.items() if text is not None}


def export(config: Config, exported: Exported, directory: str) -> Place:
    """Hand a run or a sweep, whose results lie in ``directory``, to the configured tracker; returns where it is."""
    tracking = config.tracking
    assert tracking.to is not None
    try:
        return _TRACKERS[tracking.to](tracking, exported)
    except Exception as error:  # trackers raise many types
        reason = " ".join(config.hide(str(error)).split())
        way_out = _token_to_set(tracking.to) if _ASKS_FOR_TOKEN.search(reason) else "check tracking.uri"
        raise DataError(
            f"the results are whole and in {directory}, but {tracking.to} did not take them "
            f"({type(error).__name__}: {reason[:300]}): {way_out}, then repeat the command, which exports what is "
            "whole and asks nothing again"
        ) from error


_ASKS_FOR_TOKEN = re.compile(
    r"\b40[13]\b|api[_ ]?key|unauthori[sz]ed|unauthenticated|permission.denied|not logged in", re.I
)
_TOKENS = {"mlflow": ("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_USERNAME"), "wandb": ("WANDB_API_KEY",)}
"""Variables of a tracker's secrets: the one to set, and what may stand for it."""


def _token_to_set(tracker: str) -> str:
    """Say which token the tracker misses, or refuses."""
    name = _TOKENS[tracker][0]
    given = next((variable for variable in _TOKENS[tracker] if os.environ.get(variable)), None)
    why = f"{name} is not set here" if given is None else f"the token in {given} is refused"
    return f"{why}: `export {name}=…`"


def settings_of(config: Config, *, changed: bool = False) -> dict[str, str]:
    """Flatten a configuration: each setting, or each ``changed`` one, by its dotted key; secrets hidden."""
    values = config.model_dump(mode="json", exclude_defaults=changed)
    values[config.declaration.name] = values.pop("settings", {})
    return {".".join(map(str, key_path)): config.hide(str(value)) for key_path, value in leaves(values)}


def figures_of(summary: AnswerSummary, scored: ScoredRun | None) -> dict[str, float]:
    """Collect the figures of a run by name: scores and their parts, counts, what its calls used, seconds."""
    figures: dict[str, float] = {}
    parts = {metric.name: metric.parts for metric in scored.metrics} if scored is not None else {}
    for record in scored.report.records if scored is not None else ():
        name = str(record["metric"])
        figures[name] = float(record["score"])
        figures |= {f"{name}.{part}": float(record[part]) for part in parts[name]}
    counts = ("n_questions", "n_answers", "n_member_errors", "n_unanswered")
    figures |= {name: float(getattr(summary, name)) for name in counts}
    figures |= {f"calls.{source}": float(n) for source, n in summary.n_calls.items()}
    figures |= {f"used.{name}": float(amount) for name, amount in summary.spent.items()}
    return figures | {"seconds": summary.wall_s}


def _to_mlflow(settings: TrackingConfig, exported: Exported) -> Place:
    uri, store = _mlflow_uri(settings), local_store(settings)
    if not _is_database(uri) and (not is_uri(uri) or uri.startswith("file:")) and not uri.startswith("databricks"):
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # it was asked for by name
    # MLflow itself would ask a server that is not there for minutes.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
    for name in ("mlflow", "alembic"):  # a new store's tables
        logging.getLogger(name).setLevel(logging.WARNING)
    import mlflow
    from mlflow.entities import Metric, Param

    client = mlflow.MlflowClient(tracking_uri=uri)
    known = client.get_experiment_by_name(settings.project)
    # Beside a local database, not in the working directory of the process that first exports.
    files = Path(store).parent.joinpath("mlruns").as_uri() if store is not None and uri.startswith("sqlite:") else None
    experiment = known.experiment_id if known is not None else client.create_experiment(settings.project, files)
    tags = {"sweep": exported.group} if exported.group else {}
    run_id = client.create_run(experiment, run_name=exported.name, tags=tags).info.run_id
    now = int(time.time() * 1000)
    params = [Param(key, value[:_MLFLOW_CHARS]) for key, value in exported.params.items()]
    for start in range(0, len(params), _MLFLOW_PARAMS):
        client.log_batch(run_id, params=params[start : start + _MLFLOW_PARAMS])
    client.log_batch(run_id, metrics=[Metric(key, value, now, 0) for key, value in exported.figures.items()])
    for file in exported.files:
        client.log_artifact(run_id, file)
    client.set_terminated(run_id)
    return Place(f"mlflow experiment {settings.project}, run {run_id} ({_without_password(uri)})", run_id)


def _to_wandb(settings: TrackingConfig, exported: Exported) -> Place:
    import wandb

    server = {} if settings.uri is None else {"base_url": settings.uri}
    with wandb.init(
        project=settings.project,
        name=exported.name,
        group=exported.group or None,
        dir=settings.store,
        config=dict(exported.params),
        reinit="create_new",
        settings=wandb.Settings(console="off", silent=True, **server),
    ) as run:
        run.summary.update(dict(exported.figures))
        artifact = wandb.Artifact(f"run-{run.id}", type="run")
        for file in exported.files:
            artifact.add_file(file)
        run.log_artifact(artifact)
        return Place(f"wandb project {settings.project}, run {run.id} ({run.url or run.dir})", run.id)


_TRACKERS: Mapping[str, Callable[[TrackingConfig, Exported], Place]] = {"mlflow": _to_mlflow, "wandb": _to_wandb}
