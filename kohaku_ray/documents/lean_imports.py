"""Import large libraries without parts that are not used here and cost every worker time and memory.

NLTK's own ``__init__`` imports all of it, with scikit-learn and scipy.stats: 1.4 s of CPU and 125 MiB in a process that
splits a text, where Punkt alone takes 0.06 s. sentence-transformers imports scikit-learn for one
distance, 0.65 s and 31 MiB per encoder, and datasets for its trainers and, where a model is loaded, for its version in
the model's card, 0.6 s and 85 MiB. transformers imports scipy.optimize for the losses of detectors, 0.4 s, and torch's
compiler for decorators and its tensors on several GPUs, 470 modules: on a busy machine a model loaded, torch being
there, in 2.8 instead of 4.7 s of CPU. torch asks whether a shape of known numbers is as it should be, for which it
imports sympy; without, 480 modules, a process that encodes one query takes 3.9 instead of 4.6 s of CPU (load 21). On
the demo, `index` and `answer` twice with and without the first two, all processes took 62 and 70 instead of 71 and 72 s
of CPU, and Ray's workers 2,703 and 2,762 instead of 2,935 and 2,936 MiB of their own.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

_LOCK = threading.Lock()
_CORPORA = "nltk.corpus"  # readers of data that is not there; stemmers import them for their word lists
_DECORATORS = ("allow_in_graph", "assume_constant_result", "disable")
_NOT_ENCODING = ("sklearn", "sklearn.metrics", "datasets", "scipy.optimize")
_OF_SHAPES: dict[str, Any] = {
    **dict.fromkeys(("expect_true", "guard_or_false", "guard_or_true", "guard_size_oblivious"), lambda value: value),
    "guarding_hint_or_throw": lambda value: value,
    "has_guarding_hint": lambda _: True,
    "is_nested_int": lambda _: False,
    "sym_and": lambda *values: all(values),
    "sym_or": lambda *values: any(values),
    "sym_eq": lambda one, other: one == other if isinstance(one, int) else [*one] == [*other],
}
"""What torch asks of shapes whose numbers are known: it would import the whole of sympy to answer."""


class _Absent(ModuleType):
    """A module in which every name is None."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class _Lean(ModuleType):
    """A module of which a process that encodes needs the given names alone; other names load the real one."""

    def __init__(self, name: str, **given: Any) -> None:
        super().__init__(name)
        vars(self).update(given)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


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
            # A copy: other threads import meanwhile (one ask in fifteen failed by a dictionary that changed its size).
            for loaded in [module for module in list(sys.modules) if module.partition(".")[0] == "nltk"]:
                del sys.modules[loaded]


@contextmanager
def for_encoding_alone() -> Iterator[None]:
    """Import sentence-transformers and load its models without scikit-learn, datasets and torch's compiler.

    Nor scipy.optimize, whose names are None as those of the first two (scipy.sparse stays: other threads search by it
    meanwhile); a later import imports the real ones. Nor sympy: shapes are known. The compiler is not told what to
    leave alone, and transformers, where this imports it, takes torch for one without its distributed part: an encoder
    is one process. Code of a model's own, which may need them, is loaded outside.
    """
    with _LOCK:
        there = {name.partition(".")[0] for name in _NOT_ENCODING if name in sys.modules}
        left_out: list[ModuleType] = [_Absent(name) for name in _NOT_ENCODING if name.partition(".")[0] not in there]
        for module in left_out:
            module.__spec__ = ModuleSpec(module.__name__, None)  # transformers looks for it
            module.__version__ = ""  # type: ignore[attr-defined]  # in a model's card, which is never written
        left_out += [module for module in _lean_modules() if module.__name__ not in sys.modules]
        sys.modules.update({module.__name__: module for module in left_out})
        try:
            if "transformers" not in sys.modules:
                _leave_out_distributed()
            yield
        finally:
            for module in left_out:
                if sys.modules.get(module.__name__) is module:
                    del sys.modules[module.__name__]


def _lean_modules() -> list[ModuleType]:
    """Make what stands in for torch's compiler, whose submodules are the real ones, and for its symbolic shapes."""
    compiler = _Lean("torch._dynamo", **dict.fromkeys(_DECORATORS, _leave_undecorated))
    compiler.__path__ = [os.path.join(folder, "_dynamo") for folder in importlib.import_module("torch").__path__]
    return [compiler, _Lean("torch.fx.experimental.symbolic_shapes", **_OF_SHAPES), _Lean("sympy", Basic=_Absent)]


def _leave_undecorated(function: Any = None, *_: Any, **__: Any) -> Any:
    return function or (lambda decorated: decorated)


def _leave_out_distributed() -> None:
    """Import transformers and let it ask whether torch has its distributed part; it remembers the answer, no."""
    distributed, utils = importlib.import_module("torch.distributed"), importlib.import_module("transformers.utils")
    usual, distributed.is_available = distributed.is_available, lambda: False  # type: ignore[attr-defined]
    try:
        with suppress(AttributeError):  # a version that asks in another way takes the seconds
            utils.is_torch_distributed_available()
    finally:
        distributed.is_available = usual  # type: ignore[attr-defined]
