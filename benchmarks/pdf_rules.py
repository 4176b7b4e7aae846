"""Count how many real PDFs each rule of the PDF reader touches.

A rule is a condition in `documents/pdf/`: the test of an ``if``, a part of ``and`` or ``or``, a filter. It touches a
file where it comes out both ways in the corpus at least once there: what is never true, or never false, in two files
decides nothing for a reader of PDFs. Limits against hostile files are such conditions, too, and stay.

    python benchmarks/pdf_rules.py [--work DIRECTORY] [--fewer N] [--thresholds] [FILE …]

fetches what pdf_files.txt lists, or takes the files given, and prints each condition that comes out one of the two ways
in fewer than N files: where it stands, its text, and in how many files it was true and false; at the end, in how many
files each kind of furniture was dropped. With --thresholds it prints, for each comparison with a number such as 0.93,
in how many files it is made, and between which values of that number at most one file decides otherwise.
"""

from __future__ import annotations

import argparse
import ast
import copy
import math
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).parent
COUNTED = ("blocks", "document", "forms", "page", "raised", "unseen")
KIND = re.compile(r"^\d+ |(?:(?<=\w)s)?(?::| on pages? |, set apart| whose).*", re.DOTALL)  # all but what was dropped
conditions: list[tuple[str, int, str]] = []  # file, line and text of each
thresholds: list[tuple[str, int, str, float]] = []  # file, line, text and value of each
turning_points: list[list[float]] = []  # of the file that is read: the values at which a comparison would turn
nearest: defaultdict[int, list[tuple[float, float]]] = defaultdict(list)  # of each threshold, per file: those beside it
outcomes = bytearray()  # of the file that is read: whether each condition was false, and whether it was true


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path("runs/pdf_rules"), help="downloads")
    parser.add_argument("--fewer", type=int, default=2, help="conditions that touch fewer files are printed")
    parser.add_argument("--thresholds", action="store_true", help="print ranges of thresholds in place of conditions")
    parser.add_argument("files", nargs="*", type=Path, help="PDFs in place of those listed")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    sys.meta_path.insert(0, _Finder(arguments.thresholds))
    from extraction import fetch

    from kohaku_ray.documents.pdf.document import parse_pdf
    from kohaku_ray.errors import DataError

    files: Counter[int] = Counter()  # by the place in `outcomes`
    dropped: Counter[str] = Counter()
    n_files = n_pages = 0
    for path in arguments.files or fetch(arguments.work, HERE / "pdf_files.txt"):
        outcomes[:] = bytes(len(outcomes))
        for values in turning_points:
            values.clear()
        start = time.process_time()
        try:
            document = parse_pdf(path.name, path.read_bytes(), images=True)
        except DataError as error:
            print(f"{path.name}: {error}", file=sys.stderr)
            continue
        for number, values in enumerate(turning_points):
            if values:
                threshold = thresholds[number][3]
                below = max((value for value in values if value < threshold), default=-math.inf)
                nearest[number].append(
                    (below, min((value for value in values if value >= threshold), default=math.inf))
                )
        n_files, n_pages = n_files + 1, n_pages + document.n_pages
        files.update(place for place, was in enumerate(outcomes) if was)
        dropped.update({KIND.sub("", text) for text in document.dropped})
        print(f"{n_files}: {path.name}: {document.n_pages} pages, {time.process_time() - start:.1f} s", file=sys.stderr)
    if arguments.thresholds:
        print(f"{n_files} files, {n_pages:,} pages\n\n| where | comparison | value | made in | alike from | to |")
        print("|---|---|---|---|---|---|")
        for number, (file, line, text, threshold) in enumerate(thresholds):
            lows, highs = (sorted(ends) for ends in zip(*nearest[number], strict=True)) if nearest[number] else ([], [])
            low, high = ([-math.inf, *lows][-2:][0], [*highs, math.inf][:2][-1]) if lows else (-math.inf, math.inf)
            print(f"| {file}:{line} | `{text}` | {threshold} | {len(lows)} | {low:.3g} | {high:.3g} |")
        return 0
    print(f"{n_files} files, {n_pages:,} pages\n\n| where | condition | true in | false in |\n|---|---|---|---|")
    for i, (file, line, text) in enumerate(conditions):
        n_false, n_true = files[2 * i], files[2 * i + 1]
        if 0 <= min(n_true, n_false) < arguments.fewer and n_true + n_false:
            print(f"| {file}:{line} | `{text}` | {n_true} | {n_false} |")
    unreached = [
        f"{file}:{line}" for i, (file, line, _) in enumerate(conditions) if not files[2 * i] + files[2 * i + 1]
    ]
    print(f"\n{len(conditions)} conditions; not reached: {', '.join(unreached)}")
    print("dropped, in files:", dict(dropped.most_common()))
    return 0


