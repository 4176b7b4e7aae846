"""Systems, metrics and formats by name: the package's, an installed package's, one's own."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from kit.rows import check_rows

from kohaku_ray import extensions
from kohaku_ray.documents.formats import DocumentFormat, find_format
from kohaku_ray.errors import ConfigError
from kohaku_ray.evaluation.metrics import Metric, find_metric
from kohaku_ray.extensions import BUILT_IN, find_registered
from kohaku_ray.systems.base import System
from kohaku_ray.systems.registry import find_system

WANTED = {"systems": System, "metrics": Metric, "formats": DocumentFormat}
THINGS = """
from kohaku_ray.documents.formats import DocumentFormat
NUMBER = 5
MAIL = DocumentFormat((".mbox",))
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """Modules of the user's own, and an installed package whose entry points name them."""
    (tmp_path / "my_things.py").write_text(THINGS)
    (tmp_path / "my_broken.py").write_text("raise RuntimeError('no licence')\n")
    package = tmp_path / "my_things-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: my-things\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(
        "[kohaku_ray.formats]\nmail = my_things:MAIL\n[kohaku_ray.metrics]\nodd = my_things:NUMBER\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    caches = (extensions.installed, find_format, find_system)
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()
    sys.modules.pop("my_things", None)


def test_every_built_in_name_is_there():
    for kind, names in BUILT_IN.items():
        for name in names:
            assert isinstance(find_registered(kind, name, WANTED[kind]), WANTED[kind]), name


def test_a_name_is_an_entry_point_or_a_module_of_ones_own(mine):
    assert find_format("mail") is find_format("my_things:MAIL")
    assert find_format("mail").suffixes == (".mbox",)


@check_rows(
    ("find", "name", "message"),
    [
        (
            find_format,
            "mial",
            r"format mial: no such format \(did you mean mail\?\); formats: auto, .*, mail, or your own",
        ),
        (
            find_metric,
            "wattbt",
            r"metric wattbt: no such metric \(did you mean wattbot\?\); metrics: wattbot, .*, odd, or",
        ),
        (
            find_system,
            "zzz",
            r"system zzz: no such system; systems: kohaku, hybrid, narrative, or your own as module:NAME",
        ),
        (find_format, "no_such_module:X", r"no_such_module:X cannot be loaded \(ModuleNotFoundError: .*on PYTHONPATH"),
        (find_format, "my_things:Theirs", r"my_things:Theirs cannot be loaded \(AttributeError: .*Theirs"),
        (find_system, "my_broken:X", r"my_broken:X cannot be loaded \(RuntimeError: no licence\)"),
        (find_format, ":X", r":X cannot be loaded \(ValueError"),
        (find_metric, "odd", r"metric odd: my_things:NUMBER is of type int, not Metric: name a Metric"),
    ],
)
def test_what_cannot_be_found_says_why_and_the_way_out(mine, find, name, message):
    with pytest.raises(ConfigError, match=message):
        find(name)


def test_a_working_directory_that_is_gone_ends_no_run_that_needs_nothing_of_it(tmp_path):
    """As Ray's copy of it is when a submitted job has ended."""
    program = (
        "import os, sys; os.rmdir(os.getcwd()); sys.path = [one for one in sys.path if one]\n"
        "from kohaku_ray.evaluation.metrics import find_metric\n"
        "print(find_metric('wattbot').name)"
    )
    gone = tmp_path / "gone"
    gone.mkdir()
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", program], cwd=gone, env=env, capture_output=True, text=True)
    assert done.stdout == "wattbot\n", done.stderr


def test_code_by_a_name_is_imported_where_it_can_be_refused():
    """Modules by a name that is no constant are imported where ``check_code_trusted`` stands before, or named here."""
    own = {
        "__init__.py",
        "engine/ledger",
        "documents/lean_imports.py",
        "documents/office/archive.py",
        "documents/formats.py",
    }
    own |= {"cli/commands.py"}
    package = Path(extensions.__file__).parent
    for path in package.rglob("*.py"):
        place = path.relative_to(package).as_posix()
        for function in ast.walk(ast.parse(path.read_text())):
            if not isinstance(function, ast.FunctionDef) or place in own:
                continue
            calls = [call for call in ast.walk(function) if isinstance(call, ast.Call)]
            names = [ast.unparse(call.func).rpartition(".")[2] for call in calls]
            for call, name in zip(calls, names, strict=True):
                imports = name in ("import_module", "__import__") and not isinstance(call.args[0], ast.Constant)
                runs = any(
                    keyword.arg == "trust_remote_code" and "encoder" in ast.unparse(keyword.value)
                    for keyword in call.keywords
                )
                assert not (imports or runs) or "check_code_trusted" in names, f"{place}:{call.lineno}"
