"""What ``make size`` counts as cases."""

import importlib.util
from pathlib import Path

SPEC = importlib.util.spec_from_file_location("size", Path(__file__).parents[2] / "scripts" / "size.py")
size = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(size)

SOURCE = '''
import re
FIRST = re.compile("a|b", re.IGNORECASE)
WORDS = words_of("""one two
three""")
MORE = "four five".split()
LISTED = {"a": 1, "b": 2, "c": 3, "d": 4, "e": 5}
FEW = ("a", "b")
def f(x: re.Match[str]) -> int:
    if x:
        return 1 if re.search("a", x) else 2
    elif x is None:
        return 3
'''


def test_regular_expressions_listed_words_and_ifs_are_counted_by_room():
    cases = size.count_cases({"values/read.py": SOURCE, "values/units.py": "if 1: pass", "systems/kohaku/a.py": ""})
    assert {room: dict(+counts) for room, counts in cases.items()} == {
        "values": {"regexes": 2, "words": 10, "ifs": 3},
        "systems/kohaku": {},
    }


def test_what_was_before_names_the_same_rooms():
    of, before = size.cases_before()
    assert of
    assert before["values"]["regexes"] > 0
