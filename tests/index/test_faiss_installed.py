"""An environment without a FAISS, or with what an uninstall left of two, is said in one line."""

from __future__ import annotations

import importlib.util
import sys
from types import SimpleNamespace

import pytest

from kohaku_ray.errors import ConfigError
from kohaku_ray.index.identity import check_faiss


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (None, r"no FAISS is installed, .*: pip install 'kohaku-ray\[cpu\]', or 'kohaku-ray\[gpu\]'"),
        (SimpleNamespace(origin=None), r"FAISS is not whole.* pip uninstall faiss-cpu faiss-gpu, then pip install"),
    ],
)
def test_an_environment_without_a_whole_faiss_is_refused(monkeypatch, spec, message):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    with pytest.raises(ConfigError, match=message):
        check_faiss()


def test_what_an_uninstall_leaves_of_two_is_a_directory_without_modules(monkeypatch, tmp_path):
    (tmp_path / "faiss" / "python").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "faiss", raising=False)
    with pytest.raises(ConfigError, match="FAISS is not whole"):
        check_faiss()


def test_the_faiss_that_is_here_is_whole():
    check_faiss()
