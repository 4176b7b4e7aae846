"""Print what a reader's time depends on: the size of every room, its cases, hops within it, and names in two rooms.

Cases are what grows when inputs are answered one by one: regular expressions, listed words (of ``words_of``, of a text
that is split, of a collection of at least five texts) and ``if`` statements, beside those of the last tag, or where
there is none beside those of scripts/size_before.json, which ``--record`` writes. They are no bars.

The bars: at most 6 private functions with one caller per 1,000 lines (their name is used once in the whole package),
no public type name in two rooms, no module of engine/ that does not import ray. With names of rooms as arguments
(`config`, `systems/kohaku`) the functions counted there are listed.
"""

import ast
import io
import json
import re
import subprocess
import sys
import tarfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path("kohaku_ray")
RECORDED = Path("scripts/size_before.json")
CASES = ("regexes", "words", "ifs")
LEAST_LISTED = 5  # texts in a collection that is a list of words
TYPE_NAME = re.compile(r"[A-Z]\w*[a-z]\w*")


def room_of(file: Path) -> str:
    """Return the room a module of the package lies in; each system is a room of its own."""
    parts = file.relative_to(PACKAGE).with_suffix("").parts
    return "/".join(parts[:2]) if parts[0] == "systems" and len(parts) > 2 else parts[0]


def count_uses(module: ast.Module) -> Counter[str]:
    """Count how often each name is used in a module: as a name or as an attribute, not where it is defined."""
    nodes = ast.walk(module)
    return Counter(
        node.id if isinstance(node, ast.Name) else node.attr
        for node in nodes
        if isinstance(node, (ast.Name, ast.Attribute))
    )


def private_functions(module: ast.Module) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Find the private functions and methods of a module."""
    functions = (node for node in ast.walk(module) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
    return [node for node in functions if node.name.startswith("_") and not node.name.startswith("__")]


def public_types(module: ast.Module) -> Iterator[str]:
    """Yield the names of a module's public classes and type aliases."""
    for node in module.body:
        if isinstance(node, ast.ClassDef):
            names = [node.name]
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and not (
            isinstance(node.value, ast.Call) and ast.unparse(node.value.func) in ("TypeVar", "ParamSpec")
        ):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
        else:
            names = []
        yield from (name for name in names if TYPE_NAME.fullmatch(name))


def imports_ray(module: ast.Module) -> bool:
    """Return whether a module imports ray, at its top or within a function, or works in a ``Session`` on it."""
    names = [alias.name for node in ast.walk(module) if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in ast.walk(module) if isinstance(node, ast.ImportFrom)]
    return any(name.partition(".")[0] == "ray" or name == "kohaku_ray.engine.session" for name in names)


def listed_words(node: ast.AST) -> int:
    """Count the words that an expression lists."""
    if isinstance(node, ast.Call):
        is_list = isinstance(node.func, ast.Name) and node.func.id == "words_of"
        is_split = isinstance(node.func, ast.Attribute) and node.func.attr == "split"
        text = (
            node.args[0] if is_list else node.func.value if is_split and isinstance(node.func, ast.Attribute) else None
        )
        return len(text.value.split()) if isinstance(text, ast.Constant) and isinstance(text.value, str) else 0
    items = (
        node.elts
        if isinstance(node, (ast.List, ast.Tuple, ast.Set))
        else node.keys
        if isinstance(node, ast.Dict)
        else []
    )
    texts = [item for item in items if isinstance(item, ast.Constant) and isinstance(item.value, str)]
    return len(texts) if len(texts) >= LEAST_LISTED else 0


def count_cases(sources: dict[str, str]) -> dict[str, Counter[str]]:
    """Count the cases of every room, given each module's text by its path below the package."""
    cases: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for path, source in sources.items():
        of_room = cases[room_of(PACKAGE / path)]
        for node in ast.walk(ast.parse(source)):
            of_room["ifs"] += isinstance(node, ast.If)
            of_room["words"] += listed_words(node)
            of_room["regexes"] += isinstance(node, ast.Call) and ast.unparse(node.func).startswith("re.")
    return cases


