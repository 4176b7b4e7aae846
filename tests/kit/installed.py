"""Packages that take seconds to import: nothing of them is imported when tests are collected."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest

SLOW_TO_IMPORT = (
    *("datasets", "mlflow", "moto", "nltk", "playwright", "scipy.stats", "sentence_transformers", "torch"),
    *("transformers", "vllm"),
)

IMPORTED: dict[str, str] = {}
"""Of these, what collecting a file has imported: its node id by package."""

WAY_OUT = {
    "gguf": "the dev extra has it",
    "playwright": "the dev extra has it",
    "vllm": "make setup with PIP_FIND_LINKS naming a CPU torch",
}


def loaded_after(code: str, *modules: str) -> set[str]:
    """Of these modules and packages, those that a new process has imported after some code."""
    check = f"{code}\nimport sys, json; print(json.dumps([m for m in {modules!r} if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def needs(package: str) -> pytest.MarkDecorator:
    """Skip tests where a package is not installed."""
    return pytest.mark.skipif(find_spec(package) is None, reason=f"{package} is not installed: {WAY_OUT[package]}")


class OnDemand:
    """A module that is imported when a test first uses it, not when tests are collected.

    Its own attributes are not set through this object: a test that replaces one imports the module.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith(("_", "pytest")):  # by which pytest looks what the globals of a test's module are
            raise AttributeError(attribute)
        return getattr(import_module(self.name), attribute)
