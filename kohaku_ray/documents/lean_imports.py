"""Import large libraries without parts that are not used here and cost every worker time and memory.

NLTK's own ``__init__`` imports all of it, with scikit-learn and scipy.stats: 1.4 s of CPU and 125 MiB in a process that
splits a text, where Punkt alone takes 0.06 s. sentence-transformers imports scikit-learn for one
distance, 0.65 s and 31 MiB per encoder, and datasets for its trainers and, where a model is loaded, for its version in
the model's card, 0.6 s and 85 MiB. On the demo, `index` and `answer` twice with and without the first two, all
processes took 62 and 70 instead of 71 and 72 s of CPU, and Ray's workers 2,703 and 2,762 instead of 2,935 and
2,936 MiB of their own.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

_LOCK = threading.Lock()
_CORPORA = "nltk.corpus"  # readers of data that is not there; stemmers import them for their word lists
_NOT_ENCODING = ("sklearn", "sklearn.metrics", "datasets")


class _Absent(ModuleType):
    """A module in which every name is None."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


@cache
def nltk_module(name: str) -> Any:
    """Import a module such as ``nltk.tokenize.punkt`` without the rest of the package.

    A later ``import nltk`` imports the package as a whole, as if this had not happened.
    """
    with _LOCK:
        if "nltk" in sys.modules:
            return importlib.import_module(name)
        spec = find_spec("nltk")
        if spec is None:
            raise ModuleNotFoundError("No module named 'nltk': pip install nltk", name="nltk")
        sys.modules[_CORPORA] = _Absent(_CORPORA)
        *packages, _ = name.split(".")
        for number in range(len(packages)):  # bare: the __init__ of a package imports all that it has
            package = ModuleType(".".join(packages[: number + 1]))
            inner = packages[1 : number + 1]
            package.__path__ = [os.path.join(folder, *inner) for folder in spec.submodule_search_locations or ()]
            sys.modules[package.__name__] = package
        try:
            return importlib.import_module(name)
        finally:
            for loaded in [module for module in sys.modules if module.partition(".")[0] == "nltk"]:
                del sys.modules[loaded]


@contextmanager
def for_encoding_alone() -> Iterator[None]:
    """Import sentence-transformers in the block, and load its models, without scikit-learn and datasets.

    What that library took from them is None; a later import of them imports the real ones. Code of a model's own, which
    may need them, is loaded outside.
    """
    with _LOCK:
        there = {name.partition(".")[0] for name in _NOT_ENCODING if name in sys.modules}
        absent = [name for name in _NOT_ENCODING if name.partition(".")[0] not in there]
        for name in absent:
            sys.modules[name] = _Absent(name)
            sys.modules[name].__spec__ = ModuleSpec(name, None)  # transformers looks for it
            sys.modules[name].__version__ = ""  # type: ignore[attr-defined]  # in a model's card, which is never written
        try:
            yield
        finally:
            for name in absent:
                del sys.modules[name]
