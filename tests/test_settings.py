import sys
from importlib.metadata import EntryPoint

import pytest

from kohaku_ray import settings
from kohaku_ray.errors import ConfigError
from kohaku_ray.settings import find_registered, find_secrets

KNOWN = {"pair": "fractions:Fraction"}


def find(name, wanted=type, known=KNOWN):
    return find_registered(name, known, "kohaku_ray.tests", wanted)


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A module of the user's own, and an entry point that names it."""
    (tmp_path / "my_things.py").write_text("class Mine: pass\nNUMBER = 5\n")
    (tmp_path / "my_broken.py").write_text("raise RuntimeError('no licence')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(
        settings, "entry_points", lambda group: [EntryPoint("theirs", "my_things:Mine", group)] if group else []
    )
    yield
    sys.modules.pop("my_things", None)


def test_a_name_is_built_in_an_entry_point_or_a_place(mine):
    assert find("pair").__name__ == "Fraction"
    assert find("theirs") is find("my_things:Mine")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pairs", r"type pairs: no such type, did you mean pair\?; types: pair, theirs, or your own as module:NAME"),
        ("zzz", r"type zzz: no such type; types: pair, theirs, or your own"),
        (
            "no_such_module:X",
            r"no_such_module:X cannot be loaded \(ModuleNotFoundError: .*folder on PYTHONPATH",
        ),
        ("my_things:Theirs", r"my_things:Theirs cannot be loaded \(AttributeError: .*Theirs"),
        ("my_broken:X", r"my_broken:X cannot be loaded \(RuntimeError: no licence\)"),
        (":X", r":X cannot be loaded \(ValueError"),
        ("my_things:NUMBER", r"my_things:NUMBER is of type int, not type: name a type"),
    ],
)
def test_what_cannot_be_found_says_why_and_the_way_out(mine, name, message):
    with pytest.raises(ConfigError, match=message):
        find(name)


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({"X-Api-Key": "sk-12345678"}, {"sk-12345678"}),
        ({"Cookie": "session=12345678"}, {"session=12345678"}),
        ({"X-Forward": "Bearer sk-12345678"}, {"Bearer sk-12345678"}),
        ({"options": [{"password": ["hunter22"]}]}, {"hunter22"}),
        ({"api_key": "EMPTY", "max_tokens": "long enough", "X-Note": "bearer"}, set()),
    ],
)
def test_keys_and_passwords_are_found_by_name_and_scheme(values, found):
    assert find_secrets(values) == found