def cases_before() -> tuple[str, dict[str, Counter[str]]]:
    """Count the cases of the last tag, or read those that are recorded: what they are of, and they."""
    git = ["git", "describe", "--tags", "--abbrev=0"]
    tag = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    if not tag:
        recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
        return recorded["of"], {room: Counter(counts) for room, counts in recorded["rooms"].items()}
    archive = subprocess.run(["git", "archive", tag, str(PACKAGE)], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        modules = [file for file in files.getmembers() if file.name.endswith(".py")]
        sources = {
            str(Path(file.name).relative_to(PACKAGE)): data.read().decode()
            for file in modules
            if (data := files.extractfile(file)) is not None
        }
    return tag, count_cases(sources)


def print_cases(cases: dict[str, Counter[str]]) -> None:
    """Print the cases of every room beside those before."""
    of, before = cases_before()
    print(f"cases, beside {of}: regexes, listed words, if")
    total, total_before = sum(cases.values(), Counter()), sum(before.values(), Counter())
    for room in [*sorted(cases.keys() | before.keys()), "all"]:
        now, then = (
            (total, total_before) if room == "all" else (cases.get(room, Counter()), before.get(room, Counter()))
        )
        if any(now[kind] or then[kind] for kind in CASES):
            print("".join(f"{now[kind]:7,} ({then[kind]:5,})" for kind in CASES), f" {room}")
    print()


def main(listed: list[str]) -> None:
    """Print all of it, and of the rooms ``listed`` every private function with one caller."""
    package = {file.relative_to(PACKAGE).as_posix(): file.read_text(encoding="utf-8") for file in PACKAGE.rglob("*.py")}
    if listed[:1] == ["--record"]:
        of = subprocess.run(["git", "describe", "--always"], capture_output=True, text=True, check=True).stdout.strip()
        rooms = {room: dict(sorted(counts.items())) for room, counts in sorted(count_cases(package).items())}
        RECORDED.write_text(json.dumps({"of": of, "rooms": rooms}, indent=1) + "\n", encoding="utf-8")
        return
    for top in ("kohaku_ray", "tests"):
        n_lines = n_files = 0
        for room in sorted({file.relative_to(top).parts[0] for file in Path(top).rglob("*.py")}):
            files = [Path(top, room)] if room.endswith(".py") else sorted(Path(top, room).rglob("*.py"))
            lines = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)
            n_lines, n_files = n_lines + lines, n_files + len(files)
            print(f"{lines:7,} lines {len(files):4} files  {top}/{room}")
        print(f"{n_lines:7,} lines {n_files:4} files  {top}\n")

    print_cases(count_cases(package))
    modules = {file: ast.parse(file.read_text(encoding="utf-8")) for file in sorted(PACKAGE.rglob("*.py"))}
    uses = sum(map(count_uses, modules.values()), Counter())
    n_lines_of: Counter[str] = Counter()
    n_helpers_of: Counter[str] = Counter()
    rooms_of: dict[str, set[str]] = defaultdict(set)
    without_ray = []
    for file, module in modules.items():
        room = room_of(file)
        n_lines_of[room] += len(file.read_text(encoding="utf-8").splitlines())
        helpers = [function for function in private_functions(module) if uses[function.name] == 1]
        n_helpers_of[room] += len(helpers)
        if room in listed:
            for function in helpers:
                n_lines = (function.end_lineno or 0) - function.lineno + 1
                print(f"{file}:{function.lineno}: {function.name}, {n_lines} lines")
        for name in public_types(module):
            rooms_of[name].add(room)
        if room == "engine" and file.name != "__init__.py" and not imports_ray(module):
            without_ray.append(file.relative_to(PACKAGE / "engine").as_posix())

    print("private functions with one caller, per 1,000 lines (at most 6)")
    totals = [(n_helpers_of[room], n_lines_of[room], room) for room in sorted(n_lines_of)]
    for n, lines, name in [*totals, (n_helpers_of.total(), n_lines_of.total(), "all")]:
        if n:
            print(f"{1000 * n / lines:7.1f} {n:6} of {lines:7,} lines  {name}")
    shared = {name: sorted(rooms) for name, rooms in sorted(rooms_of.items()) if len(rooms) > 1}
    print(f"\npublic type names in two rooms (none): {len(shared)}")
    for name, rooms in shared.items():
        print(f"  {name}: {', '.join(rooms)}")
    print(f"\nmodules of engine/ without ray (none): {len(without_ray)}")
    for name in without_ray:
        print(f"  {name}")


if __name__ == "__main__":
    main(sys.argv[1:])
