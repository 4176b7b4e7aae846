"""A benchmark's page, and the files written with it."""

from __future__ import annotations

import os

from kohaku_ray.pages.page import page_environment
from kohaku_ray.pages.throughput import COLUMNS, LEGEND, Throughput, absences, as_csv, as_json, table
from kohaku_ray.pages.throughput_charts import charts
from kohaku_ray.storage import make_directory, publish

FILES = ("throughput.html", "throughput.json", "throughput.csv")
"""Names of the files, the page first."""


def page(bench: Throughput) -> str:
    """Render the page: one HTML file that needs nothing beside it and runs no script."""
    environment = page_environment()
    return environment.get_template("throughput.html.j2").render(
        facts=bench.facts,
        columns=COLUMNS,
        rows=table(bench),
        absences=absences(bench),
        legend=LEGEND,
        charts=charts(bench),
    )


def write_throughput(bench: Throughput, directory: str) -> list[str]:
    """Write page, JSON and CSV, each atomically; returns their paths.

    Raises:
        DataError: A file cannot be written.
    """
    make_directory(directory)
    paths = [os.path.join(directory, name) for name in FILES]
    for path, text in zip(paths, (page(bench), as_json(bench), as_csv(bench)), strict=True):
        publish(path, text.encode())
    return paths