class _Finder(MetaPathFinder):
    """Loads the counted modules with their conditions, or comparisons with thresholds, wrapped."""

    def __init__(self, of_thresholds: bool) -> None:
        self._wrap = _WrapThresholds if of_thresholds else _Wrap

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        package, _, module = name.rpartition(".")
        if not package.startswith("kohaku_ray.documents") or module not in COUNTED:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.origin is not None and spec.origin.endswith(".py"):
            spec.loader = _Loader(name, spec.origin)
            spec.loader.wrap = self._wrap
        return spec


class _Loader(SourceFileLoader):
    wrap: type[_Wrap] | type[_WrapThresholds]

    def get_code(self, fullname: str) -> Any:
        path = self.get_filename(fullname)
        tree = self.wrap(Path(path).name).visit(ast.parse(self.get_data(path), path))
        return compile(ast.fix_missing_locations(tree), path, "exec")

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__.update(_note_outcome=note_outcome, _note_turn=note_turn)
        super().exec_module(module)


def note_outcome(place: int, value: Any) -> Any:
    """Return a condition's value, and note how it came out."""
    outcomes[place + 1 if value else place] = 1
    return value


def note_turn(number: int, sides: Callable[[float], Sequence[float]], outcome: Any) -> Any:
    """Return a comparison's outcome, and note at which value of its threshold, in which it is linear, it would turn."""
    threshold = thresholds[number][3]
    for here, further in zip(sides(threshold), sides(threshold + 1), strict=True):
        if here != further:
            turning_points[number].append(threshold - here / (further - here))
    return outcome


class _WrapThresholds(ast.NodeTransformer):
    """Wraps each comparison with a bare number that is no whole one."""

    def __init__(self, file: str) -> None:
        self._file = file

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        text = ast.unparse(node)[:100]
        self.generic_visit(node)
        wrapped: ast.expr = node
        sides = [node.left, *node.comparators]
        for i, side in enumerate(sides):
            for constant, value in _numbers_in(side):
                number = len(thresholds)
                thresholds.append((self._file, node.lineno, text, value))
                turning_points.append([])
                copies = copy.deepcopy(sides, {id(constant): ast.Name("_threshold", ast.Load())})
                pairs = [(j, j + 1) for j in (i - 1, i) if 0 <= j < len(sides) - 1]
                differences: list[ast.expr] = [ast.BinOp(copies[j], ast.Sub(), copies[k]) for j, k in pairs]
                given = ast.arguments([], [ast.arg("_threshold")], None, [], [], None, [])
                function = ast.Lambda(given, ast.Tuple(differences, ast.Load()))
                wrapped = ast.Call(ast.Name("_note_turn", ast.Load()), [ast.Constant(number), function, wrapped], [])
        return ast.copy_location(wrapped, node)


def _numbers_in(node: ast.AST) -> list[tuple[ast.Constant, float]]:
    """The numbers in an expression, but those of comparisons inside it, which are wrapped already."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "_note_turn":
        return []
    numbers = []
    if isinstance(node, ast.Constant) and isinstance(node.value, float) and node.value:
        numbers.append((node, node.value))
    return numbers + [number for child in ast.iter_child_nodes(node) for number in _numbers_in(child)]


class _Wrap(ast.NodeTransformer):
    """Wraps each condition in a call that notes its outcome; types and default values stay as they are."""

    def __init__(self, file: str) -> None:
        self._file = file

    def _noted(self, node: ast.expr) -> ast.expr:
        if isinstance(node, ast.BoolOp | ast.Constant):
            return node  # its parts are noted
        key = ast.Constant(2 * len(conditions))
        conditions.append((self._file, node.lineno, ast.unparse(node)[:100]))
        outcomes.extend(b"\0\0")
        inner = self.generic_visit(node) if not isinstance(node, ast.Name) else node
        assert isinstance(inner, ast.expr)
        return ast.copy_location(ast.Call(ast.Name("_note_outcome", ast.Load()), [key, inner], []), node)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        node.values = [
            self.visit(value) if isinstance(value, ast.BoolOp) else self._noted(value) for value in node.values
        ]
        return node

    def _visit_test(self, node: Any) -> Any:
        test = node.test
        node.test = ast.Constant(True)
        self.generic_visit(node)
        node.test = self.visit(test) if isinstance(test, ast.BoolOp) else self._noted(test)
        return node

    visit_If = visit_IfExp = visit_While = _visit_test

    def visit_comprehension(self, node: ast.comprehension) -> ast.comprehension:
        tests, node.ifs = node.ifs, []
        self.generic_visit(node)
        node.ifs = [self.visit(test) if isinstance(test, ast.BoolOp) else self._noted(test) for test in tests]
        return node


if __name__ == "__main__":
    sys.exit(main())
