"""Count how many real PDFs each rule of the PDF reader touches.

A rule is a condition in `documents/pdf/`: the test of an ``if``, a part of ``and`` or ``or``, a filter. It touches a
file where it comes out both ways in the corpus at least once there: what is never true, or never false, in two files
decides nothing for a reader of PDFs. Limits against hostile files are such conditions, too, and stay.

    python benchmarks/pdf_rules.py [--work DIRECTORY] [--fewer N] [FILE …]

fetches what pdf_files.txt lists, or takes the files given, and prints each condition that comes out one of the two ways
in fewer than N files: where it stands, its text, and in how many files it was true and false; at the end, in how many
files each kind of furniture was dropped.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).parent
COUNTED = ("blocks", "document", "forms", "page", "raised", "unseen")
KIND = re.compile(r"^\d+ |(?:(?<=\w)s)?(?::| on pages? |, set apart| whose).*", re.DOTALL)  # all but what was dropped
conditions: list[tuple[str, int, str]] = []  # file, line and text of each
outcomes = bytearray()  # of the file that is read: whether each condition was false, and whether it was true


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path("runs/pdf_rules"), help="downloads")
    parser.add_argument("--fewer", type=int, default=2, help="conditions that touch fewer files are printed")
    parser.add_argument("files", nargs="*", type=Path, help="PDFs in place of those listed")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    sys.meta_path.insert(0, _Finder())
    from extraction import fetch

    from kohaku_ray.documents.pdf.document import parse_pdf
    from kohaku_ray.errors import DataError

    files: Counter[int] = Counter()  # by the place in `outcomes`
    dropped: Counter[str] = Counter()
    n_files = n_pages = 0
    for path in arguments.files or fetch(arguments.work, HERE / "pdf_files.txt"):
        outcomes[:] = bytes(len(outcomes))
        start = time.process_time()
        try:
            document = parse_pdf(path.name, path.read_bytes(), images=True)
        except DataError as error:
            print(f"{path.name}: {error}", file=sys.stderr)
            continue
        n_files, n_pages = n_files + 1, n_pages + document.n_pages
        files.update(place for place, was in enumerate(outcomes) if was)
        dropped.update({KIND.sub("", text) for text in document.dropped})
        print(f"{n_files}: {path.name}: {document.n_pages} pages, {time.process_time() - start:.1f} s", file=sys.stderr)
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
    """Loads the counted modules with their conditions wrapped."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        package, _, module = name.rpartition(".")
        if not package.startswith("kohaku_ray.documents") or module not in COUNTED:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.origin is not None and spec.origin.endswith(".py"):
            spec.loader = _Loader(name, spec.origin)
        return spec


class _Loader(SourceFileLoader):
    def get_code(self, fullname: str) -> Any:
        path = self.get_filename(fullname)
        tree = _Wrap(Path(path).name).visit(ast.parse(self.get_data(path), path))
        return compile(ast.fix_missing_locations(tree), path, "exec")

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["_note_outcome"] = note_outcome
        super().exec_module(module)


def note_outcome(place: int, value: Any) -> Any:
    """Return a condition's value, and note how it came out."""
    outcomes[place + 1 if value else place] = 1
    return value


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
